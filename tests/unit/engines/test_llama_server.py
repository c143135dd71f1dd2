"""llama.cpp's dialect without llama.cpp: what it is asked, and what its frames mean."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.core.engine import EngineRequest, IdLogprobs, TokenStep
from drivetrain.core.results import FinishReason
from drivetrain.core.sampling import Sampling
from drivetrain.engines.llama_server.completion import Completion, seed_at
from drivetrain.engines.llama_server.frames import ChoiceIds, EndFrame, PromptFrame, TokenFrame, read
from drivetrain.text.byte_tokenizer import ByteTokenizer
from drivetrain.text.grammar.library import CompiledGrammar, Vocabulary


def request(**changes: Any) -> EngineRequest:
    base: dict[str, Any] = {
        "request_id": "r", "prompt_ids": (1,), "context_length": 64, "max_tokens": 5, "seeds": (1,),
    }  # fmt: skip
    return EngineRequest(**{**base, **changes})


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 10**6))
def test_seeds_are_32_bits_and_never_random(seed: int, position: int) -> None:
    assert 0 <= seed_at(seed, position) < 2**32 - 1


def test_seeds_differ() -> None:
    seeds = [*range(-50, 50), 2**63 - 1, -(2**63), 2**32, 2**33]
    assert len({seed_at(seed) for seed in seeds}) == len(seeds)
    assert seed_at(0) != seed_at(0, 1)
    assert seed_at(1) == seed_at(1, 0) == 2433363436  # a receipt's seed must mean the same for ever


def body(logprobs: int | None = None, **changes: Any) -> dict[str, Any]:
    asked = Completion(prompt=(1,), limit=5, banned=frozenset({3, 2}), seed=7)
    return asked.body(request(logprobs=logprobs, sampling=Sampling(**changes)))


def test_a_body_states_everything_in_the_contracts_order() -> None:
    made = body(temperature=0.5, logit_bias={3: 1.0, 4: -2.0})
    assert made["samplers"] == ("penalties", "dry", "temperature", "top_k", "top_p", "min_p", "typ_p", "xtc")
    assert made["logit_bias"] == [(4, -2.0), (2, False), (3, False)]
    assert made["repeat_last_n"] == 64
    assert not {"n_probs", "grammar"} & made.keys()
    assert body(temperature=0.0)["temperature"] == body(top_k=1)["temperature"] == 0.0
    assert body(logprobs=0)["n_probs"] == 1


@pytest.mark.parametrize(("asked", "sent"), [(0, 64), (7, 7), (65, 64), (2**31 - 1, 64)])
def test_dry_looks_no_further_back_than_the_context(asked: int, sent: int) -> None:
    assert body(dry_range=asked)["dry_penalty_last_n"] == sent


def test_no_breakers_are_sent_as_one_that_never_comes() -> None:
    """llama.cpp refuses an empty list, and takes its own breakers if there is none."""
    assert body(dry_sequence_breakers=())["dry_sequence_breakers"] == ("",)
    assert body()["dry_sequence_breakers"] == ("\n", ":", '"', "*")


def compiled(lark: str) -> CompiledGrammar:
    tokenizer = ByteTokenizer()
    end = tokenizer.id_of(tokenizer.eos_token or "")
    assert end is not None
    return CompiledGrammar(lark, Vocabulary(tokenizer, frozenset({end})))


def test_a_grammar_goes_along_as_lark_unless_another_takes_its_place() -> None:
    held = request(grammar=compiled('start: "ab"'))
    asked = Completion(prompt=(1,), limit=5, banned=frozenset(), seed=7)
    assert asked.body(held)["grammar"] == '%llguidance {}\nstart: "ab"'
    assert replace(asked, grammar="root ::= .*").body(held)["grammar"] == "root ::= .*"


def frame(*ids: int, predicted: int, probabilities: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    told = {} if probabilities is None else {"completion_probabilities": probabilities}
    return {"stop": False, "content": "x", "tokens": list(ids), "tokens_predicted": predicted, **told}


def token(*ids: int, predicted: int, probabilities: list[dict[str, Any]] | None = None) -> TokenFrame:
    made = read(frame(*ids, predicted=predicted, probabilities=probabilities))
    assert isinstance(made, TokenFrame)
    return made


def probability(token_id: int, logprob: float, *top: dict[str, Any]) -> dict[str, Any]:
    return {"id": token_id, "logprob": logprob, "bytes": [token_id], "top_logprobs": top}


def test_each_kind_of_frame() -> None:
    assert read({"stop": False, "prompt_progress": {"total": 9, "cache": 4}}) == PromptFrame(9, 4)
    assert token(7, predicted=3).missing(2) == 0
    assert token(7, predicted=5).missing(2) == 2
    for kind, reason in (("eos", FinishReason.STOP), ("limit", FinishReason.LENGTH), ("none", None)):
        assert read({"stop": True, "stop_type": kind, "tokens_predicted": 3}) == EndFrame(reason, 3)


@pytest.mark.parametrize(
    "event", [{}, {"stop": True, "tokens_predicted": 1}, {"prompt_progress": 1}, frame(7, predicted=1) | {"tokens": 7}]
)
def test_what_is_no_frame_is_said_in_one_of_four_ways(event: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
        read(event)


def test_a_choice_ends_at_its_stop_or_its_limit_also_within_a_gap() -> None:
    ids = ChoiceIds(0, request(stop_ids=frozenset({9})))
    assert ids.step(token(4, predicted=1)) == TokenStep(0, (4,))
    assert ids.step(token(6, predicted=4), (9, 5)) == TokenStep(0, (9,), None, FinishReason.STOP)
    ids = ChoiceIds(1, request(max_tokens=3))
    assert ids.step(token(6, predicted=4), (4, 5, 5)) == TokenStep(1, (4, 5, 5), None, FinishReason.LENGTH)
    assert ids.sampled == [4, 5, 5]


def test_a_stop_before_the_least_length_is_an_id_as_any() -> None:
    ids = ChoiceIds(0, request(stop_ids=frozenset({9}), min_tokens=1))
    assert ids.step(token(9, predicted=1)) == TokenStep(0, (9,))
    assert ids.step(token(9, predicted=2)).reason is FinishReason.STOP


def test_logprobs_are_never_above_none_and_those_of_a_gap_are_not_known() -> None:
    told = probability(6, 0.25, probability(6, 0.25), probability(8, -2.0))
    asked = ChoiceIds(0, request(logprobs=1))
    step = asked.step(token(6, predicted=2, probabilities=[told]), (5,))
    assert step.logprobs == (IdLogprobs(None), IdLogprobs(0.0, ((6, 0.0),)))
    assert list(token(6, predicted=1, probabilities=[told]).spellings()) == [(6, b"\6"), (6, b"\6"), (8, b"\10")]
    with pytest.raises(ValueError, match="zip"):
        asked.step(token(6, predicted=3))
