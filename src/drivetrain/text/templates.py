"""The chat template that came with the weights: messages in, a prompt out whose spans are marked ours or theirs."""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from drivetrain.core.errors import InvalidRequest, LoadFailed
from drivetrain.core.messages import ImagePart, Message, TextPart
from drivetrain.core.prompt import Prompt, Segment
from drivetrain.text.spans import find_specials

if TYPE_CHECKING:
    from drivetrain.text.sandbox import BoundedEnvironment

MAX_SOURCE_CHARS = 1_000_000


class ChatTemplate:
    """Untrusted, so it runs in the sandbox, under a lock: one rendering at a time.

    Where a message spells a special token, a placeholder that nothing else can spell takes its place while the
    template runs; in the result that span is literal.
    """

    def __init__(
        self,
        source: str,
        *,
        special_tokens: Mapping[str, str],
        special_strings: frozenset[str],
        max_output_chars: int = 8_000_000,
        max_seconds: float = 2.0,
    ) -> None:
        self._special_tokens = dict(special_tokens)
        self._special_strings = special_strings
        self._max_chars = max_output_chars
        self._max_seconds = max_seconds
        self._lock = threading.Lock()
        self._environment, self._template = _compile(source)
        self.takes_images = _mentions(source, "image")
        self._wants_parts = _mentions(source, "type") and not re.search(r"content\b[^%}]*\bis\s+string", source)

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> Prompt:
        """Raises `InvalidRequest` when the template refuses these messages, fails on them or runs past its bounds."""
        hidden = _Hidden(self._special_strings)
        shaped = [self._shape(message, hidden) for message in messages]
        text = self._run(shaped, add_generation_prompt=add_generation_prompt)
        return Prompt.join(hidden.split(text), add_bos=False)

    def end_of_turn(self) -> str | None:
        """The special token that follows an assistant's answer: it ends an answer, whatever the config says of EOS."""
        mark = f"\ue002{secrets.token_hex(8)}\ue002"
        chat = [Message("user", (TextPart("x"),)), Message("assistant", (TextPart(mark),))]
        try:
            after = self.render(chat, add_generation_prompt=False).text.rpartition(mark)[2]
        except InvalidRequest:
            return None
        spans = find_specials(after, self._special_strings)
        if not spans or after[: spans[0][0]].strip():
            return None
        return after[slice(*spans[0])]

    def _shape(self, message: Message, hidden: _Hidden) -> dict[str, Any]:
        if not message.images and not self._wants_parts:
            return {"role": message.role, "content": hidden.hide(message.text)}
        if message.images and not self.takes_images:
            raise InvalidRequest("the model's chat template has no place for images", param="messages")
        parts = [
            {"type": "image"} if isinstance(part, ImagePart) else {"type": "text", "text": hidden.hide(part.text)}
            for part in message.content
        ]
        return {"role": message.role, "content": parts}

    def _run(self, messages: list[dict[str, Any]], *, add_generation_prompt: bool) -> str:
        from drivetrain.text.sandbox import Budget, LimitPassed, TemplateRefused

        pieces: list[str] = []
        given = {
            **self._special_tokens,
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
            "tools": None,
            "documents": None,
        }
        with self._lock:
            budget = self._environment.budget = Budget(self._max_chars, self._max_seconds)
            length = 0
            try:
                for piece in self._template.generate(**given):
                    budget.tick()
                    length += len(piece)
                    budget.size(length)
                    pieces.append(piece)
            except TemplateRefused as exc:
                raise InvalidRequest(
                    f"the model's chat template refuses these messages: {exc}", param="messages"
                ) from exc
            except LimitPassed as exc:
                raise InvalidRequest(
                    f"the model's chat template ran past its limit of {exc}", param="messages"
                ) from exc
            except Exception as exc:
                what = f"{type(exc).__name__}: {exc}".replace("\n", " ")[:200]
                raise InvalidRequest(
                    f"the model's chat template fails on these messages ({what})", param="messages"
                ) from exc
        return "".join(pieces)


class _Hidden:
    """The spans of one rendering that spell special tokens, each behind a placeholder of its own."""

    def __init__(self, specials: frozenset[str]) -> None:
        self._specials = specials
        self._nonce = ""
        self._spans: list[str] = []

    def hide(self, text: str) -> str:
        spans = find_specials(text, self._specials)
        if not spans:
            return text
        self._nonce = self._nonce or secrets.token_hex(8)
        parts, at = [], 0
        for start, end in spans:
            parts += [text[at:start], f"\ue000{self._nonce}:{len(self._spans)}\ue001"]
            self._spans.append(text[start:end])
            at = end
        return "".join([*parts, text[at:]])

    def split(self, text: str) -> list[Segment]:
        if not self._spans:
            return [Segment(text)]
        pieces = re.split(f"\ue000{self._nonce}:(\\d+)\ue001", text)
        return [Segment(self._spans[int(p)], literal=True) if i % 2 else Segment(p) for i, p in enumerate(pieces)]


def _compile(source: str) -> tuple[BoundedEnvironment, Any]:
    from drivetrain.text.sandbox import BoundedEnvironment, TemplateError

    environment = BoundedEnvironment()
    remedy = "; name a prompt form with the setting family, or mend the template"
    if len(source) > MAX_SOURCE_CHARS:
        raise LoadFailed(f"the model's chat template has {len(source)} characters{remedy}")
    try:
        return environment, environment.compiled(source)
    except TemplateError as exc:
        line = getattr(exc, "lineno", None)
        where = f" in line {line}" if line else ""
        raise LoadFailed(f"the model's chat template is broken{where}: {exc.message}{remedy}") from exc
    except (RecursionError, SyntaxError, MemoryError, ValueError) as exc:
        raise LoadFailed(f"the model's chat template cannot be compiled{remedy}") from exc


def _mentions(source: str, word: str) -> bool:
    return re.search(rf"['\".\[]{word}\b", source) is not None
