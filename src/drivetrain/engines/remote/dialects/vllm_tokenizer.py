"""Texts to ids and back in front of vLLM's own server, over its `/tokenize` and `/detokenize`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from drivetrain.core.errors import EngineFailed
from drivetrain.core.messages import Message
from drivetrain.core.prompt import Prompt
from drivetrain.engines.base.frame import frame
from drivetrain.engines.remote.blocking import Ask
from drivetrain.engines.remote.dialects.base import AskUpstream, Learn, UpstreamFacts, messages_json
from drivetrain.engines.remote.spellings import SUSPICIOUS
from drivetrain.text.pieces import byte_level_bytes

MARKS = tuple(map(chr, range(0xE000, 0xE040)))
"""Private characters, put into texts and taken out of their ids again."""

REPLACEMENT = "�"

MOST_KEPT = 4096
"""Callers' words to remember; past this number, only those that are special tokens."""


def split_question(model: str, text: str, *, framed: bool = False, spelled: bool = False) -> dict[str, Any]:
    """A body for `/tokenize`. `framed`: with the ids that a text begins with; `spelled`: with the pieces."""
    return {"model": model, "prompt": text, "add_special_tokens": framed, "return_token_strs": spelled}


class VllmSplitter:
    """vLLM renders chats itself and takes each name of a special token for that token. So a name in a message is broken
    up with a character that no message contains, and that character's ids are taken out again. Names known to be words
    stay whole, as with an engine in this process; templates look for them too."""

    def __init__(self, ask: Ask, model: str, facts: UpstreamFacts) -> None:
        self._ask = ask
        self._model = model
        self._plain_names = facts.plain_names
        self._special: dict[str, bool] = dict.fromkeys(facts.specials, True)
        self._bos: list[int] | None = None

    def encode(self, prompt: Prompt) -> list[int]:
        if prompt.messages is not None:
            return self._chat(prompt.messages)
        ids = self._split(prompt.text, framed=prompt.add_bos)
        if not prompt.add_bos:
            return ids
        if self._bos is None:
            self._bos = frame(self._split("a"), self._split("a", framed=True))
        spelled = len(self._bos) > 0 and ids[: 2 * len(self._bos)] == self._bos * 2
        return ids[len(self._bos) :] if spelled else ids

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._ask("/detokenize", {"model": self._model, "tokens": list(ids)})["prompt"])

    def _chat(self, messages: Sequence[Message]) -> list[int]:
        texts = [message.text for message in messages]
        spelled = self._specials_in(texts)
        if not spelled:
            return self._rendered(messages, texts)
        for mark in [mark for mark in MARKS if not any(mark in text for text in texts)][:4]:
            broken = [_broken_up(text, spelled, mark) for text in texts]
            ids = _without(self._rendered(messages, broken), self._ids_of(mark), sum(t.count(mark) for t in broken))
            if ids is not None:
                return ids
        raise EngineFailed("the upstream cannot be made to take a special token's name in a message as plain text")

    def _rendered(self, messages: Sequence[Message], texts: Sequence[str]) -> list[int]:
        sent = [one | {"content": text} for one, text in zip(messages_json(messages), texts, strict=True)]
        return [int(i) for i in self._ask("/tokenize", {"model": self._model, "messages": sent})["tokens"]]

    def _specials_in(self, texts: Sequence[str]) -> list[str]:
        """The longest first. The upstream is asked once about each text that looks like one."""
        found = {match for text in texts for match in SUSPICIOUS.findall(text)} - self._plain_names
        known = self._special
        found |= {name for name, is_one in known.items() if is_one and any(name in text for text in texts)}
        if new := sorted(found - known.keys()):
            answer = self._ask("/tokenize", split_question(self._model, "\n".join(new), spelled=True))
            strings = set(answer["token_strs"])
            known = known | {name: name in strings for name in new}
            few = len(known) <= MOST_KEPT
            self._special = {name: is_one for name, is_one in known.items() if few or is_one}
        return sorted((name for name in found if known[name]), key=len, reverse=True)

    def _ids_of(self, mark: str) -> list[int]:
        """As the upstream splits it in the middle of a special token's name."""
        return self._split(f"<{mark}|")[1:-1]

    def _split(self, text: str, *, framed: bool = False) -> list[int]:
        if not text and not framed:
            return []
        return [int(i) for i in self._ask("/tokenize", split_question(self._model, text, framed=framed))["tokens"]]


