"""Constraints on the text, in every form: what is said satisfies them, whatever else the request asks for."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

import jsonschema_rs
import pytest

from contract.rigs import PROMPT, honours
from drivetrain.core.errors import InvalidRequest
from drivetrain.core.events import Delta
from drivetrain.core.results import Choice, FinishReason
from drivetrain.worker.worker import EngineWorker

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "size": {"enum": ["small", "large", None]},
        "counts": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "maxItems": 2},
        "inner": {"type": "object", "properties": {"ok": {"type": "boolean"}}, "additionalProperties": False},
    },
    "required": ["name", "size", "counts"],
    "additionalProperties": False,
}
GRAMMAR = 'root ::= greeting ", " name "!"\ngreeting ::= "hello" | "good " ("day" | "night")\nname ::= [a-z]{2,4}\n'

MASKS_HERE = frozenset({"fake", "native", "transformers"})
"""The engines that compute masks in this process."""

Judge = Callable[[str], object]


def is_of_schema(text: str) -> bool:
    return jsonschema_rs.is_valid(SCHEMA, json.loads(text))


FORMS: dict[str, tuple[dict[str, Any], Judge]] = {
    "json_schema": ({"json_schema": SCHEMA}, is_of_schema),
    "regex": ({"regex": "[A-C]{2}-[0-9]{3}(x|yz)"}, re.compile("[A-C]{2}-[0-9]{3}(x|yz)").fullmatch),
    "choice": ({"choice": ["yes", "yesterday", "déjà vu 🙂"]}, lambda text: text in {"yes", "yesterday", "déjà vu 🙂"}),
    "grammar": ({"grammar": GRAMMAR}, re.compile("(hello|good day|good night), [a-z]{2,4}!").fullmatch),
    "lark": ({"grammar": 'start: "<" word ">"\nword: /[a-f]{3,6}/'}, re.compile("<[a-f]{3,6}>").fullmatch),
}
PLAIN: dict[str, Any] = {"prompt": PROMPT, "seed": 3, "temperature": 1.0, "max_tokens": 150}


@pytest.fixture
async def constrained(worker: EngineWorker) -> bool:
    """Whether the engine takes constraints; one that does not has refused one by name."""
    return await honours(worker, "constraint")


def check(choice: Choice, judge: Judge) -> None:
    assert choice.finish_reason is FinishReason.STOP
    assert judge(choice.text), choice.text


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_the_text_satisfies_it(worker: EngineWorker, constrained: bool, form: str, temperature: float) -> None:
    if not constrained:
        return
    constraint, judge = FORMS[form]
    result = await worker.generate(**{**PLAIN, "temperature": temperature}, constraint=constraint)
    check(result.choices[0], judge)
    assert result.usage.completion_tokens == len(result.choices[0].token_ids)


async def test_a_format_that_not_every_llguidance_knows(worker: EngineWorker, constrained: bool) -> None:
    if not constrained:
        return
    schema = {"type": "string", "format": "uri", "maxLength": 24}
    text = (await worker.generate(**PLAIN, constraint={"json_schema": schema})).text
    assert jsonschema_rs.validator_for(schema, validate_formats=True).is_valid(json.loads(text)), text


async def test_the_time_of_masks_is_told_or_absent(worker: EngineWorker, constrained: bool) -> None:
    """Behind a handle it comes with the next report."""
    before = worker.status.counts.mask_s
    if not constrained:
        return
    await worker.generate(**PLAIN, constraint=FORMS["regex"][0])
    assert (before is not None) == (worker.metadata.engine in MASKS_HERE)
    if before is not None:
        async with asyncio.timeout(30):
            while (worker.status.counts.mask_s or 0.0) <= before:
                await asyncio.sleep(0.05)


async def test_any_json_is_an_object(worker: EngineWorker, constrained: bool) -> None:
    """It may be long: what came of it by the limit must still be a beginning of one."""
    if not constrained:
        return
    for seed in range(3):
        result = await worker.generate(**{**PLAIN, "seed": seed, "max_tokens": 40}, constraint={"json": True})
        choice = result.choices[0]
        if choice.finish_reason is FinishReason.STOP:
            assert isinstance(json.loads(choice.text), dict)
        else:
            assert choice.text.startswith("{")


@pytest.mark.parametrize("form", FORMS)
async def test_the_stream_adds_up_to_the_whole(worker: EngineWorker, constrained: bool, form: str) -> None:
    if not constrained:
        return
    constraint, judge = FORMS[form]
    whole = (await worker.generate(**PLAIN, constraint=constraint)).choices[0]
    streamed = [event async for event in worker.stream(**PLAIN, constraint=constraint) if isinstance(event, Delta)]
    check(whole, judge)
    assert judge("".join(delta.text for delta in streamed))


async def test_choices_of_a_request(worker: EngineWorker, constrained: bool) -> None:
    if not constrained or not await honours(worker, "n"):
        return
    constraint, judge = FORMS["json_schema"]
    result = await worker.generate(**PLAIN, n=3, constraint=constraint)
    assert len(result.choices) == 3
    for choice in result.choices:
        check(choice, judge)


async def test_free_and_constrained_side_by_side(worker: EngineWorker, constrained: bool) -> None:
    if not constrained:
        return
    free: dict[str, Any] = {"prompt": PROMPT, "temperature": 0, "ignore_eos": True, "max_tokens": 30}
    alone = (await worker.generate(**free)).text
    several = [worker.generate(**{**PLAIN, "seed": seed}, constraint=FORMS[form][0]) for seed, form in enumerate(FORMS)]
    said, *results = await asyncio.gather(worker.generate(**free), *several)
    for result, (_, judge) in zip(results, FORMS.values(), strict=True):
        check(result.choices[0], judge)
    assert len(said.text) > 12
    assert said.choices[0].finish_reason is FinishReason.LENGTH
    assert (await worker.generate(**free)).text == alone


async def test_the_limit_cuts_it(worker: EngineWorker, constrained: bool) -> None:
    if not constrained:
        return
    result = await worker.generate(**{**PLAIN, "max_tokens": 3}, constraint={"regex": "[a-z]{200}"})
    assert result.choices[0].finish_reason is FinishReason.LENGTH
    assert len(result.choices[0].token_ids) == 3
    assert re.fullmatch("[a-z]+", result.text)


async def test_a_stop_within_it(worker: EngineWorker, constrained: bool) -> None:
    if not constrained:
        return
    result = await worker.generate(**PLAIN, constraint={"regex": "aaa=[0-9]{3};bbb"}, stop=["="])
    assert result.text == "aaa"
    assert result.choices[0].matched_stop == "="


async def test_logprobs_are_of_the_raw_distribution(worker: EngineWorker, constrained: bool) -> None:
    """Other tokens than the constraint's are among the likeliest; the chosen ones spell the text."""
    if not constrained or not await honours(worker, "logprobs"):
        return
    result = await worker.generate(**PLAIN, constraint={"choice": ["qqq zzz"]}, logprobs=5)
    entries = result.choices[0].logprobs
    assert entries is not None
    assert b"".join(entry.bytes for entry in entries).decode() == result.text == "qqq zzz"
    likeliest = {top.bytes for entry in entries for top in entry.top}
    assert likeliest - {entry.bytes for entry in entries}
    assert all(entry.logprob is not None and entry.logprob <= 0 for entry in entries)


