"""S3, the vLLM generation: what of its defects shows without vLLM. On vLLM itself: `on_vllm/test_s3_vllm.py`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from drivetrain.core.build import build_request
from drivetrain.core.engine import EngineRequest
from drivetrain.core.sampling import Sampling
from drivetrain.engines.vllm import engine
from drivetrain.engines.vllm.sampling import parameters_of

FOLDER = Path(engine.__file__).parent


def asked(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "request_id": "r",
        "prompt_ids": (1, 2),
        "context_length": 64,
        "max_tokens": 8,
        "seeds": (1,),
    }
    return parameters_of(EngineRequest(**{**base, **changes}), 0)


def test_stop_ids_stay_ids() -> None:
    given = asked(stop_ids=frozenset({7, 3}))
    assert given["stop_token_ids"] == [3, 7]
    assert not {"stop", "include_stop_str_in_output"} & given.keys()


def test_the_callers_list_of_stop_ids_is_not_touched() -> None:
    ids = [3, 7]
    built = build_request({"prompt": "x", "stop_token_ids": ids})
    asked(stop_ids=frozenset(built.stop_token_ids or ()))
    assert ids == [3, 7]


def test_nothing_is_asked_of_vllm_that_is_gone() -> None:
    assert "use_beam_search" not in asked()
    sources = "\n".join(path.read_text() for path in FOLDER.glob("*.py"))
    assert "vllm.v1.engine.async_llm" in sources
    assert not re.search(r"vllm\.utils|AsyncLLMEngine|use_beam_search", sources)


def test_benchmark_mode_is_a_request_parameter_and_its_prompt_arrives_as_ids() -> None:
    """The engine gets the ends of the model as stop ids; a request that ignores them has none."""
    assert asked(stop_ids=frozenset())["stop_token_ids"] == []
    assert asked()["ignore_eos"] is True


@pytest.mark.parametrize(
    "values", [{"top_k": 5}, {"presence_penalty": 0.5}, {"frequency_penalty": 0.5}, {"repetition_penalty": 1.2}]
)
def test_penalties_and_top_k_arrive(values: dict[str, float]) -> None:
    assert asked(sampling=Sampling(**values)) == {**asked(), **values}  # type: ignore[arg-type]  # one field each


def test_top_p_is_not_clamped() -> None:
    assert asked(sampling=Sampling(top_p=1e-9))["top_p"] == 1e-9
