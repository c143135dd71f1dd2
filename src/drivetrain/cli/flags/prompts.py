"""The input of a request, from flags, files and stdin: a prompt, or the messages of a chat, with images."""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from drivetrain.cli.flags.options import flag
from drivetrain.cli.flags.request_options import token_ids
from drivetrain.core.errors import InvalidRequest, InvalidSetting
from drivetrain.core.messages import ImagePart, Message, TextPart, parse_messages
from drivetrain.worker.settings import Settings

STDIN = "-"
_END_OF_OPTIONS = "--"
_ROLES = {"--system": "system", "--message": "user", "--assistant": "assistant"}


class _Turn(argparse.Action):
    """Collects the turns of a chat in the order of the command line."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        assert option_string is not None
        turns = [*(getattr(namespace, self.dest) or ()), (_ROLES[option_string], values)]
        setattr(namespace, self.dest, turns)


def add_input(parser: argparse.ArgumentParser, *, for_request: bool = True) -> None:
    """Without `for_request`, only what can be rendered."""
    group = parser.add_argument_group("input", "Give a chat or a prompt in one of these ways; - reads stdin.")
    turn: dict[str, Any] = {"action": _Turn, "dest": "turns", "metavar": "TEXT"}
    group.add_argument("--message", help="a user message; alternate with --assistant for a longer chat", **turn)
    group.add_argument("--assistant", help="an earlier answer of the model", **turn)
    group.add_argument("--system", help="the system message", **turn)
    group.add_argument("--messages-file", metavar="FILE", help="a JSON list of messages in the OpenAI format")
    group.add_argument("--prompt", metavar="TEXT", help="the whole prompt; no template is applied")
    group.add_argument("--prompt-file", metavar="FILE", help="the whole prompt, from a file")
    if for_request:
        group.add_argument(
            "--prompt-token-ids", metavar="IDS", type=token_ids, help="the whole prompt as token ids: 1,2,3"
        )
        text = "an image for the prompt or the last message; repeat for more"
        group.add_argument("--image", metavar="PATH|URL", action="append", default=[], help=text)


def add_text(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "text", metavar="TEXT", nargs="?", help="the last message of the user; without any input, what stdin says"
    )


def take_text(args: argparse.Namespace, unknown: list[str]) -> None:
    """Before Python 3.13, argparse does not see texts or models behind an option, nor the -- before them."""
    for name in ("texts", "models"):
        if getattr(args, name, None) == []:
            setattr(args, name, _taken(unknown, len(unknown)))
    if getattr(args, "text", "") is None:
        args.text = next(iter(_taken(unknown, 1)), None)
    if unknown == [_END_OF_OPTIONS]:
        unknown.clear()


def _taken(unknown: list[str], most: int) -> list[str]:
    """What stands at the front and is no option; behind -- nothing is one."""
    taken: list[str] = []
    ended = False
    while unknown and len(taken) < most:
        first = unknown[0]
        if first == _END_OF_OPTIONS and not ended:
            ended = True
        elif ended or first == STDIN or not first.startswith("-"):
            taken.append(first)
        else:
            break
        del unknown[0]
    return taken


def read_input(args: argparse.Namespace, settings: Settings) -> dict[str, Any]:
    """The input fields of a request; empty if none was given. Raises `InvalidSetting` or `InvalidRequest`."""
    args.turns = _with_pipe(_with_text(args), args, settings)
    named = ("turns", "messages_file", "prompt", "prompt_file", "prompt_token_ids")
    given = [name for name in named if getattr(args, name, None) is not None]
    if len(given) > 1:
        names = " and ".join(_called(name, args) for name in given)
        raise InvalidSetting(f"{names} cannot be combined; give one of them")
    if not given:
        return _from_pipe(args, settings)
    return _READ[given[0]](args, settings)


def has_input(args: argparse.Namespace) -> bool:
    """Whether there is something to answer among the arguments."""
    named = ("text", "messages_file", "prompt", "prompt_file", "prompt_token_ids")
    turns = any(role != "system" for role, _ in args.turns or ())
    return turns or any(getattr(args, name) is not None for name in named)


def only_system(args: argparse.Namespace) -> str | None:
    """The system message, where there is no other input."""
    texts = [text for _, text in args.turns or ()]
    if len(texts) > 1:
        raise InvalidSetting("--system can be given once")
    return texts[0] if texts else None


def stdin_lines(settings: Settings) -> Iterator[str]:
    """The lines of stdin that are not blank, as they come."""
    limit = _text_limit(settings)
    while data := sys.stdin.buffer.readline(limit + 1):
        line = _decoded(io.BytesIO(data), limit, "a line of stdin").strip()
        if line:
            yield line


def _called(name: str, args: argparse.Namespace) -> str:
    if name == "turns":
        return "--message" if getattr(args, "text", None) is None else "TEXT"
    return flag(name)


def _with_text(args: argparse.Namespace) -> list[tuple[str, str]] | None:
    """The turns, the last one being TEXT if that was given."""
    text, turns = getattr(args, "text", None), args.turns
    if text is None:
        return turns  # type: ignore[no-any-return]  # as argparse made it
    if turns and turns[-1][0] == "user":
        raise InvalidSetting("TEXT and a --message at the end cannot be combined; give one of them")
    return [*(turns or ()), ("user", text)]


def _with_pipe(
    turns: list[tuple[str, str]] | None, args: argparse.Namespace, settings: Settings
) -> list[tuple[str, str]] | None:
    """A system message alone is no question: the question is what is written to stdin, if that is no terminal."""
    if not turns or any(role != "system" or text == STDIN for role, text in turns) or not _is_piped(args):
        return turns
    text = _stdin_text(_text_limit(settings))
    return [*turns, ("user", text)] if text.strip() else turns


def _is_piped(args: argparse.Namespace) -> bool:
    return hasattr(args, "text") and sys.stdin is not None and not sys.stdin.isatty()


def _from_pipe(args: argparse.Namespace, settings: Settings) -> dict[str, Any]:
    """What is written to stdin, if that is no terminal."""
    if not _is_piped(args):
        return {}
    text = _stdin_text(_text_limit(settings))
    return {"messages": _with_images([user_message(text, ())], args)} if text.strip() else {}


def image_part(text: str) -> ImagePart:
    """An image by URL or path. Raises `InvalidRequest` if there is no such file."""
    if text.startswith(("data:", "http:", "https:")):
        return ImagePart(url=text)
    if not Path(text).is_file():
        raise InvalidRequest(f"there is no image file {text!r}", param="images")
    return ImagePart(path=text)


def _from_turns(args: argparse.Namespace, settings: Settings) -> dict[str, Any]:
    if sum(text == STDIN for _, text in args.turns) > 1:
        raise InvalidSetting("stdin can only be read once: give a single -")
    limit = _text_limit(settings)
    messages = [{"role": role, "content": _stdin_text(limit) if text == STDIN else text} for role, text in args.turns]
    return {"messages": _with_images(parse_messages(messages), args)}


def _from_messages_file(args: argparse.Namespace, settings: Settings) -> dict[str, Any]:
    images_bytes = settings.max_images * settings.max_image_bytes * 2  # base64, and room to spare
    text = _file_text(args.messages_file, _text_limit(settings) + images_bytes)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise InvalidRequest(f"the messages file is not JSON: {exc}", param="messages") from None
    if isinstance(data, Mapping) and "messages" in data:
        data = data["messages"]
    return {"messages": _with_images(parse_messages(data), args)}


def _from_prompt(args: argparse.Namespace, settings: Settings) -> dict[str, Any]:
    prompt = _stdin_text(_text_limit(settings)) if args.prompt == STDIN else args.prompt
    return {"prompt": prompt, **_images(args)}


def _from_prompt_file(args: argparse.Namespace, settings: Settings) -> dict[str, Any]:
    return {"prompt": _file_text(args.prompt_file, _text_limit(settings)), **_images(args)}


def _from_token_ids(args: argparse.Namespace, settings: Settings) -> dict[str, Any]:
    return {"prompt_token_ids": args.prompt_token_ids, **_images(args)}


_READ = {
    "turns": _from_turns,
    "messages_file": _from_messages_file,
    "prompt": _from_prompt,
    "prompt_file": _from_prompt_file,
    "prompt_token_ids": _from_token_ids,
}


def _images(args: argparse.Namespace) -> dict[str, Any]:
    parts = [image_part(text) for text in getattr(args, "image", [])]
    return {"images": parts} if parts else {}


def _with_images(messages: Sequence[Message], args: argparse.Namespace) -> list[Message]:
    """The messages, with the images at the start of the user's last one."""
    images = _images(args).get("images", [])
    if not images:
        return list(messages)
    last = max((i for i, message in enumerate(messages) if message.role == "user"), default=None)
    if last is None:
        raise InvalidRequest("an image needs a user message, and there is none", param="messages")
    made = list(messages)
    made[last] = Message("user", (*images, *messages[last].content))
    return made


def user_message(text: str, images: Sequence[ImagePart]) -> Message:
    return parse_messages([{"role": "user", "content": [*images, TextPart(text)] if images else text}])[0]


def _text_limit(settings: Settings) -> int:
    """No text within the limit of characters has more bytes than this."""
    return 4 * settings.max_prompt_chars


def _stdin_text(limit_bytes: int) -> str:
    if sys.stdin is None:
        raise InvalidSetting("stdin is closed; give the text another way")
    return _decoded(sys.stdin.buffer, limit_bytes, "stdin")


def _file_text(name: str, limit_bytes: int) -> str:
    if name == STDIN:
        return _stdin_text(limit_bytes)
    try:
        with open(name, "rb") as file:
            return _decoded(file, limit_bytes, name)
    except OSError as exc:
        raise InvalidRequest(f"{name} cannot be read: {exc.strerror or type(exc).__name__}", param="prompt") from exc


def _decoded(file: BinaryIO, limit_bytes: int, name: str) -> str:
    data = file.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise InvalidRequest(f"{name} has more than {limit_bytes} bytes, which is the limit", param="prompt")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as exc:
        raise InvalidRequest(f"{name} is not UTF-8 text (at byte {exc.start})", param="prompt") from None
