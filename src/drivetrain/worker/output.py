"""The output of a request, choice by choice: an engine's tokens in, events out. No engine, no reader, no clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from drivetrain.core.engine import EngineInfo, IdLogprobs, TokenStep
from drivetrain.core.events import ChoiceFinished, Delta, Event
from drivetrain.core.results import Choice, FinishReason, TokenLogprob
from drivetrain.text.answers.parser import MessageBuilder
from drivetrain.text.choice import ChoiceText, echo_entries, joined
from drivetrain.worker.prepare import Prepared


@dataclass(slots=True)
class _CollectedChoice:
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    message: MessageBuilder | None = None
    finished: ChoiceFinished | None = None


class Collected:
    """What the events of one request add up to, whether a run here makes them or a replica elsewhere sends them.

    `logprobs` is whether it asked for any.
    """

    def __init__(self, num_choices: int, *, logprobs: bool) -> None:
        self._logprobs = logprobs
        self._choices = [_CollectedChoice() for _ in range(num_choices)]

    def take(self, event: Delta | ChoiceFinished) -> None:
        choice = self._choices[event.index]
        if type(event) is ChoiceFinished:
            choice.finished = event
        elif type(event) is Delta:
            choice.texts.append(event.text)
            choice.token_ids += event.token_ids
            if event.logprobs:
                choice.logprobs += event.logprobs
            if event.parts is not None:
                choice.message = choice.message or MessageBuilder()
                for part in event.parts:
                    choice.message.add(part)

    @property
    def is_empty(self) -> bool:
        return not any(choice.texts or choice.finished for choice in self._choices)

    @property
    def num_tokens(self) -> int:
        return sum(len(choice.token_ids) for choice in self._choices)

    @property
    def choices(self) -> tuple[Choice, ...]:
        return tuple(self._choice(index, choice) for index, choice in enumerate(self._choices))

    def _choice(self, index: int, choice: _CollectedChoice) -> Choice:
        finished = choice.finished
        return Choice(
            index=index,
            text="".join(choice.texts),
            token_ids=tuple(choice.token_ids),
            logprobs=tuple(choice.logprobs) if self._logprobs else None,
            finish_reason=finished.reason if finished else None,
            matched_stop=finished.matched_stop if finished else None,
            message=choice.message.message() if choice.message is not None else None,
        )

    @property
    def finish_reasons(self) -> list[FinishReason]:
        """Of the choices that have ended by themselves."""
        return [choice.finished.reason for choice in self._choices if choice.finished is not None]


class Output:
    """Made once the prompt is known. `events` are those that the reader was not given yet.

    `interval` is how many tokens of a choice one delta gathers.
    """

    def __init__(self, prepared: Prepared, prompt_ids: tuple[int, ...], info: EngineInfo, *, interval: int) -> None:
        request, tokenizer = prepared.request, info.tokenizer
        prefix = () if info.encoder_decoder else prompt_ids
        self.events: list[Event] = []
        self.num_open = len(request.seeds)
        """Choices that have not ended."""
        logprobs = request.logprobs is not None or request.prompt_logprobs is not None
        self.collected = Collected(self.num_open, logprobs=logprobs)
        self._prompt_ids = request.prompt_ids
        self._prompt_text = prepared.prompt_text
        self._echoed = 0
        self._tokenizer = tokenizer
        self._interval = interval
        self._waiting: dict[int, Delta] = {}
        self._choices = [
            ChoiceText(
                index,
                tokenizer=tokenizer,
                detokenizer=tokenizer.detokenizer(prefix),
                rules=prepared.rules,
                logprobs=request.logprobs is not None,
                offset=len(prepared.prompt_text),
                matcher=request.grammar.matcher() if request.grammar is not None else None,
                reader=prepared.reading.reader() if prepared.reading is not None else None,
            )
            for index in range(self.num_open)
        ]
        if request.prompt_logprobs is None:
            self._echo(prepared.prompt_text)

    def take(self, step: TokenStep) -> int:
        """How many of its tokens belong to the answer: none of a choice that has ended."""
        choice = self._choices[step.index]
        if choice.finished:
            return 0
        before = choice.num_tokens
        delta = choice.feed(step.token_ids, step.logprobs, step.pieces)
        if delta is not None:
            self._give(delta)
        if step.reason is not None and (rest := choice.finish(step.reason)) is not None:
            self._give(rest)
        if (finished := choice.finished) is not None:
            calls = choice.has_calls and finished.reason is FinishReason.STOP
            self._finish(replace(finished, reason=FinishReason.TOOL_CALLS) if calls else finished)
        return choice.num_tokens - before

    def spell_prompt(self, logprobs: Sequence[IdLogprobs]) -> Iterator[TokenLogprob]:
        """The entries of an echoed prompt, one by one."""
        return echo_entries(self._tokenizer, self._prompt_text, self._prompt_ids, logprobs)

    def take_echo(self, entries: tuple[TokenLogprob, ...], end: int | None) -> None:
        """Entries of the prompt, in order, and where in the text those after them begin."""
        self._echo(self._prompt_text[self._echoed : end], entries)
        self._echoed = end or 0

    def flush(self) -> None:
        """Give out what waits for its neighbours."""
        for index in list(self._waiting):
            self._flush(index)

    @property
    def is_empty(self) -> bool:
        """Whether nothing came of the request yet."""
        return not self.num_tokens and self.collected.is_empty

    @property
    def num_tokens(self) -> int:
        return sum(choice.num_tokens for choice in self._choices)

    @property
    def num_reasoning(self) -> int:
        return sum(choice.num_reasoning for choice in self._choices)

    def _finish(self, finished: ChoiceFinished) -> None:
        self._flush(finished.index)
        self._emit(finished)
        self.num_open -= 1

    def _give(self, delta: Delta) -> None:
        """Send a delta, or gather it with its neighbours."""
        if not self._waiting and len(delta.token_ids) >= self._interval:
            self._emit(delta)
            return
        waiting = self._waiting.pop(delta.index, None)
        delta = joined(waiting, delta) or delta
        if len(delta.token_ids) < self._interval:
            self._waiting[delta.index] = delta
        else:
            self._emit(delta)

    def _flush(self, index: int) -> None:
        waiting = self._waiting.pop(index, None)
        if waiting is not None:
            self._emit(waiting)

    def _emit(self, event: Delta | ChoiceFinished) -> None:
        self.collected.take(event)
        self.events.append(event)

    def _echo(self, text: str, logprobs: tuple[TokenLogprob, ...] | None = None) -> None:
        if text or logprobs:
            for index in range(len(self._choices)):
                self._emit(Delta(index, text, (), logprobs))
