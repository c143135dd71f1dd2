"""What checks need to know of a server before they can ask: each thing is found once, when it is first needed."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from drivetrain.tools.conform.answers import CHAT, COMPLETIONS, Api
from drivetrain.tools.conform.asking import PROMPT, Asking
from drivetrain.tools.conform.client import Broken, Client, Unreachable
from drivetrain.tools.conform.exchange import Exchange
from drivetrain.tools.conform.reading import brief, honoured, message_of
from drivetrain.tools.conform.verdict import Failed, NotOffered, NotRun, Verdict

T = TypeVar("T")

SAMPLE_TOKENS = 24
UNKNOWN_FIELD = "drivetrain_conform_no_such_field"
UNKNOWN_MODEL = "drivetrain-conform-no-such-model"
PROMPTS = (PROMPT, "Write one sentence about the moon.", "The colours of the rainbow are")
_TELLING = (
    ("{base}{card}", ("engine", "architecture", "device", "dtype")),
    ("{root}/version", ("version",)),
    ("{root}/status", ("version",)),
    ("{root}/props", ("build_info",)),
)
ROOM_TOKENS = 200
MOST_CONTEXT = 2**24
UNKNOWN_ROOM_TOKENS = 600
GOOD_RUN = 14
"""A sample with so many characters in a row that are whole is good enough to take stops out of."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A request of which the text is known: it was asked twice and answered with the same words."""

    api: Api
    fields: dict[str, Any]
    text: str

    @property
    def clean(self) -> tuple[int, int]:
        """Where the longest run of whole characters begins and ends."""
        return max((match.span() for match in _CLEAN.finditer(self.text)), key=lambda span: span[1] - span[0])

    def cut_after(self, earlier: str) -> str:
        """A piece that comes after this one for the first time. Raises `NotRun` where the text repeats itself."""
        end = self.text.index(earlier) + len(earlier)
        for size in (3, 6, 9):
            for at in (0.8, 0.7, 0.9, 0.6):
                piece = self.cut(at, size)
                if self.text.index(piece) >= end:
                    return piece
        raise NotRun("the text repeats itself")

    def cut(self, at: float, size: int) -> str:
        """A piece of the clean run that begins at this share of it."""
        start, end = self.clean
        begin = min(start + int((end - start) * at), max(start, end - size))
        return self.text[begin : min(end, begin + size)]


_CLEAN = re.compile("[^\ufffd]+")


