"""The chat template that came with the weights: renders messages to a prompt whose spans are marked ours or theirs."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from drivetrain.core.errors import Cancelled, InvalidRequest, LoadFailed, one_line
from drivetrain.core.messages import ImagePart, Message, TextPart
from drivetrain.core.prompt import Prompt, Segment, find_specials
from drivetrain.text.provenance import OURS, THEIRS, Traced, concat, traced, written

if TYPE_CHECKING:
    from drivetrain.text.sandbox import BoundedEnvironment

MAX_SOURCE_CHARS = 250_000
MAX_REASON_CHARS = 400
TRIAL_SECONDS = 0.5

_RUNS = re.compile(b"%b+|%b+" % (OURS, THEIRS))
_MARK = "7294016358204917"  # digits survive a change of case
_DUMP = "3860257149025836"


class TemplateRefused(Exception):
    """The template rejected these messages (`raise_exception`)."""


class ChatTemplate:
    """Untrusted, so it runs in the sandbox, under a lock: one rendering at a time.

    The template's own text, the special tokens that it names and the roles are ours. The messages' text is literal,
    whatever the template does to it, and so is text that cannot be traced.
    """

    def __init__(
        self,
        source: str,
        *,
        special_tokens: Mapping[str, str],
        special_strings: frozenset[str],
        max_output_chars: int = 8_000_000,
        max_seconds: float = 2.0,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._special_tokens = {name: written(token) for name, token in special_tokens.items()}
        self._special_strings = special_strings - {""}
        self._max_chars = max_output_chars
        self._max_seconds = max_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._environment, self._template = _compile(source)
        self._wants_parts, self.takes_images = self._content_shape()

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> Prompt:
        """Raises `InvalidRequest` if the template rejects these messages, fails on them or exceeds its limits."""
        shaped = [self._shape(message) for message in messages]
        try:
            text = self._run(shaped, self._max_seconds, add_generation_prompt=add_generation_prompt)
            text.encode()
        except UnicodeEncodeError as exc:
            raise InvalidRequest("the model's chat template makes a lone surrogate", param="messages") from exc
        return Prompt(tuple(_segments(text)))

    def end_of_turn(self) -> str | None:
        """The special token that follows an assistant's answer: it ends an answer, whatever EOS the config names."""
        chat = [Message("user", (TextPart("x"),)), Message("assistant", (TextPart(_MARK),))]
        try:
            _, mark, after = self.render(chat, add_generation_prompt=False).text.rpartition(_MARK)
        except InvalidRequest:
            return None
        spans = find_specials(after, self._special_strings)
        if not mark or not spans or after[: spans[0][0]].strip():
            return None
        return after[slice(*spans[0])]

    def _content_shape(self) -> tuple[bool, bool]:
        """Whether content must be a list of parts even without an image, and whether it can hold images."""
        text = {"type": "text", "text": _MARK, _DUMP: _DUMP}
        with_text = self._trial([text])
        with_image = self._trial([{"type": "image", _DUMP: _DUMP}, text])
        reads_parts = _MARK in with_text and _DUMP not in with_text
        shows_image = _MARK in with_image and _DUMP not in with_image and with_image != with_text
        return reads_parts and _MARK not in self._trial(_MARK), shows_image

    def _trial(self, content: object) -> str:
        """What the template makes of one message, or "" if it fails."""
        try:
            chat = [{"role": "user", "content": content}]
            return self._run(chat, min(self._max_seconds, TRIAL_SECONDS), add_generation_prompt=True)
        except InvalidRequest:
            return ""

    def _shape(self, message: Message) -> dict[str, Any]:
        if message.images and not self.takes_images:
            raise InvalidRequest("the model's chat template has no place for images", param="messages")
        role = written(message.role)
        if not message.images and not self._wants_parts:
            return {"role": role, "content": traced(message.text)}
        parts = [
            {"type": written("image")}
            if isinstance(part, ImagePart)
            else {"type": written("text"), "text": traced(part.text)}
            for part in message.content
        ]
        return {"role": role, "content": parts}

    def _run(self, messages: list[dict[str, Any]], max_seconds: float, *, add_generation_prompt: bool) -> Traced:
        from drivetrain.text.sandbox import Budget, LimitPassed

        variables = {
            **self._special_tokens,
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
            "tools": None,
            "documents": None,
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }
        with self._lock:
            budget = self._environment.budget = Budget(self._max_chars, max_seconds, self._clock)
            pieces, length = [], 0
            try:
                for piece in self._template.generate(**variables):
                    length += len(piece)
                    budget.size(length)
                    pieces.append(piece)
            except TemplateRefused as exc:
                raise _invalid(f"refuses these messages: {exc}") from exc
            except Cancelled:
                raise
            except LimitPassed as exc:
                raise _invalid(f"ran past its limit of {exc}") from exc
            except Exception as exc:
                raise _invalid(f"fails on these messages ({type(exc).__name__}: {exc})") from exc
            finally:
                self._environment.budget = Budget(0, 0)
        return concat(pieces)


def _segments(text: Traced) -> Iterator[Segment]:
    for run in _RUNS.finditer(text.ours):
        start, end = run.span()
        yield Segment(str.__getitem__(text, slice(start, end)), literal=text.ours[start] == THEIRS[0])


def _compile(source: str) -> tuple[BoundedEnvironment, Any]:
    from jinja2 import TemplateError

    from drivetrain.text.sandbox import BoundedEnvironment

    environment = BoundedEnvironment()
    remedy = "; name a prompt form with the setting family, or mend the template"
    if len(source) > MAX_SOURCE_CHARS:
        raise LoadFailed(f"the model's chat template has {len(source)} characters{remedy}")
    try:
        return environment, environment.compiled(source)
    except TemplateError as exc:
        line = getattr(exc, "lineno", None)
        where = f" in line {line}" if line else ""
        raise LoadFailed(f"the model's chat template is broken{where}: {_reason(str(exc.message))}{remedy}") from exc
    except (RecursionError, SyntaxError, MemoryError, ValueError) as exc:
        raise LoadFailed(f"the model's chat template cannot be compiled{remedy}") from exc


def _invalid(what: str) -> InvalidRequest:
    return InvalidRequest(f"the model's chat template {_reason(what)}", param="messages")


def _reason(text: str) -> str:
    """Without the memory addresses in some of Python's messages."""
    reason = re.sub(r" at 0x[0-9a-f]+", "", text[: 4 * MAX_REASON_CHARS])
    return one_line(reason, MAX_REASON_CHARS)


def _raise_exception(message: Any) -> None:
    raise TemplateRefused(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form[:200])
