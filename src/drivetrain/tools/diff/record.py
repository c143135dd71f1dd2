"""Ask one worker every prompt, greedily, and keep each token with its logprobs."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Protocol, Unpack

from drivetrain.core.capabilities import Capabilities
from drivetrain.core.engine import Progress
from drivetrain.core.errors import InvalidSetting
from drivetrain.core.options import GenerateOptions
from drivetrain.core.parameters import PARAMETERS
from drivetrain.core.results import Choice, FinishReason, Result, TokenLogprob
from drivetrain.core.sampling import Sampling
from drivetrain.core.tools import Tool
from drivetrain.tools.diff.compare import Alternative, AnswerParts, AnswerToken, RecordedAnswer


class Generator(Protocol):
    """The part of a blocking worker that is needed here."""

    @property
    def capabilities(self) -> Capabilities: ...

    def generate(self, **request: Unpack[GenerateOptions]) -> Result: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """`chat` sends each prompt as a user message, in the model's own prompt form, and offers the `tools`."""

    prompts: tuple[str, ...]
    num_tokens: int
    num_top: int
    chat: bool = False
    tools: tuple[Tool, ...] = ()


def record(worker: Generator, questions: Questions, label: str, progress: Progress) -> tuple[RecordedAnswer, ...]:
    """One answer per prompt, one at a time: other requests in a batch may change the last bits of a logprob.

    Raises `InvalidSetting` for an engine that gives no token ids.
    """
    if not worker.capabilities.tokens:
        raise InvalidSetting(f"{label} returns only text; a comparison token by token needs an engine that returns ids")
    parameters = _greedy(worker.capabilities.parameters, questions)
    answers: list[RecordedAnswer] = []
    for done, prompt in enumerate(questions.prompts):
        progress(f"asking {label}", done / len(questions.prompts))
        answers.append(_answer(worker, _given(prompt, questions) | parameters))
    progress(f"asked {label}", 1.0)
    return tuple(answers)


def _given(prompt: str, questions: Questions) -> dict[str, Any]:
    if not questions.chat:
        return {"prompt": prompt}
    chat = {"messages": [{"role": "user", "content": prompt}]}
    return chat | ({"tools": questions.tools} if questions.tools else {})


def _greedy(honoured: frozenset[str], questions: Questions) -> dict[str, Any]:
    """Plain greedy sampling: penalties from the weights are off, and a seed keeps caches from changing the rounding."""
    neutral = {field.name: PARAMETERS[field.name].neutral for field in fields(Sampling)}
    optional = neutral | {"seed": 0, "logprobs": questions.num_top}
    found = {name: value for name, value in optional.items() if name in honoured and value is not None}
    return found | {"temperature": 0.0, "max_tokens": questions.num_tokens}


def _answer(worker: Generator, request: dict[str, Any]) -> RecordedAnswer:
    result = worker.generate(**request)
    (choice,) = result.choices
    places = places_of(choice)
    if _lacks_end(choice) and "min_tokens" in worker.capabilities.parameters and "logprobs" in request:
        places[-1] = _end(worker, request, choice)
    return RecordedAnswer(result.prompt_token_ids or (), tuple(places), _parts(choice))


def _parts(choice: Choice) -> AnswerParts:
    said = choice.message
    if said is None:
        return AnswerParts(content=choice.text.strip())
    calls = tuple((call.name, call.arguments) for call in said.tool_calls)
    return AnswerParts((said.reasoning or "").strip(), (said.content or "").strip(), calls)


def _lacks_end(choice: Choice) -> bool:
    """Logprobs cover the text, and the id that ended it is not part of the text."""
    num_entries = len(choice.logprobs or ())
    return choice.finish_reason is FinishReason.STOP and num_entries == len(choice.token_ids) - 1


def _end(worker: Generator, request: dict[str, Any], choice: Choice) -> AnswerToken:
    """The place of the end, with its list: the same request again, not allowed to end there.

    Logprobs are raw, so the list still has the id that may not be sampled.
    """
    end, length = choice.token_ids[-1], len(choice.token_ids)
    (again,) = worker.generate(**request | {"min_tokens": length, "max_tokens": length}).choices
    entries = again.logprobs or ()
    if again.token_ids[:-1] != choice.token_ids[:-1] or len(entries) != length:
        return AnswerToken(end)
    top = _candidates(entries[-1])
    found = next((one for one in top if one.token_id == end), None)
    return AnswerToken(end, found.token if found else "", found.logprob if found else None, top)


def places_of(choice: Choice) -> list[AnswerToken]:
    """Every id. Logprobs cover the text, to which the id that ended it does not belong."""
    entries = choice.logprobs or ()
    return [place_of(entry) for entry in entries] + [AnswerToken(i) for i in choice.token_ids[len(entries) :]]


def place_of(entry: TokenLogprob) -> AnswerToken:
    return AnswerToken(entry.token_id, entry.token, entry.logprob, _candidates(entry))


def _candidates(entry: TokenLogprob) -> tuple[Alternative, ...]:
    return tuple(Alternative(one.token_id, one.token, one.logprob) for one in entry.top)
