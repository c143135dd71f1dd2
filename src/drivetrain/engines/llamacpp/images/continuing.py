"""How a choice goes on behind a prompt with images, where no ids can be put.

What was sampled is spelled in the prompt, if llama.cpp will split that into the same ids. If not, a grammar makes it
sample them once more, one by one: tokens by their ids, and those that are half a character by the characters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from drivetrain.core.errors import EngineFailed
from drivetrain.engines.llamacpp.images.prompt import ImagePrompt
from drivetrain.engines.llamacpp.tokenizer import LlamaCppTokenizer


@dataclass(frozen=True, slots=True)
class Continued:
    """`prompt` has in it what could be spelled; `forced` is what comes again first, and `grammar` makes it come."""

    prompt: ImagePrompt
    forced: tuple[int, ...] = ()
    grammar: str | None = None


def behind(prompt: ImagePrompt, ids: Sequence[int], tokenizer: LlamaCppTokenizer) -> Continued:
    """Blocks: for a thread."""
    if not ids:
        return Continued(prompt)
    try:
        tail = prompt.tail + b"".join(map(tokenizer.token_bytes, ids)).decode()
    except UnicodeDecodeError:
        tail = prompt.tail
    if tokenizer.split_whole(tail) == [*prompt.texts[-1], *ids]:
        text = prompt.text + tail[len(prompt.tail) :]
        return Continued(replace(prompt, text=text))
    return Continued(prompt, tuple(ids), grammar(ids, tokenizer))


def grammar(ids: Sequence[int], tokenizer: LlamaCppTokenizer) -> str:
    """These, then any text."""
    items: list[str] = []
    half = b""
    for token_id in ids:
        data = tokenizer.token_bytes(token_id)
        if not data or data.startswith(b"\0") or tokenizer.is_special(token_id):  # a grammar knows text only
            raise EngineFailed("llama.cpp cannot go on behind images after a token that is no text")
        half += data
        try:
            text = half.decode()
        except UnicodeDecodeError:
            continue
        items.append(f"<[{token_id}]>" if half == data else _literal(text))
        half = b""
    if half:
        raise EngineFailed("llama.cpp cannot go on behind images after half a character")
    return f"root ::= {' '.join(items)} .*"


def _literal(text: str) -> str:
    return '"' + "".join(f"\\U{ord(char):08X}" for char in text) + '"'
