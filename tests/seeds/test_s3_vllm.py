"""S3, the vLLM generation: what of its defects shows without vLLM. On vLLM itself: `on_vllm/test_s3_vllm.py`."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from drivetrain.core.engine import EngineRequest, ModelSpec, WeightsFormat
from drivetrain.core.errors import Unsupported
from drivetrain.core.parameters import build_request
from drivetrain.core.results import FinishReason
from drivetrain.core.sampling import Sampling
from drivetrain.engines.vllm import engine
from drivetrain.engines.vllm.capabilities import ALWAYS, NEEDS
from drivetrain.engines.vllm.core import VllmModel, Widened
from drivetrain.engines.vllm.engine import VllmEngine
from drivetrain.engines.vllm.gauges import Gauges
from drivetrain.engines.vllm.sampling import parameters_of
from drivetrain.worker.settings import Settings
from drivetrain.worker.worker import EngineWorker
from probe import engine_of

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


class Scripted:
    """A vLLM that says the ids 300, 301 … to the limit, and remembers what it was asked."""

    def __init__(self, path: str, arguments: Mapping[str, Any]) -> None:
        self.on_death: Callable[[], None] = lambda: None
        self.seen = Gauges()
        self.alive = True
        self.asked: list[tuple[tuple[int, ...], Mapping[str, Any]]] = []

    async def start(self) -> VllmModel:
        present = (ALWAYS | set(NEEDS.values())) - {"min_p"}
        return VllmModel(64, 500, "cpu", "float32", frozenset(present), "0.1")

    async def widen(self, prompt: tuple[int, ...], images: tuple[Any, ...], cache_salt: str | None) -> Widened:
        raise AssertionError("no test here has images")

    async def outputs(
        self, prompt: tuple[int, ...] | Widened, cache_salt: str | None, parameters: Mapping[str, Any], request_id: str
    ) -> AsyncGenerator[Any, None]:
        assert isinstance(prompt, tuple)
        self.asked.append((prompt, parameters))
        for i in range(1, parameters["max_tokens"] + 1):
            reason = "length" if i == parameters["max_tokens"] else None
            said = SimpleNamespace(token_ids=[299 + i], logprobs=None, finish_reason=reason)
            yield SimpleNamespace(outputs=[said], num_cached_tokens=0, prompt_token_ids=prompt, prompt_logprobs=None)

    async def let_go(self, request_ids: Iterable[str]) -> None: ...

    async def close(self) -> None:
        self.alive = False


@pytest.fixture
async def worker(checkpoint: Callable[[str], Path]) -> AsyncIterator[EngineWorker]:
    spec = ModelSpec(name="m", path=checkpoint("llama"), format=WeightsFormat.SAFETENSORS)
    made = EngineWorker(VllmEngine(Scripted), spec, Settings())
    await made.start()
    yield made
    await made.stop()


def asked_of(worker: EngineWorker) -> list[tuple[tuple[int, ...], Mapping[str, Any]]]:
    made: Any = engine_of(worker)
    asked: list[tuple[tuple[int, ...], Mapping[str, Any]]] = made._core.asked
    return asked


async def test_the_last_ids_of_a_prompt_that_is_too_long_are_what_vllm_gets(worker: EngineWorker) -> None:
    """There, benchmark mode cut the ids and then passed the text, and a switch in the environment chose it."""
    ids = list(range(100, 200))
    result = await worker.generate(prompt_token_ids=ids, max_tokens=10, overflow="truncate_left", ignore_eos=True)
    ((prompt, parameters),) = asked_of(worker)
    assert prompt == tuple(ids[-54:]) == result.prompt_token_ids
    assert parameters["stop_token_ids"] == []
    assert (parameters["min_tokens"], parameters["max_tokens"]) == (0, 10)
    await worker.generate(prompt_token_ids=ids, max_tokens=10, overflow="truncate_left")
    assert set(asked_of(worker)[1][1]["stop_token_ids"]) == set(worker.metadata.eos_ids)


def test_no_switch_in_the_environment_changes_an_answer() -> None:
    """vLLM's own are given values before it is imported; none is read."""
    sources = "\n".join(path.read_text() for path in FOLDER.glob("*.py"))
    assert re.findall(r"os\.environ[.\[]\w+|getenv", sources) == ["os.environ.setdefault"]


async def test_echo_takes_a_prompt_of_ids_and_is_off_by_default(worker: EngineWorker) -> None:
    asking: dict[str, Any] = {"prompt_token_ids": [100, 101, 102], "max_tokens": 2}
    plain, echoed = await worker.generate(**asking), await worker.generate(**asking, echo=True)
    before = await worker.detokenize([100, 101, 102])
    assert echoed.text == before + plain.text
    assert plain.text != echoed.text


async def test_several_outputs_stay_apart_each_with_its_reason(worker: EngineWorker) -> None:
    result = await worker.generate(prompt_token_ids=[100], max_tokens=3, n=2, seed=5)
    assert [choice.token_ids for choice in result.choices] == [(300, 301, 302)] * 2
    assert [choice.finish_reason for choice in result.choices] == [FinishReason.LENGTH] * 2
    assert [parameters["seed"] for _, parameters in asked_of(worker)] == [5, 6]
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (1, 6)


async def test_what_this_vllm_lacks_is_refused_by_name_and_never_dropped(worker: EngineWorker) -> None:
    with pytest.raises(Unsupported) as caught:
        await worker.generate(prompt_token_ids=[100], max_tokens=3, min_p=0.1)
    assert caught.value.param == "min_p"
    assert not asked_of(worker)
    await worker.generate(prompt_token_ids=[100], max_tokens=3, top_k=7)
    assert asked_of(worker)[0][1]["top_k"] == 7