def _broken_up(text: str, spelled: Iterable[str], mark: str) -> str:
    for name in spelled:
        text = text.replace(name, f"{name[0]}{mark}{name[1:]}")
    return text


def _without(ids: Sequence[int], run: Sequence[int], count: int) -> list[int] | None:
    """`ids` without each `run`; None if there are not exactly `count` of them."""
    kept: list[int] = []
    found = i = 0
    while i < len(ids):
        if run and list(ids[i : i + len(run)]) == list(run):
            found, i = found + 1, i + len(run)
        else:
            kept.append(ids[i])
            i += 1
    return kept if found == count else None


class Speller:
    """What ids spell on one upstream, asked once each.

    None for an id that is only a part of a character, which cannot be asked for alone.
    """

    def __init__(self, ask: AskUpstream, model: str, specials: Mapping[str, int]) -> None:
        self._ask = ask
        self._model = model
        self._known: dict[int, bytes | None] = {i: text.encode() for text, i in specials.items()}
        self._specials = frozenset(specials.values())
        self._mark = next(iter(specials.items()), None)

    async def spell(self, ids: Iterable[int], learn: Learn) -> None:
        new = [i for i in dict.fromkeys(ids) if i not in self._known]
        for token_id, text in zip(new, await self._texts(new) if new else (), strict=True):
            self._note(token_id, None if REPLACEMENT in text else text.encode(), learn)

    async def spell_text(self, ids: Sequence[int], learn: Learn) -> None:
        """As `spell`, for ids in sequence: parts of a character are found from the whole of it."""
        await self.spell(ids, learn)
        for known, run in groupby(ids, lambda i: self._known[i] is not None):
            if not known:
                await self._spell_parts(list(run), learn)

    async def pieces(self, ids: Sequence[int], text: str, learn: Learn) -> tuple[bytes, ...]:
        """What each id adds to their text. If that is unknown, the last one that is not special adds it all."""
        if len(ids) > 1:
            await self.spell(ids, learn)
            each = [b"" if i in self._specials else self._known[i] or b"" for i in ids]
            if b"".join(each) == text.encode():
                return tuple(each)
        last = max((at for at, i in enumerate(ids) if i not in self._specials), default=len(ids) - 1)
        return tuple(text.encode() if at == last else b"" for at in range(len(ids)))

    async def _spell_parts(self, ids: list[int], learn: Learn) -> None:
        text = await self._decoded(ids)
        if REPLACEMENT in text:
            return
        found = await self._ask("POST", "/tokenize", split_question(self._model, text, spelled=True))
        pieces = [str(piece) for piece in found["token_strs"]]
        for to_bytes in (byte_level_bytes, _byte_fallback):
            spelled = [to_bytes(piece) for piece in pieces]
            if found["tokens"] == ids and b"".join(spelled) == text.encode():
                for token_id, data in zip(ids, spelled, strict=True):
                    self._note(token_id, data, learn)
                return

    async def _texts(self, ids: Sequence[int]) -> list[str]:
        """All in one query, with a special token between them; each alone if that cannot be taken apart."""
        if self._mark is not None:
            mark, mark_id = self._mark
            between = [mark_id, *(i for token_id in ids for i in (token_id, mark_id))]
            parts = (await self._decoded(between)).split(mark)
            if len(parts) == len(ids) + 2:
                return parts[1:-1]
        return [await self._decoded([token_id]) for token_id in ids]

    async def _decoded(self, ids: Sequence[int]) -> str:
        return str((await self._ask("POST", "/detokenize", {"model": self._model, "tokens": list(ids)}))["prompt"])

    def _note(self, token_id: int, data: bytes | None, learn: Learn) -> None:
        self._known[token_id] = data
        if data is not None:
            learn(token_id, data)


def _byte_fallback(piece: str) -> bytes:
    """`<0xE4>`; anything else is plain text."""
    return bytes((int(piece[3:5], 16),)) if len(piece) == 6 and piece.startswith("<0x") else piece.encode()
