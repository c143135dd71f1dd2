"""The text tier: messages in and text out over `/v1/chat/completions`, as on any server with OpenAI's API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from drivetrain.core.engine import EngineRequest, PromptStep, Step, TokenStep
from drivetrain.core.errors import EngineFailed
from drivetrain.core.kinds import MAX_INT
from drivetrain.core.parameters import WORKER_PARAMETERS
from drivetrain.core.results import FinishReason
from drivetrain.engines.remote.dialects.base import AnswerReader, Learn, UpstreamFacts, UpstreamKind, messages_json
from drivetrain.engines.remote.errors import Broken, Refused
from drivetrain.http.address import Address

HONOURED = frozenset({"n", "temperature", "top_p", "presence_penalty", "frequency_penalty"})
"""What OpenAI's API has and needs no ids. Not a seed, which it only promises to try."""

_NEEDS_IDS = frozenset({"prompt", "echo", "overflow", "context_length"})
"""Fields of the worker that need the whole prompt, or its length."""

MAX_SILENT = 2**18
"""The most tokens without text, such as those of hidden reasoning, that a usage is believed to report."""

_REASONS = {
    "stop": FinishReason.STOP,
    "eos": FinishReason.STOP,
    "eos_token": FinishReason.STOP,
    "stop_sequence": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "max_tokens": FinishReason.LENGTH,
}


@dataclass(frozen=True, slots=True)
class Habits:
    """Where servers differ, as found by trial."""

    max_tokens: str = "max_tokens"
    tells_usage: bool = True

    def after(self, refused: Refused) -> Habits | None:
        """What to try next, if a refusal names a field that can be renamed or left out."""
        text = f"{refused.param or ''} {refused.message}"
        if self.max_tokens == "max_tokens" and "max_completion_tokens" in text:
            return replace(self, max_tokens="max_completion_tokens")
        if self.tells_usage and "stream_options" in text:
            return replace(self, tells_usage=False)
        return None


def facts_of(kind: UpstreamKind, context_length: int | None, habits: Habits) -> UpstreamFacts:
    notes = [
        "the upstream gives text, no token ids: what needs ids is refused, and its own chat template is used",
        "constraints are refused: nothing shows whether the upstream would honour them",
    ]
    if habits.tells_usage:
        notes.append("usage is what the upstream tells; of an answer that is ended early, the pieces are counted")
    else:
        notes.append("the upstream tells no usage: pieces of text are counted, and prompt tokens are not known")
    if context_length is None:
        notes.append("the upstream does not tell its context length; set context_length to state it")
    return UpstreamFacts(
        kind=kind,
        tokens=False,
        parameters=(WORKER_PARAMETERS - _NEEDS_IDS) | HONOURED,
        context_length=context_length or MAX_INT,
        notes=tuple(notes),
    )


class TextDialect:
    def __init__(self, address: Address, model: str, facts: UpstreamFacts, habits: Habits) -> None:
        self.facts = facts
        self.path = f"{address.path}/chat/completions"
        self._model = model
        self._habits = habits

    def body(self, request: EngineRequest, index: int) -> dict[str, Any]:
        """Our own matcher finds stops, so none is sent."""
        assert request.media is not None
        assert request.media.prompt.messages is not None
        sampling = request.sampling
        body: dict[str, Any] = {
            "model": self._model,
            "messages": messages_json(request.media.prompt.messages),
            "stream": True,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
        }
        penalties = {name: getattr(sampling, name) for name in ("presence_penalty", "frequency_penalty")}
        body |= {name: value for name, value in penalties.items() if value}
        if request.max_tokens is not None:
            body[self._habits.max_tokens] = request.max_tokens
        if self._habits.tells_usage:
            body["stream_options"] = {"include_usage": True}
        return body

    def reader(self, request: EngineRequest, index: int, learn: Learn) -> AnswerReader:
        return _ChatReader(index)


class _ChatReader:
    """Holds a choice's end back until the usage has come or the stream is over."""

    def __init__(self, index: int) -> None:
        self.over = False
        self._index = index
        self._begun = False
        self._pieces = 0
        self._reason: FinishReason | None = None

    async def hear(self, event: Mapping[str, Any]) -> Sequence[Step]:
        try:
            return [*self._prompt(), *self._text(event), *self._usage(event.get("usage"))]
        except (KeyError, TypeError, AttributeError) as exc:
            raise Broken("an event is not what OpenAI's API says") from exc

    def _prompt(self) -> Sequence[Step]:
        if self._begun:
            return ()
        self._begun = True
        return (PromptStep(()),)

    def _text(self, event: Mapping[str, Any]) -> Sequence[Step]:
        choices = event.get("choices") or ()
        if not choices or self._reason is not None:
            return ()
        text = (choices[0].get("delta") or {}).get("content") or ""
        if (reason := choices[0].get("finish_reason")) is not None:
            self._reason = _finish_reason(reason)
        if not text:
            return ()
        self._pieces += 1
        return (TokenStep(self._index, (0,), pieces=(text.encode("utf-8", "replace"),)),)

    def _usage(self, usage: Any) -> Sequence[Step]:
        """Tokens without text make up the difference to the pieces. With fewer tokens than pieces, ours count."""
        if usage is None or self._reason is None:
            return ()
        self.over = True
        prompt, answer = usage["prompt_tokens"], usage["completion_tokens"]
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        if type(prompt) is not int or type(answer) is not int or not 0 <= answer - self._pieces <= MAX_SILENT:
            return (self._last(0),)
        return (PromptStep(cached_tokens=cached, num_tokens=prompt), self._last(answer - self._pieces))

    @property
    def settled(self) -> bool:
        return self._reason is not None

    def close(self) -> Sequence[Step]:
        if self._reason is None:
            raise Broken("the stream ended without a finish reason")
        self.over = True
        return (self._last(0),)

    def _last(self, silent: int) -> TokenStep:
        return TokenStep(self._index, (0,) * silent, None, self._reason, (b"",) * silent)


def _finish_reason(value: Any) -> FinishReason:
    if value not in _REASONS:
        shown = value if isinstance(value, str) and len(value) <= 40 else "one that is not known"
        raise EngineFailed(f"the upstream ended the answer for another reason than its end or its length: {shown}")
    return _REASONS[value]
