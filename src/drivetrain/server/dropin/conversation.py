"""The model's prompt form as FastChat's conversation template: a style, the text around the messages, and the stops.

The worker renders three small chats, and the text around their messages is taken apart: so this works for families and
for chat templates alike. FastChat's styles cannot express every form; docs/guides/dropin.md tells what happens then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from drivetrain.core.errors import InvalidRequest, Unsupported
from drivetrain.core.worker import WorkerPort

_SYSTEM, _FIRST, _ANSWER, _SECOND = "Bassoon", "Kumquat", "Wombat", "Zeppelin"
"""Words that occur in no template."""


class Style(IntEnum):
    """The values of FastChat's `SeparatorStyle` that are needed here.

    All write the system text, then each message as its role's name, a joint, the text and a separator, and then the
    assistant's name. The joint is empty, or `: ` in the last two. LLAMA2 puts the system text into the first message.
    LLAMA2 and FALCON_CHAT leave out an empty system text together with the text around it.
    """

    NO_COLON_SINGLE = 4
    NO_COLON_TWO = 5
    LLAMA2 = 7
    FALCON_CHAT = 15
    DEEPSEEK_CHAT = 17


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """`sep` follows a user's message, `sep2` an assistant's."""

    style: Style
    user: str
    assistant: str
    sep: str
    sep2: str
    system_template: str = "{system_message}"
    system_message: str = ""


PLAIN = Form(style=Style.NO_COLON_SINGLE, user="User: ", assistant="Assistant: ", sep="\n", sep2="\n")
"""For engines without token ids, which do not show how they render, and forms that cannot render our chats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """The text around the messages of a chat. `system` is None if the form takes no system message."""

    first: str
    """Before the first message of a chat without a system message."""
    last: str
    """After the last message, where the answer begins."""
    answer: str
    """Between a question and its answer."""
    question: str
    """Between an answer and the next question."""
    system: tuple[str, str] | None
    """Before a system text, and between it and the first question."""


async def conversation(worker: WorkerPort) -> dict[str, Any]:
    """The fields of FastChat's `Conversation`."""
    try:
        form = form_of(await _around(worker))
    except InvalidRequest:
        form = PLAIN
    return {
        "name": worker.metadata.family,
        "system_template": form.system_template,
        "system_message": form.system_message,
        "roles": [form.user, form.assistant],
        "messages": [],
        "offset": 0,
        "sep_style": int(form.style),
        "sep": form.sep,
        "sep2": form.sep2,
        "stop_str": list(worker.metadata.stop) or None,
        "stop_token_ids": None,
    }


def form_of(around: Around) -> Form:
    if around.first == "[INST] " and around.answer == f"{around.last} ":
        return _llama2(around)
    spaced = around.last.endswith(":") and around.answer == f"{around.last} "
    return _colons(around) if spaced and around.first.endswith(": ") else _no_colons(around)


def _llama2(around: Around) -> Form:
    before, after = around.system or ("", "")
    return Form(
        style=Style.LLAMA2,
        user="[INST]",
        assistant=around.last.strip(),
        sep=" ",
        sep2=around.question.removesuffix(around.first),
        system_template=_framed(before, after),
    )


def _colons(around: Around) -> Form:
    names = _Names(around, last=around.last.removesuffix(":"), joint=": ")
    conditional = names.single and (around.system is None or names.after_system == names.sep)
    style = Style.FALCON_CHAT if conditional else Style.DEEPSEEK_CHAT
    return names.form(style, after_system="" if conditional else names.after_system)


def _no_colons(around: Around) -> Form:
    """If a form begins a new answer differently from an earlier one, the new one counts."""
    names = _Names(around, last=around.last, joint="")
    style = Style.NO_COLON_SINGLE if names.single else Style.NO_COLON_TWO
    return names.form(style, after_system=names.after_system)


class _Names:
    """Finds where a separator ends and a name begins between two messages.

    `single`: the same separator follows user and assistant.
    """

    def __init__(self, around: Around, *, last: str, joint: str) -> None:
        question, first = around.question.removesuffix(joint), around.first.removesuffix(joint)
        before_system, after_system = around.system or ("", "")
        self._framed = (
            around.system is not None and after_system.endswith(joint) and not before_system.startswith(around.first)
        )
        after_system = after_system.removesuffix(joint)
        starts = [question, first, after_system] if self._framed else [question, first]
        self.user = _common_end(starts)
        self.sep = question.removesuffix(self.user)
        self.single = bool(self.sep and self.user and last.startswith(self.sep) and last != self.sep)
        if not self.single:
            shared = _common_start([last, question])
            rest = question[len(shared) :]
            self.single = bool(shared and rest and last != shared and all(text.endswith(rest) for text in starts))
            self.sep, self.user = (shared, rest) if self.single else ("", self.user)
        self.assistant = last.removeprefix(self.sep)
        self.sep2 = question.removesuffix(self.user)
        self.after_system = after_system.removesuffix(self.user) if self._framed else ""
        self._before_system = before_system
        self._preface = first.removesuffix(self.user)

    def form(self, style: Style, *, after_system: str) -> Form:
        before, message = self._preface, ""
        if self._framed:
            before, default = self._before_system, self._preface
            if default.startswith(before) and default.endswith(self.after_system):
                message = default[len(before) : len(default) - len(self.after_system)]
        return Form(
            style=style,
            user=self.user,
            assistant=self.assistant,
            sep=self.sep,
            sep2=self.sep2,
            system_template=_framed(before, after_system),
            system_message=message,
        )


def _framed(before: str, after: str) -> str:
    """A format string, which FastChat fills with the system text."""
    return "{system_message}".join(text.replace("{", "{{").replace("}", "}}") for text in (before, after))


def _common_start(texts: Sequence[str]) -> str:
    shortest = min(texts, key=len)
    differs = (i for i, letter in enumerate(shortest) if any(text[i] != letter for text in texts))
    return shortest[: next(differs, len(shortest))]


def _common_end(texts: Sequence[str]) -> str:
    return _common_start([text[::-1] for text in texts])[::-1]


async def _around(worker: WorkerPort) -> Around:
    """Raises `InvalidRequest` if it cannot be found out."""
    first, last = _split(await _rendered(worker, ("user", _FIRST)), _FIRST)
    chat = await _rendered(worker, ("user", _FIRST), ("assistant", _ANSWER), ("user", _SECOND))
    answer, rest = _split(_split(chat, _FIRST)[1], _ANSWER)
    question, _ = _split(rest, _SECOND)
    return Around(first=first, last=last, answer=answer, question=question, system=await _around_system(worker))


async def _around_system(worker: WorkerPort) -> tuple[str, str] | None:
    try:
        chat = await _rendered(worker, ("system", _SYSTEM), ("user", _FIRST))
        return _split(_split(chat, _FIRST)[0], _SYSTEM)
    except InvalidRequest:
        return None


async def _rendered(worker: WorkerPort, *messages: tuple[str, str]) -> str:
    """Without the token that the tokenizer puts in front by itself, because it does so for FastChat's prompts too."""
    ids = await worker.tokenize(messages=[{"role": role, "content": text} for role, text in messages])
    own = await worker.tokenize("")
    return await worker.detokenize(ids[len(own) :] if ids[: len(own)] == own else ids)


def _split(text: str, word: str) -> tuple[str, str]:
    before, found, after = text.partition(word)
    if not found:
        raise Unsupported("this protocol cannot be used: the prompt form changes the text of a message")
    return before, after
