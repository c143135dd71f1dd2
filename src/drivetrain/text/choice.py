"""The text of one choice: ids in, deltas out, and stops found. The one place where ids become text.

The output does not depend on how the ids were split into steps. Text that could still turn out to be part of a stop, or
half a character, is held back, so nothing ever has to be retracted. What a chat's answer says is read from the text
that is given out (`answers/reading.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from drivetrain.core.answer import AnswerEvent
from drivetrain.core.constraint import Matcher
from drivetrain.core.engine import IdLogprobs
from drivetrain.core.errors import InvalidRequest, Unsupported
from drivetrain.core.events import ChoiceFinished, Delta
from drivetrain.core.results import FinishReason, MatchedStop, TokenLogprob, TopLogprob
from drivetrain.core.tokenizer import Detokenizer, Tokenizer
from drivetrain.text.answers.reading import ChoiceReader
from drivetrain.text.detokenizers import Utf8Stream
from drivetrain.text.loops import REPETITION, Loops
from drivetrain.text.stops import StopMatcher

KEPT_CHARS = 100
"""The automaton for a request's stops is cached if they have no more characters than this altogether."""


class StopRules:
    """Everything that ends a choice, prepared once per request. `eos_ids` is empty under `ignore_eos`."""

    def __init__(
        self,
        *,
        strings: Iterable[str] = (),
        token_ids: Iterable[int] = (),
        sequences: Iterable[tuple[int, ...]] = (),
        eos_ids: Iterable[int] = (),
        min_tokens: int = 0,
        include_in_text: bool = False,
        max_repetitions: int = 0,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        sequences = tuple(sequences)
        self.token_ids = frozenset(token_ids)
        self.eos_ids = frozenset(eos_ids) - self.token_ids
        self.end_ids = self.eos_ids | self.token_ids
        self.min_tokens = min_tokens
        self.include_in_text = include_in_text
        self.max_repetitions = max_repetitions
        self.strings = tuple(strings)
        self._spelled = {_spell(ids, tokenizer): ids for ids in sequences if tokenizer}
        texts = {*self.strings, *self._spelled} - {""}
        self.texts: StopMatcher[str] | None = _matcher(tuple(sorted(texts))) if texts else None
        self.sequences: StopMatcher[int] | None = StopMatcher(sequences) if sequences else None
        for string in self.strings:
            self._spelled.pop(string, None)

    def named(self, matched: str) -> MatchedStop:
        """The stop as the caller gave it: an id sequence that was matched as text is returned as ids."""
        return self._spelled.get(matched, matched)


def _matcher(stops: tuple[str, ...]) -> StopMatcher[str]:
    """Callers use the same few stops again and again. Only short ones are cached."""
    return _kept_matcher(stops) if sum(map(len, stops)) <= KEPT_CHARS else StopMatcher(stops)


@lru_cache(maxsize=64)
def _kept_matcher(stops: tuple[str, ...]) -> StopMatcher[str]:
    return StopMatcher(stops)


def _spell(ids: tuple[int, ...], tokenizer: Tokenizer | None) -> str:
    """The text of a stop given as ids; empty if it is not plain text, so that only its ids can match."""
    if tokenizer is None or any(tokenizer.is_special(i) for i in ids):
        return ""
    text = tokenizer.decode(ids)
    return "" if "�" in text else text


@dataclass(slots=True)
class _Token:
    """One sampled id that is still held back; its text begins at `start` and ends at `end`."""

    id: int
    start: int
    end: int
    data: bytes
    logprobs: IdLogprobs | None


class ChoiceText:
    """Feed it the ids of one choice until `finished` is set; ids after that are ignored."""

    def __init__(
        self,
        index: int,
        *,
        tokenizer: Tokenizer,
        detokenizer: Detokenizer,
        rules: StopRules,
        logprobs: bool = False,
        offset: int = 0,
        matcher: Matcher | None = None,
        reader: ChoiceReader | None = None,
    ) -> None:
        self.index = index
        self.num_tokens = 0
        self.finished: ChoiceFinished | None = None
        self._tokenizer = tokenizer
        self._detokenizer = detokenizer
        self._rules = rules
        self._logprobs = logprobs
        self._utf8 = Utf8Stream()
        self._held = ""
        self._given = offset
        self._length = offset
        self._tokens: deque[_Token] = deque()
        self._text_state = self._id_state = StopMatcher.ROOT
        self._matcher = matcher
        self._reader = reader
        self._loops = Loops(rules.max_repetitions) if rules.max_repetitions > 1 else None
        watched = rules.sequences is not None or self._loops is not None
        self._plain = not logprobs and not watched and matcher is None and reader is None

    @property
    def num_reasoning(self) -> int:
        """Tokens of reasoning."""
        return self._reader.num_reasoning if self._reader is not None else 0

    @property
    def has_calls(self) -> bool:
        """Whether there is a call without a flaw."""
        return self._reader is not None and self._reader.has_calls

    def feed(
        self,
        ids: Sequence[int],
        logprobs: Sequence[IdLogprobs] | None = None,
        pieces: Sequence[bytes] | None = None,
    ) -> Delta | None:
        """Take new ids; return the text that is now certain, if any. `pieces`, if given, is the text of each id."""
        plain = self._plain and not self._tokens and not self.finished and len(ids) == 1 and pieces is None
        if plain and ids[0] not in self._rules.end_ids:
            return self._feed_plain(ids[0])
        singly, whole = self._reader is not None and self._reader.may_be_stuck, None
        for i, token_id in enumerate(ids):
            if self.finished:
                break
            self._take(token_id, logprobs[i] if logprobs else None, pieces[i] if pieces else None)
            if singly and not self.finished:
                whole = joined(whole, self._release_calls())
        return joined(whole, self._flush() if self.finished else self._release(self._certain()))

    def _feed_plain(self, token_id: int) -> Delta | None:
        """A cheaper path for the usual case: nothing is held back, and the id does not end the choice."""
        texts, start = self._rules.texts, self._length
        data = self._detokenizer.push(token_id)
        text = self._utf8.feed(data) if data else ""
        self.num_tokens += 1
        self._length += len(text)
        if text and (texts is None or texts.firsts.isdisjoint(text)):
            self._given = self._length
            return Delta(self.index, text, (token_id,))
        self._held = text
        self._tokens.append(_Token(token_id, start, self._length, data, None))
        may_stop = self.num_tokens >= self._rules.min_tokens
        if texts is not None and text and self._match_text(texts, text, start, may_stop=may_stop):
            return self._flush()
        return self._release(self._certain())

    def finish(self, reason: FinishReason) -> Delta | None:
        """The engine has no more ids. Returns what was held back for a stop that did not come.

        A character that never became whole is dropped.
        """
        if self.finished:
            return None
        self.finished = ChoiceFinished(self.index, reason)
        return self._flush()

    def _take(self, token_id: int, logprobs: IdLogprobs | None, piece: bytes | None) -> None:
        self.num_tokens += 1
        rules, start = self._rules, self._length
        may_stop = self.num_tokens > rules.min_tokens
        if may_stop and (token_id in rules.token_ids or token_id in rules.eos_ids):
            matched = token_id if token_id in rules.token_ids else None
            self._check_end(matched)
            data = self._bytes(token_id, piece) if rules.include_in_text and matched is not None else b""
            self._append(token_id, data, logprobs)
            self._end(self._length, matched)
            return
        if self._matcher is not None and not self._matcher.take((token_id,) if piece is None else tuple(piece)):
            raise _not_kept()
        text = self._append(token_id, self._bytes(token_id, piece), logprobs)
        may_stop = self.num_tokens >= rules.min_tokens
        if rules.texts is not None and text and self._match_text(rules.texts, text, start, may_stop=may_stop):
            return
        if rules.sequences is not None:
            self._match_ids(rules.sequences, token_id, may_stop=may_stop)
        if self._matcher is not None and not self.finished and self._matcher.must_end:
            self._complete()
        if self._loops is not None and self._loops.push(token_id) and may_stop and not self.finished:
            whole = self._matcher is None or self._matcher.may_end
            self._end(self._length, REPETITION, FinishReason.STOP if whole else FinishReason.LENGTH)

    def _check_end(self, matched: MatchedStop | None) -> None:
        """The model's own end may come only where the text is complete."""
        if self._matcher is not None and matched is None and not self._matcher.may_end:
            raise _not_kept()

    def _complete(self) -> None:
        """The constraint leaves nothing to add."""
        if self.num_tokens < self._rules.min_tokens:
            raise InvalidRequest(
                f"the constraint was fulfilled after {self.num_tokens} tokens, fewer than min_tokens",
                param="min_tokens",
            )
        self._end(self._length, None)

    def _bytes(self, token_id: int, piece: bytes | None) -> bytes:
        return self._detokenizer.push(token_id) if piece is None else piece

    def _append(self, token_id: int, data: bytes, logprobs: IdLogprobs | None) -> str:
        text = self._utf8.feed(data) if data else ""
        start = self._length
        self._length += len(text)
        self._held += text
        self._tokens.append(_Token(token_id, start, self._length, data, logprobs))
        return text

    def _match_text(self, matcher: StopMatcher[str], text: str, start: int, *, may_stop: bool) -> bool:
        state = self._text_state
        if state == StopMatcher.ROOT and matcher.firsts.isdisjoint(text):
            return False
        for i, char in enumerate(text):
            state = matcher.step(state, char)
            if may_stop and (stop := matcher.match(state)) is not None:
                end = start + i + 1
                matched = "".join(stop)
                self._end(end if self._rules.include_in_text else end - len(matched), self._rules.named(matched))
                return True
        self._text_state = state
        return False

    def _match_ids(self, matcher: StopMatcher[int], token_id: int, *, may_stop: bool) -> None:
        self._id_state = matcher.step(self._id_state, token_id)
        if may_stop and (stop := matcher.match(self._id_state)) is not None:
            first = self._tokens[-len(stop)]
            self._end(self._length if self._rules.include_in_text else first.start, tuple(stop))

    def _end(self, cut: int, matched: MatchedStop | None, reason: FinishReason = FinishReason.STOP) -> None:
        """Cut the text. The token in which the stop begins is listed whole; tokens after the cut have no logprobs."""
        self._held = self._held[: cut - self._given]
        self._length = cut
        self.finished = ChoiceFinished(self.index, reason, matched)
        for token in self._tokens:
            if token.start >= cut:
                token.logprobs = None

    def _certain(self) -> int:
        """The offset before which the text is certain: no stop, as text or as ids, can still begin there."""
        certain = self._length
        if self._text_state:
            assert self._rules.texts is not None
            certain -= self._rules.texts.depth(self._text_state)
        if self._id_state:
            assert self._rules.sequences is not None
            certain = min(certain, self._tokens[-self._rules.sequences.depth(self._id_state)].start)
        return certain

    def _release(self, upto: int) -> Delta | None:
        if upto <= self._given:
            return None
        base, text = self._given, self._held[: upto - self._given]
        self._held = self._held[upto - self._given :]
        self._given = upto
        tokens: list[_Token] = []
        while self._tokens and self._tokens[0].start < upto and self._tokens[0].end <= upto:
            tokens.append(self._tokens.popleft())
        parts = self._reader.read(base, text, tokens) if self._reader is not None else None
        return self._delta(text, tokens, parts)

    def _release_calls(self) -> Delta | None:
        """A model that has made the same call three times would make it until the limit: the choice ends."""
        delta = self._release(self._certain())
        if self._reader is not None and self._reader.is_stuck and self.num_tokens >= self._rules.min_tokens:
            self._end(self._length, REPETITION)
        return delta

    def _flush(self) -> Delta | None:
        """The choice has ended."""
        tokens = list(self._tokens)
        self._tokens.clear()
        base, text, self._held = self._given, self._held, ""
        self._given = self._length
        parts = None
        if self._reader is not None:
            parts = self._reader.read(base, text, tokens) + self._reader.finish()
        return self._delta(text, tokens, parts) if text or tokens or parts else None

    def _delta(self, text: str, tokens: list[_Token], parts: tuple[AnswerEvent, ...] | None) -> Delta:
        entries = tuple(self._entry(t, t.logprobs) for t in tokens if t.logprobs) if self._logprobs else None
        return Delta(self.index, text, tuple([t.id for t in tokens]), entries, parts)

    def _entry(self, token: _Token, logprobs: IdLogprobs) -> TokenLogprob:
        return logprob_entry(self._tokenizer, token.id, token.data, logprobs, token.start)


def joined(first: Delta | None, second: Delta | None) -> Delta | None:
    """Two that follow each other, as one."""
    if first is None or second is None:
        return first or second
    logprobs = None
    if first.logprobs is not None or second.logprobs is not None:
        logprobs = (first.logprobs or ()) + (second.logprobs or ())
    parts = None
    if first.parts is not None or second.parts is not None:
        parts = (first.parts or ()) + (second.parts or ())
    return Delta(first.index, first.text + second.text, first.token_ids + second.token_ids, logprobs, parts)


def _not_kept() -> Unsupported:
    """An engine with a grammar compiler of its own may know less than ours, and then answers freely."""
    return Unsupported(
        "the engine does not keep to the constraint of this request; simplify it, or use another engine",
        param="constraint",
    )


def logprob_entry(tokenizer: Tokenizer, token_id: int, data: bytes, logprobs: IdLogprobs, offset: int) -> TokenLogprob:
    return TokenLogprob(
        token_id=token_id,
        token=tokenizer.token_text(token_id) if not data else data.decode("utf-8", "replace"),
        bytes=data,
        logprob=logprobs.logprob,
        top=tuple(
            TopLogprob(i, tokenizer.token_text(i), tokenizer.token_bytes(i), logprob) for i, logprob in logprobs.top
        ),
        text_offset=offset,
    )


def echo_entries(
    tokenizer: Tokenizer, text: str, ids: Sequence[int], logprobs: Sequence[IdLogprobs]
) -> Iterator[TokenLogprob]:
    """The entries of an echoed prompt. A special token has width if the text spells it (a BOS that we added has none).

    A generator, because a long prompt has more entries than the event loop should make in one go.
    """
    detokenizer, utf8, offset = tokenizer.detokenizer(), Utf8Stream(), 0
    for token_id, entry in zip(ids, logprobs, strict=True):
        data = detokenizer.push(token_id)
        if not data and tokenizer.is_special(token_id) and text.startswith(tokenizer.token_text(token_id), offset):
            data = tokenizer.token_bytes(token_id)
        if data.startswith(b" ") and not text.startswith(" ", offset):
            data = data[1:]  # a space that the vocabulary puts before a word, after a special token too
        yield logprob_entry(tokenizer, token_id, data, entry, offset)
        offset += len(utf8.feed(data))