class Survey:
    """What breaks and fails here becomes `NotRun`: that the server cannot even do this, another case says."""

    def __init__(self, client: Client, model: str) -> None:
        self._client = client
        self._model = model
        self._found: dict[str, Any] = {}

    async def _once(self, what: str, find: Callable[[Asking], Awaitable[T]]) -> T:
        if what not in self._found:
            try:
                self._found[what] = await find(Asking(self._client, self._model))
            except Unreachable:
                raise
            except (Failed, Broken) as exc:
                self._found[what] = NotRun(f"it needs {what}: {exc}")
            except Verdict as exc:
                self._found[what] = exc
        found = self._found[what]
        if isinstance(found, Verdict):
            raise type(found)(found.said)
        value: T = found
        return value

    # Endpoints

    async def offers(self, api: Api) -> None:
        """Raises `NotOffered` or `NotRun`."""

        async def find(asking: Asking) -> bool:
            answered(await asking.post(api.path, asking.body(api, max_tokens=1)), *api.asking(""))
            return True

        await self._once(f"a plain answer of {api.path}", find)

    async def text_api(self) -> Api:
        """Chat, or completions where there is no chat."""
        try:
            await self.offers(CHAT)
        except NotOffered:
            await self.offers(COMPLETIONS)
            return COMPLETIONS
        return CHAT

    async def takes(self, api: Api, name: str, value: Any) -> bool:
        """Whether a plain request with this field is answered; by that it is not known to be honoured."""

        async def find(asking: Asking) -> bool:
            return (await asking.post(api.path, asking.body(api, max_tokens=1, **{name: value}))).status == 200

        return await self._once(f"{api.name} with {name} = {value!r}", find)

    async def steady(self, api: Api) -> dict[str, Any]:
        """What keeps a model from ending by itself, as far as the server has it."""
        return {"ignore_eos": True} if await self.takes(api, "ignore_eos", True) else {}

    async def echoes(self) -> None:
        """Raises `NotOffered` where `echo` is refused, and `NotRun` where it is ignored."""

        async def find(asking: Asking) -> bool:
            if not (await asking.generate(COMPLETIONS, echo=True)).text.startswith(PROMPT):
                raise NotRun("echo is ignored; see completions.echo")
            return True

        await self._once("a completion with echo", find)

    # The model

    async def about(self) -> dict[str, str]:
        """What the server says of itself: names and versions, as far as it tells them. Raises `Broken`."""
        asking, told = Asking(self._client, self._model), dict[str, str]()
        for path, names in _TELLING:
            place = path.format(root=asking.root, base=asking.base, card=asking.card)
            exchange = await asking.ask("GET", place)
            told |= {"server": exchange.reply_headers["server"]} if "server" in exchange.reply_headers else {}
            document = exchange.document if exchange.status == 200 else {}
            document |= capabilities if isinstance(capabilities := document.get("capabilities"), dict) else {}
            told |= {name: document[name] for name in names if isinstance(document.get(name), str)}
        return told

    async def context_length(self) -> int:
        """Raises `NotRun` where the server does not tell."""
        return await self._once("the context length", self._context_length)

    async def _context_length(self, asking: Asking) -> int:
        places: list[Any] = []
        for path in (asking.base + asking.card, f"{asking.base}/models", f"{asking.root}/props"):
            exchange = await asking.ask("GET", path)
            if exchange.status == 200:
                document = exchange.document
                listed = document.get("data")
                places += [document, *(listed if isinstance(listed, list) else [])]
        for place in filter(_is_object, places):
            for holder in (place.get("capabilities"), place, place.get("default_generation_settings")):
                for name in ("context_length", "max_model_len", "n_ctx"):
                    found = holder.get(name) if isinstance(holder, dict) else None
                    if isinstance(found, int) and not isinstance(found, bool) and found > 0:
                        if found > MOST_CONTEXT:
                            raise NotRun(f"a context of {brief(found)} tokens is too long to be filled here")
                        return found
        raise NotRun("the server does not tell its context length")

    async def long_tokens(self, most: int) -> int:
        """For an answer that lasts: so many, or what the context has room for."""
        try:
            return min(most, await self.context_length() - ROOM_TOKENS)
        except NotRun:
            return min(most, UNKNOWN_ROOM_TOKENS)

    async def sample(self, api: Api | None = None) -> Sample:
        """Of this endpoint, or of the one that there is."""
        at = api or await self.text_api()
        return await self._once(f"a text of {at.path} that comes again", lambda asking: self._sample(asking, at))

    async def _sample(self, asking: Asking, api: Api) -> Sample:
        steady = await self.steady(api)
        tries: list[dict[str, Any]] = [{**api.asking(prompt), **steady} for prompt in PROMPTS]
        if await self.takes(api, "seed", 1):
            tries += [{**steady, "temperature": 1, "seed": seed} for seed in (11, 12, 13, 14)]
        best: Sample | None = None
        for fields in tries:
            asked = {"temperature": 0, **fields, "max_tokens": SAMPLE_TOKENS}
            answer = await asking.generate(api, **asked)
            if not _CLEAN.search(answer.text):
                continue
            made = Sample(api, asked, answer.text)
            if best is None or _length(made) > _length(best):
                best = made
            if _length(best) >= GOOD_RUN:
                break
        if best is None:
            raise NotRun("the model says nothing that is text")
        if (await asking.generate(api, **best.fields)).text != best.text:
            raise NotRun("the same request is answered with other words each time; see parameters.greedy_repeats")
        return best

    async def sample_ids(self) -> list[int]:
        """The ids of the sample, as they were sampled. Raises `NotRun` where the server does not tell."""

        async def find(asking: Asking) -> list[int]:
            sample = await self.sample()
            try:
                answer = await asking.generate(sample.api, **sample.fields, return_token_ids=True)
            except NotOffered as exc:
                raise NotRun(f"the server does not tell the ids that were sampled: {exc.said}") from None
            ids = answer.first.extra.get("token_ids")
            if not ids or not all(isinstance(i, int) for i in ids):
                raise NotRun("the server does not tell the ids that were sampled")
            return list(ids)

        return await self._once("the ids of a known answer", find)

    async def ids(self, text: str) -> list[int]:
        """By `/tokenize`, as this server spells it. Raises `NotRun`."""

        async def find(asking: Asking) -> list[int]:
            for asked in ({"model": asking.model, "prompt": text}, {"content": text}):
                exchange = await asking.ask("POST", f"{asking.root}/tokenize", asked)
                found = exchange.document.get("tokens") if exchange.status == 200 else None
                if isinstance(found, list) and found and all(isinstance(i, int) for i in found):
                    return list(found)
            raise NotRun("the server does not tell the ids of a text")

        return await self._once(f"the token ids of {text!r}", find)


def answered(exchange: Exchange, *fields: str) -> None:
    """The endpoint is there and took a plain request. Raises `NotOffered` or `Failed`."""
    if exchange.status in {404, 405, 501}:
        raise NotOffered(f"{exchange.path} answers with status {exchange.status}: {message_of(exchange)}"[:300])
    honoured(exchange, dict.fromkeys(fields))


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _length(sample: Sample) -> int:
    start, end = sample.clean
    return end - start if len(set(sample.text[start:end])) > 3 else (end - start) // 4
