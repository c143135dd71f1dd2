"""The chat template that came with the weights: renders messages to a prompt whose spans are marked ours or theirs."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from drivetrain.core.errors import Cancelled, InvalidRequest, LoadFailed, one_line
from drivetrain.core.messages import Message, TextPart
from drivetrain.core.prompt import Prompt, Segment, find_specials
from drivetrain.core.tools import Tool
from drivetrain.text.message_shapes import MARK, find_shape, theirs, tools_shaped
from drivetrain.text.provenance import OURS, THEIRS, Traced, concat, written

if TYPE_CHECKING:
    from drivetrain.text.sandbox import BoundedEnvironment

MAX_SOURCE_CHARS = 250_000
MAX_REASON_CHARS = 400
TRIAL_SECONDS = 0.5

_RUNS = re.compile(b"%b+|%b+" % (OURS, THEIRS))
_SET_HERE = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "raise_exception", "strftime_now"}
    | {f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")}
)
"""Variables that no caller sets."""
_NO_VARIABLES: Mapping[str, Any] = MappingProxyType({})


class TemplateRefused(Exception):
    """The template rejected these messages (`raise_exception`)."""


class ChatTemplate:
    """Untrusted, so it runs in the sandbox, under a lock: one rendering at a time.

    The template's own text, the special tokens that it names and the roles are ours. What the messages, the tools and
    the caller's variables say is literal, whatever the template does to it, and so is text that cannot be traced.
    """

    variables: frozenset[str]
    """What a caller can set: the names that the template reads and that are not set here."""

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
        self._environment, self._template, read = _compile(source)
        self.variables = frozenset(read - _SET_HERE)
        self._shape = find_shape(self._trial, reads_tools="tools" in read)

    @property
    def takes_images(self) -> bool:
        return self._shape.takes_images

    @property
    def takes_system(self) -> bool:
        """Whether it writes a system message that comes first."""
        return self._shape.takes_system

    @property
    def writes_calls(self) -> bool:
        """Whether it writes an assistant's calls and their results."""
        return self._shape.calls is not None

    @property
    def writes_tools(self) -> bool:
        """Whether it writes the tools too."""
        return self._shape.writes_tools

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] = (),
        variables: Mapping[str, Any] = _NO_VARIABLES,
        add_generation_prompt: bool = True,
    ) -> Prompt:
        """`variables` that are not among `self.variables` are left out.

        Raises `InvalidRequest` if the template rejects these messages, fails on them or exceeds its limits.
        """
        try:
            text = self._run(
                self._shape.messages(messages),
                self._max_seconds,
                add_generation_prompt=add_generation_prompt,
                tools=tools_shaped(tools),
                variables={name: theirs(value) for name, value in variables.items() if name in self.variables},
            )
            text.encode()
        except UnicodeEncodeError as exc:
            raise InvalidRequest("the model's chat template makes a lone surrogate", param="messages") from exc
        except RecursionError as exc:
            raise InvalidRequest("the tools or their arguments are nested too deeply", param="messages") from exc
        return Prompt(tuple(_segments(text)))

    def end_of_turn(self) -> str | None:
        """The special token that follows an assistant's answer: it ends an answer, whatever EOS the config names."""
        chat = [Message("user", (TextPart("x"),)), Message("assistant", (TextPart(MARK),))]
        try:
            _, mark, after = self.render(chat, add_generation_prompt=False).text.rpartition(MARK)
        except InvalidRequest:
            return None
        spans = find_specials(after, self._special_strings)
        if not mark or not spans or after[: spans[0][0]].strip():
            return None
        return after[slice(*spans[0])]

    def _trial(self, messages: list[dict[str, Any]], tools: list[Any] | None = None) -> str:
        try:
            return self._run(messages, min(self._max_seconds, TRIAL_SECONDS), tools=tools)
        except InvalidRequest:
            return ""

    def _run(
        self,
        messages: list[dict[str, Any]],
        max_seconds: float,
        *,
        add_generation_prompt: bool = True,
        tools: list[Any] | None = None,
        variables: Mapping[str, Any] = _NO_VARIABLES,
    ) -> Traced:
        from drivetrain.text.sandbox import Budget, LimitPassed

        values = {
            **variables,
            **self._special_tokens,
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
            "tools": tools,
            "documents": None,
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }
        with self._lock:
            budget = self._environment.budget = Budget(self._max_chars, max_seconds, self._clock)
            pieces, length = [], 0
            try:
                for piece in self._template.generate(**values):
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


def _compile(source: str) -> tuple[BoundedEnvironment, Any, frozenset[str]]:
    """With the names of the variables that it reads."""
    from jinja2 import TemplateError

    from drivetrain.text.sandbox import BoundedEnvironment

    environment = BoundedEnvironment()
    remedy = "; name a prompt form with the setting family, or mend the template"
    if len(source) > MAX_SOURCE_CHARS:
        raise LoadFailed(f"the model's chat template has {len(source)} characters{remedy}")
    try:
        return environment, *environment.compiled(source)
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
