"""What checks need to know about a server. Each fact is found once, when it is first needed."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from drivetrain.tools.conform.answers import CHAT, COMPLETIONS, Api
from drivetrain.tools.conform.client import Broken, Client, Unreachable
from drivetrain.tools.conform.exchange import RecordedExchange
from drivetrain.tools.conform.reading import brief, honoured, message_of
from drivetrain.tools.conform.requester import PROMPT, Requester
from drivetrain.tools.conform.verdict import Failed, NotOffered, NotRun, Verdict

T = TypeVar("T")

SAMPLE_TOKENS = 24
UNKNOWN_FIELD = "drivetrain_conform_no_such_field"
UNKNOWN_MODEL = "drivetrain-conform-no-such-model"
PROMPTS = (PROMPT, "Write one sentence about the moon.", "The colours of the rainbow are")
_ABOUT = (
    ("{base}{card}", ("engine", "architecture", "device", "dtype")),
    ("{root}/version", ("version",)),
    ("{root}/status", ("version",)),
    ("{root}/props", ("build_info",)),
)
ROOM_TOKENS = 200
MOST_CONTEXT = 2**24
UNKNOWN_ROOM_TOKENS = 600
GOOD_RUN = 14
"""A sample with this many whole characters in a row is long enough to take stops from."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A request with a known answer: sent twice in a row, it gave the same text."""

    api: Api
    fields: dict[str, Any]
    text: str

    @property
    def clean(self) -> tuple[int, int]:
        """Where the longest run of whole characters begins and ends."""
        return max((match.span() for match in _CLEAN.finditer(self.text)), key=lambda span: span[1] - span[0])

    def cut_after(self, earlier: str) -> str:
        """A piece that first occurs after `earlier`. Raises `NotRun` if the text repeats itself."""
        end = self.text.index(earlier) + len(earlier)
        for size in (3, 6, 9):
            for at in (0.8, 0.7, 0.9, 0.6):
                piece = self.cut(at, size)
                if self.text.index(piece) >= end:
                    return piece
        raise NotRun("the text repeats itself")

    def cut(self, at: float, size: int) -> str:
        """A piece of the clean run, beginning at this fraction of it."""
        start, end = self.clean
        begin = min(start + int((end - start) * at), max(start, end - size))
        return self.text[begin : min(end, begin + size)]


_CLEAN = re.compile("[^\ufffd]+")


