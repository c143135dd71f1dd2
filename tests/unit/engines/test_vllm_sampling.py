"""What one choice of a request asks of vLLM, without vLLM."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from drivetrain.core.engine import EngineRequest
from drivetrain.core.errors import InvalidRequest
from drivetrain.core.sampling import Sampling
from drivetrain.engines.vllm.sampling import built, parameters_of, refuse_if_nothing_is_left, seed_of
from drivetrain.text.byte_tokenizer import ByteTokenizer
from drivetrain.text.grammar.library import CompiledGrammar, Vocabulary


def request(**changes: Any) -> EngineRequest:
    base: dict[str, Any] = {
        "request_id": "r",
        "prompt_ids": (1, 2, 3),
        "context_length": 100,
        "max_tokens": 10,
        "seeds": (7,),
    }
    return EngineRequest(**{**base, **changes})


def asked(index: int = 0, **changes: Any) -> dict[str, Any]:
    return parameters_of(request(**changes), index)


def sampled(**values: Any) -> dict[str, Any]:
    return asked(sampling=Sampling(**values))


def test_neutral_values_ask_for_nothing() -> None:
    assert asked() == {
        "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0,
        "presence_penalty": 0.0, "frequency_penalty": 0.0, "logit_bias": None, "_bad_words_token_ids": None,
        "_grammar": None,
        "seed": 7, "max_tokens": 10, "min_tokens": 0, "stop_token_ids": [], "ignore_eos": True, "logprobs": None,
        "prompt_logprobs": None, "detokenize": False, "skip_reading_prefix_cache": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": 0.3}, {"top_p": 0.5}, {"top_k": 9}, {"min_p": 0.2}, {"repetition_penalty": 1.5},
        {"presence_penalty": 1.0}, {"frequency_penalty": -1.0},
    ],
)  # fmt: skip
def test_numbers_go_through_as_they_are(values: dict[str, float]) -> None:
    assert sampled(**values) == {**asked(), **values}


@pytest.mark.parametrize("values", [{"temperature": 0.0}, {"temperature": 1e-7}, {"top_k": 1, "temperature": 2.0}])
def test_what_can_only_be_the_likeliest_is_greedy(values: dict[str, float]) -> None:
    given = sampled(**values)
    assert given["temperature"] == 0.0
    assert given["top_k"] == 0


def test_stop_ids_are_ids_and_the_ends_of_the_model_are_among_them_or_off() -> None:
    given = asked(stop_ids=frozenset({5, 2}), min_tokens=4)
    assert given["stop_token_ids"] == [2, 5]
    assert given["ignore_eos"] is True
    assert given["min_tokens"] == 4
    assert "stop" not in given


def test_bans_of_one_id_are_biases_and_longer_ones_bad_words() -> None:
    given = sampled(suppress_tokens=(4,), bad_words_ids=((5,), (6, 7)), logit_bias={4: 3.0, 8: 1.5})
    assert given["logit_bias"] == {4: -math.inf, 5: -math.inf, 8: 1.5}
    assert given["_bad_words_token_ids"] == [[6, 7]]


def test_each_choice_has_its_seed_and_the_first_one_tells_of_the_prompt() -> None:
    both = [asked(i, seeds=(7, 8), prompt_logprobs=2, logprobs=3) for i in range(2)]
    assert [given["seed"] for given in both] == [7, 8]
    assert [given["prompt_logprobs"] for given in both] == [2, None]
    assert [given["logprobs"] for given in both] == [3, 3]


@pytest.mark.parametrize("seed", [-1, 0, 2**63 - 1, -(2**63)])
def test_every_seed_is_in_range_and_none_means_no_seed(seed: int) -> None:
    assert 0 <= seed_of(seed) < 2**63
    assert seed_of(5) == 5


def test_a_named_seed_reads_no_cache() -> None:
    assert asked(seeded=True)["skip_reading_prefix_cache"] is True
    assert asked(prompt_logprobs=0)["skip_reading_prefix_cache"] is True


@pytest.mark.parametrize(("max_tokens", "given"), [(None, 97), (5, 5), (1000, 97), (0, 1)])
def test_the_room_is_the_context_and_vllm_gives_one_at_least(max_tokens: int | None, given: int) -> None:
    assert asked(max_tokens=max_tokens)["max_tokens"] == given


def test_bans_that_leave_nothing_are_refused() -> None:
    everything = Sampling(suppress_tokens=(0, 1), bad_words_ids=((2,),))
    with pytest.raises(InvalidRequest) as caught:
        refuse_if_nothing_is_left(request(sampling=everything), 3)
    assert caught.value.param == "suppress_tokens"
    refuse_if_nothing_is_left(request(sampling=everything), 4)
    with pytest.raises(InvalidRequest):
        refuse_if_nothing_is_left(request(sampling=everything, stop_ids=frozenset({3}), min_tokens=1), 4)


class Params(SimpleNamespace):
    """As vLLM's class: it takes what it knows, and raises a low temperature."""

    def __init__(self, *, temperature: float, **rest: Any) -> None:
        super().__init__(temperature=max(temperature, 0.01) if temperature else 0.0, **rest)
        assert not any(name.startswith("_") for name in rest)


def compiled(lark: str) -> CompiledGrammar:
    return CompiledGrammar(lark, Vocabulary(ByteTokenizer(), frozenset({257, 259})))


def test_a_grammar_goes_along_as_it_is() -> None:
    given = asked(grammar=compiled('start: "a"'), stop_ids=frozenset({257, 259}))
    assert given["logit_bias"] is None
    assert built(given, Params, "delta", dict).structured_outputs == {"grammar": 'start: "a"'}
    assert not hasattr(built(asked(), Params, "delta", dict), "structured_outputs")


def test_under_a_grammar_an_end_that_is_ignored_is_banned() -> None:
    """vLLM would offer it wherever the text may end."""
    given = asked(grammar=compiled('start: "a"'), stop_ids=frozenset({257}))
    assert given["logit_bias"] == {259: -math.inf}


@pytest.mark.parametrize("temperature", [0.0, 1e-4, 0.7])
def test_the_temperature_is_the_one_that_was_asked_for(temperature: float) -> None:
    given = sampled(temperature=temperature, bad_words_ids=((6, 7),))
    params = built(given, Params, "delta", None)
    assert params.temperature == temperature
    assert params._bad_words_token_ids == [[6, 7]]
    assert params.output_kind == "delta"
    assert params.top_p == 1.0