async def test_an_end_is_not_needed(worker: EngineWorker, constrained: bool) -> None:
    """What is complete ends, though the model's own end is ignored."""
    if not constrained or not await honours(worker, "ignore_eos"):
        return
    result = await worker.generate(**PLAIN, constraint={"choice": ["a b c"]}, ignore_eos=True)
    assert result.text == "a b c"
    assert result.choices[0].finish_reason is FinishReason.STOP


async def test_fewer_tokens_than_min_tokens(worker: EngineWorker, constrained: bool) -> None:
    """Either is asked for, and both cannot be had."""
    if not constrained or not await honours(worker, "min_tokens"):
        return
    with pytest.raises(InvalidRequest) as caught:
        await worker.generate(**PLAIN, constraint={"choice": ["a"]}, min_tokens=20)
    assert caught.value.param in {"min_tokens", "constraint"}


async def test_it_is_the_same_again(worker: EngineWorker, constrained: bool) -> None:
    if not constrained or not await honours(worker, "seed"):
        return
    constraint, _ = FORMS["json_schema"]
    first = await worker.generate(**PLAIN, constraint=constraint)
    assert (await worker.generate(**PLAIN, constraint=constraint)).text == first.text


@pytest.mark.parametrize("keyword", ["maxItems", "minItems"])
async def test_a_greatest_count_that_no_answer_reaches(worker: EngineWorker, constrained: bool, keyword: str) -> None:
    """It does no harm, and what else the schema says is kept to."""
    if not constrained:
        return
    schema = {"type": "array", "items": {"enum": [7]}, "minItems": 2, "maxItems": 10**9}
    if keyword == "minItems":
        schema |= {"maxItems": 2}
    text = (await worker.generate(**PLAIN, constraint={"json_schema": schema})).text
    assert re.fullmatch(r"\[7(, 7)+(\]|, ?|,? ?7?)" if keyword == "maxItems" else r"\[7, 7\]", text), text