class Survey:
    """A failure here becomes `NotRun`: another case reports that the server cannot do even this."""

    def __init__(self, client: Client, model: str) -> None:
        self._client = client
        self._model = model
        self._found: dict[str, Any] = {}

    async def _once(self, what: str, find: Callable[[Requester], Awaitable[T]]) -> T:
        if what not in self._found:
            try:
                self._found[what] = await find(Requester(self._client, self._model))
            except Unreachable:
                raise
            except (Failed, Broken) as exc:
                self._found[what] = NotRun(f"this needs {what}: {exc}")
            except Verdict as exc:
                self._found[what] = exc
        found = self._found[what]
        if isinstance(found, Verdict):
            raise type(found)(found.reason)
        value: T = found
        return value

    # Endpoints

    async def offers(self, api: Api) -> None:
        """Raises `NotOffered` or `NotRun`."""

        async def find(requester: Requester) -> bool:
            answered(await requester.post(api.path, requester.body(api, max_tokens=1)), *api.prompt_fields(""))
            return True

        await self._once(f"a plain answer from {api.path}", find)

    async def text_api(self) -> Api:
        """Chat, or completions if there is no chat."""
        try:
            await self.offers(CHAT)
        except NotOffered:
            await self.offers(COMPLETIONS)
            return COMPLETIONS
        return CHAT

    async def takes(self, api: Api, name: str, value: Any) -> bool:
        """Whether a plain request with this field is answered. The field may still be ignored."""

        async def find(requester: Requester) -> bool:
            return (await requester.post(api.path, requester.body(api, max_tokens=1, **{name: value}))).status == 200

        return await self._once(f"{api.name} with {name} = {value!r}", find)

    async def steady(self, api: Api) -> dict[str, Any]:
        """The field that keeps a model from ending its answer, if the server has it."""
        return {"ignore_eos": True} if await self.takes(api, "ignore_eos", True) else {}

    async def echoes(self) -> None:
        """Raises `NotOffered` if `echo` is refused, and `NotRun` if it is ignored."""

        async def find(requester: Requester) -> bool:
            if not (await requester.generate(COMPLETIONS, echo=True)).text.startswith(PROMPT):
                raise NotRun("echo is ignored; see completions.echo")
            return True

        await self._once("a completion with echo", find)

    # The model

    async def about(self) -> dict[str, str]:
        """What the server says about itself: its names and versions, if it gives any. Raises `Broken`."""
        requester, facts = Requester(self._client, self._model), dict[str, str]()
        for path, names in _ABOUT:
            exchange = await requester.ask(
                "GET", path.format(root=requester.root, base=requester.base, card=requester.card)
            )
            facts |= {"server": exchange.reply_headers["server"]} if "server" in exchange.reply_headers else {}
            document = exchange.document if exchange.status == 200 else {}
            document |= capabilities if isinstance(capabilities := document.get("capabilities"), dict) else {}
            facts |= {name: document[name] for name in names if isinstance(document.get(name), str)}
        return facts

    async def context_length(self) -> int:
        """Raises `NotRun` if the server does not report it."""
        return await self._once("the context length", self._context_length)

    async def _context_length(self, requester: Requester) -> int:
        documents: list[Any] = []
        for path in (requester.base + requester.card, f"{requester.base}/models", f"{requester.root}/props"):
            exchange = await requester.ask("GET", path)
            if exchange.status == 200:
                document = exchange.document
                listed = document.get("data")
                documents += [document, *(listed if isinstance(listed, list) else [])]
        for document in filter(_is_object, documents):
            for holder in (document.get("capabilities"), document, document.get("default_generation_settings")):
                for name in ("context_length", "max_model_len", "n_ctx"):
                    found = holder.get(name) if isinstance(holder, dict) else None
                    if isinstance(found, int) and not isinstance(found, bool) and found > 0:
                        if found > MOST_CONTEXT:
                            raise NotRun(f"a context of {brief(found)} tokens is too long to fill here")
                        return found
        raise NotRun("the server does not report its context length")

    async def long_tokens(self, most: int) -> int:
        """The length of a long answer: `most` tokens, or as many as fit into the context."""
        try:
            return min(most, await self.context_length() - ROOM_TOKENS)
        except NotRun:
            return min(most, UNKNOWN_ROOM_TOKENS)

    async def sample(self, api: Api | None = None) -> Sample:
        """From this endpoint; by default, from the one that the server has."""
        chosen = api or await self.text_api()
        return await self._once(f"a repeatable answer from {chosen.path}", lambda r: self._sample(r, chosen))

    async def _sample(self, requester: Requester, api: Api) -> Sample:
        steady = await self.steady(api)
        tries: list[dict[str, Any]] = [{**api.prompt_fields(prompt), **steady} for prompt in PROMPTS]
        if await self.takes(api, "seed", 1):
            tries += [{**steady, "temperature": 1, "seed": seed} for seed in (11, 12, 13, 14)]
        shorter: list[Sample] = []
        any_text = False
        for fields in tries:
            request = {"temperature": 0, **fields, "max_tokens": SAMPLE_TOKENS}
            answer = await requester.generate(api, **request)
            made = Sample(api, request, answer.text)
            if not _CLEAN.search(answer.text):
                continue
            any_text = True
            if _length(made) < GOOD_RUN:
                shorter.append(made)
            elif (sample := await _repeated(requester, made)) is not None:
                return sample
        for made in sorted(shorter, key=_length, reverse=True):
            if (sample := await _repeated(requester, made)) is not None:
                return sample
        if not any_text:
            raise NotRun("the model answers without any text")
        raise NotRun("the same request gets a different answer each time; see parameters.greedy_repeats")

    async def sample_ids(self) -> list[int]:
        """The ids of the sample's tokens. Raises `NotRun` if the server does not return them."""

        async def find(requester: Requester) -> list[int]:
            sample = await self.sample()
            try:
                answer = await requester.generate(sample.api, **sample.fields, return_token_ids=True)
            except NotOffered as exc:
                raise NotRun(f"the server does not return the sampled ids: {exc.reason}") from None
            ids = answer.first.extra.get("token_ids")
            if not ids or not all(isinstance(i, int) for i in ids):
                raise NotRun("the server does not return the sampled ids")
            return list(ids)

        return await self._once("the ids of a known answer", find)

    async def ids(self, text: str) -> list[int]:
        """From `/tokenize`, in whichever form the server takes. Raises `NotRun`."""

        async def find(requester: Requester) -> list[int]:
            for body in ({"model": requester.model, "prompt": text}, {"content": text}):
                exchange = await requester.ask("POST", f"{requester.root}/tokenize", body)
                found = exchange.document.get("tokens") if exchange.status == 200 else None
                if isinstance(found, list) and found and all(isinstance(i, int) for i in found):
                    return list(found)
            raise NotRun("the server does not return the ids of a text")

        return await self._once(f"the token ids of {text!r}", find)


async def _repeated(requester: Requester, made: Sample) -> Sample | None:
    """With the answer that the request keeps getting. None if there is no such answer."""
    for _ in range(2):  # a server that has kept the prompt may round otherwise than at first
        text = (await requester.generate(made.api, **made.fields)).text
        if text == made.text:
            return made
        if not _CLEAN.search(text):
            break
        made = replace(made, text=text)
    return None


def answered(exchange: RecordedExchange, *fields: str) -> None:
    """The endpoint exists and accepted a plain request. Raises `NotOffered` or `Failed`."""
    if exchange.status in {404, 405, 501}:
        raise NotOffered(f"{exchange.path} answers with status {exchange.status}: {message_of(exchange)}"[:300])
    honoured(exchange, dict.fromkeys(fields))


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _length(sample: Sample) -> int:
    start, end = sample.clean
    return end - start if len(set(sample.text[start:end])) > 3 else (end - start) // 4
