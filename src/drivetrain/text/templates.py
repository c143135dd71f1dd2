"""The chat template that came with the weights: messages in, a prompt out whose spans are marked ours or theirs."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from drivetrain.core.errors import InvalidRequest, LoadFailed
from drivetrain.core.messages import ImagePart, Message, TextPart
from drivetrain.core.prompt import Prompt, Segment
from drivetrain.text.spans import find_specials

if TYPE_CHECKING:
    from drivetrain.text.sandbox import BoundedEnvironment

MAX_SOURCE_CHARS = 250_000
MAX_REASON_CHARS = 400
TRIAL_SECONDS = 0.5

_PRIVATE = range(0xF0000, 0x10FFFE)
_ESCAPED = re.compile(r"\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}")
_MARK = "7294016358204917"  # digits, so that no change of case loses it
_DUMP = "3860257149025836"


class TemplateRefused(Exception):
    """The template said no to these messages (`raise_exception`)."""


class ChatTemplate:
    """Untrusted, so it runs in the sandbox, under a lock: one rendering at a time.

    Where the messages spell a special token, other characters stand in for that spelling while the template runs; in
    the result such a span is literal.
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
        self._special_tokens = dict(special_tokens)
        self._special_strings = special_strings - {""}
        self._max_chars = max_output_chars
        self._max_seconds = max_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._environment, self._template = _compile(source)
        self._wants_parts, self.takes_images = self._content_shape()

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> Prompt:
        """Raises `InvalidRequest` when the template refuses these messages, fails on them or runs past its bounds."""
        texts = [part.text for message in messages for part in message.content if isinstance(part, TextPart)]
        hidden = _Hidden(texts, self._special_strings)
        shaped = [self._shape(message, hidden) for message in messages]
        try:
            text = self._run(shaped, self._max_seconds, add_generation_prompt=add_generation_prompt)
            text.encode()
        except UnicodeEncodeError as exc:
            raise InvalidRequest("the model's chat template makes a lone surrogate", param="messages") from exc
        except InvalidRequest as exc:
            raise InvalidRequest(hidden.shown(exc.message), param=exc.param) from exc.__cause__
        return Prompt.join(hidden.split(text), add_bos=False)

    def end_of_turn(self) -> str | None:
        """The special token that follows an assistant's answer: it ends an answer, whatever the config says of EOS."""
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
        """Whether content must be a list of parts even without an image, and whether images have a place in it."""
        text = {"type": "text", "text": _MARK, _DUMP: _DUMP}
        with_text = self._trial([text])
        with_image = self._trial([{"type": "image", _DUMP: _DUMP}, text])
        reads_parts = _MARK in with_text and _DUMP not in with_text
        shows_image = _MARK in with_image and _DUMP not in with_image and with_image != with_text
        return reads_parts and _MARK not in self._trial(_MARK), shows_image

    def _trial(self, content: object) -> str:
        """What the template makes of one message; nothing where it refuses it."""
        try:
            chat = [{"role": "user", "content": content}]
            return self._run(chat, min(self._max_seconds, TRIAL_SECONDS), add_generation_prompt=True)
        except InvalidRequest:
            return ""

    def _shape(self, message: Message, hidden: _Hidden) -> dict[str, Any]:
        if message.images and not self.takes_images:
            raise InvalidRequest("the model's chat template has no place for images", param="messages")
        parts = [
            {"type": "image"} if isinstance(part, ImagePart) else {"type": "text", "text": hidden.next_text()}
            for part in message.content
        ]
        if message.images or self._wants_parts:
            return {"role": message.role, "content": parts}
        return {"role": message.role, "content": "".join(part["text"] for part in parts)}

    def _run(self, messages: list[dict[str, Any]], max_seconds: float, *, add_generation_prompt: bool) -> str:
        from drivetrain.text.sandbox import Budget, LimitPassed

        given = {
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
                for piece in self._template.generate(**given):
                    length += len(piece)
                    budget.size(length)
                    pieces.append(piece)
            except TemplateRefused as exc:
                raise _invalid(f"refuses these messages: {exc}") from exc
            except LimitPassed as exc:
                raise _invalid(f"ran past its limit of {exc}") from exc
            except Exception as exc:
                raise _invalid(f"fails on these messages ({type(exc).__name__}: {exc})") from exc
            finally:
                self._environment.budget = Budget(0, 0)
        return "".join(pieces)


class _Hidden:
    """The texts of one rendering, in order, with stand-ins for each character that helps to spell a special token.

    The stand-ins are private-use characters that occur in none of the texts, so nobody can forge them; they are one for
    one, so whatever the template does (trim, cut, repeat, drop, reorder) each is still known for what it is.
    """

    def __init__(self, texts: Sequence[str], specials: frozenset[str]) -> None:
        spelled = _spelled(texts, specials)
        pieces = {text[a:b] for text, spans in zip(texts, spelled, strict=True) for a, b in spans}
        chars: set[str] = set().union(*pieces)
        taken = set().union(*texts) if chars else set()
        if chars:  # written out as JSON in ASCII, a stand-in must not be mistaken for what somebody said
            taken |= {json.loads(f'"{pair}"') for text in texts for pair in _ESCAPED.findall(text)}
        free = (code for code in _PRIVATE if chr(code) not in taken)
        try:
            table = {ord(char): next(free) for char in sorted(chars)}
        except StopIteration:
            raise InvalidRequest("the messages use up all private-use characters", param="messages") from None
        self._back = {code: ord_ for ord_, code in table.items()}
        self._texts = iter([_translated(text, spans, table) for text, spans in zip(texts, spelled, strict=True)])

    def next_text(self) -> str:
        return next(self._texts)

    def shown(self, text: str) -> str:
        return text.translate(self._back)

    def split(self, text: str) -> list[Segment]:
        if not self._back:
            return [Segment(text)]
        for code in self._back:
            text = text.replace(json.dumps(chr(code))[1:-1], chr(code))  # as tojson may have written it
        pieces = re.split(f"([{''.join(map(chr, self._back))}]+)", text)
        return [Segment(self.shown(piece), literal=i % 2 == 1) for i, piece in enumerate(pieces)]


def _spelled(texts: Sequence[str], specials: frozenset[str]) -> list[list[tuple[int, int]]]:
    """Where each text spells a special token, alone or run together with its neighbours, as it is or trimmed."""
    found: list[list[tuple[int, int]]] = [[] for _ in texts]
    for trimmed in (False, True) if len(texts) > 1 else (False,):
        kept = [(len(text) - len(text.lstrip()), text.strip()) if trimmed else (0, text) for text in texts]
        spans = iter(find_specials("".join(text for _, text in kept), specials))
        start, end = next(spans, (-1, -1))
        at = 0
        for here, (skipped, text) in zip(found, kept, strict=True):
            stop = at + len(text)
            while at <= start < stop or start < at < end:
                here.append((max(start, at) - at + skipped, min(end, stop) - at + skipped))
                if end > stop:
                    break
                start, end = next(spans, (-1, -1))
            at = stop
    return found


def _translated(text: str, spans: list[tuple[int, int]], table: dict[int, int]) -> str:
    pieces, at = [], 0
    for start, end in sorted(spans):
        if end > at:
            pieces += [text[at : max(start, at)], text[max(start, at) : end].translate(table)]
            at = end
    return "".join([*pieces, text[at:]])


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
        raise LoadFailed(f"the model's chat template is broken{where}: {_one_line(str(exc.message))}{remedy}") from exc
    except (RecursionError, SyntaxError, MemoryError, ValueError) as exc:
        raise LoadFailed(f"the model's chat template cannot be compiled{remedy}") from exc


def _invalid(what: str) -> InvalidRequest:
    return InvalidRequest(f"the model's chat template {_one_line(what)}", param="messages")


def _one_line(text: str) -> str:
    """Short, on one line, and without the places in memory that some of Python's messages name."""
    line = " ".join(re.sub(r" at 0x[0-9a-f]+", "", text[: 4 * MAX_REASON_CHARS]).split())
    return line if len(line) <= MAX_REASON_CHARS else line[: MAX_REASON_CHARS - 1] + "…"


def _raise_exception(message: Any) -> None:
    raise TemplateRefused(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form[:200])