UNUSABLE: dict[str, tuple[dict[str, Any], str]] = {
    "keyword": ({"json_schema": {"not": {"pattern": "a"}}}, "not"),
    "never": ({"json_schema": False}, "schema is false"),
    "type": ({"json_schema": {"type": "strin"}}, "strin"),
    "cycle": ({"json_schema": {"$ref": "#"}}, "no text satisfies"),
    "elsewhere": ({"json_schema": {"$ref": "https://example.com/s"}}, "example.com"),
    "multiple": ({"json_schema": {"type": "integer", "multipleOf": 999_983}}, "multipleOf"),
    "product": (
        {"json_schema": {"allOf": [{"anyOf": [{"required": [f"{i}{j}"]} for j in range(5)]} for i in range(9)]}},
        "too large",
    ),
    "look-ahead": ({"regex": "a(?=b)"}, "look-ahead"),
    "bracket": ({"regex": "["}, "unclosed"),
    "grammar": ({"grammar": "root ::= ("}, "GBNF"),
    "no rule": ({"grammar": "root ::= x"}, "'x' not found"),
    "items": ({"json_schema": {"type": "array", "minItems": 10**9}}, "minItems: 1000000000"),
    "items in lark": ({"grammar": f'start: %json {{"minItems": {10**9}}}'}, "minItems: 1000000000"),
    "length": ({"json_schema": {"type": "string", "minLength": 10**9}}, "minLength: 1000000000"),
    "times": ({"regex": f"a{{{10**9}}}"}, "1000000000 times"),
    "whole": ({"json_schema": {"type": "integer", "minimum": 10**30}}, "minimum: 1000000000000"),
    "undefined": ({"grammar": "start: a b"}, "a"),
    "endless": ({"grammar": "start: a\na: a"}, "no text satisfies"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNUSABLE)
async def test_what_cannot_be_honoured_is_refused(worker: EngineWorker, constrained: bool, name: str) -> None:
    if not constrained:
        return
    constraint, words = UNUSABLE[name]
    with pytest.raises(InvalidRequest, match=re.escape(words)) as caught:
        await worker.generate(**PLAIN, constraint=constraint)
    assert caught.value.param == "constraint"
    assert (await worker.generate(**PLAIN, constraint={"choice": ["still here"]})).text == "still here"
