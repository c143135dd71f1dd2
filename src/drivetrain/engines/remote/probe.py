"""What an upstream is and can do, found by asking it or, if it does not tell, by a trial."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from urllib.parse import quote

from drivetrain.core.errors import ModelNotFound
from drivetrain.core.kinds import MAX_INT
from drivetrain.engines.remote import blocking, vectors
from drivetrain.engines.remote.address import Key, Reference
from drivetrain.engines.remote.dialects import chat, drivetrain, llamacpp, vllm
from drivetrain.engines.remote.dialects.base import Dialect, UpstreamFacts, UpstreamKind
from drivetrain.engines.remote.dialects.chat import Habits, TextDialect
from drivetrain.engines.remote.dialects.drivetrain import DrivetrainDialect
from drivetrain.engines.remote.dialects.llamacpp import LlamaCppDialect
from drivetrain.engines.remote.dialects.vllm import VllmDialect
from drivetrain.engines.remote.errors import Broken, Refused, Unreadable, while_loading
from drivetrain.engines.remote.events import events
from drivetrain.engines.remote.wire import Timeouts, ask_json, asked
from drivetrain.http.address import Address

_LISTED = 10
_OWNERS = {"drivetrain": UpstreamKind.DRIVETRAIN, "llamacpp": UpstreamKind.LLAMACPP, "vllm": UpstreamKind.VLLM}
_CONTEXT_NAMES = ("max_model_len", "context_length", "context_window")


@dataclass(frozen=True, slots=True)
class Prober:
    """Raises `Refused`, `Broken`, `OSError`, and `ModelNotFound` where the model is not listed."""

    key: Key
    model: str
    timeouts: Timeouts
    context_length: int | None = None
    """The setting: no more of the upstream's context is used."""

    async def probe(self, address: Address) -> Dialect:
        card = await self._card(address)
        kind = _OWNERS.get(str(card.get("owned_by", "")).lower(), UpstreamKind.OTHER)
        if kind is UpstreamKind.DRIVETRAIN:
            return await self._drivetrain(address)
        if kind is UpstreamKind.LLAMACPP:
            ask = partial(self._ask_root, address)
            facts = await llamacpp.facts_of(ask, card)
            facts = replace(
                await self._with_embeddings(address, facts), embed_inputs=1
            )  # neighbours change its rounding
            return LlamaCppDialect(address, self._fitted(facts), ask)
        if kind is UpstreamKind.VLLM:
            return await self._vllm(address, card)
        return await self._text(address, kind, _context_length(card))

    async def _drivetrain(self, address: Address) -> Dialect:
        path = f"{address.path}/models/{quote(self.model, safe='')}"
        found = _object(await ask_json(address, "GET", path, self.key, timeouts=self.timeouts))
        if "capabilities" not in found and found.get("state") not in (None, "ready"):  # it is loaded on use
            await self._load(address)
            found = _object(await ask_json(address, "GET", path, self.key, timeouts=self.timeouts))
        card = found.get("capabilities")
        if not isinstance(card, Mapping):
            raise Broken("its description of the model has no capabilities")
        if not card.get("tokens") or not (card.get("generation") or card.get("embeddings")):
            return await self._text(address, UpstreamKind.DRIVETRAIN, _context_length(card))
        ask = partial(self._ask_root, address)
        facts = self._fitted(await drivetrain.with_specials(drivetrain.facts_of(card), ask, self.model))
        max_stops = card["limits"].get("max_stops")
        return DrivetrainDialect(address, self.model, facts, max_stops=max_stops if isinstance(max_stops, int) else 0)

    async def _load(self, address: Address) -> None:
        """By using it. The answer does not matter, but a failure to load does."""
        timeouts, body = replace(self.timeouts, ask_s=self.timeouts.first_s), {"model": self.model, "prompt": "x"}
        try:
            await ask_json(address, "POST", address.root + "/tokenize", self.key, body, timeouts=timeouts)
        except Refused as exc:
            if exc.status >= 500:
                raise

    async def _vllm(self, address: Address, card: Mapping[str, Any]) -> Dialect:
        """A vLLM either generates or embeds."""
        ask = partial(self._ask_root, address)
        path = f"{address.path.removeprefix(address.root)}/completions"
        length = _context_length(card)
        facts = None if length is None else await vllm.facts_of(ask, self.model, path, length)
        if facts is None and length is not None:
            embeds = await self._with_embeddings(address, vllm.without_generation(length))
            facts = embeds if embeds.embedding_size else None
        if facts is None:
            return await self._text(address, UpstreamKind.VLLM, length)
        return VllmDialect(address, self.model, self._fitted(facts), ask)

    async def _with_embeddings(self, address: Address, facts: UpstreamFacts) -> UpstreamFacts:
        """The vector of one letter shows whether there are any, and their size. If that fails, text is still served."""
        path = f"{address.path.removeprefix(address.root)}/embeddings"
        try:
            answer = await self._ask_root(address, "POST", path, vectors.body(self.model, ["a"]))
        except Refused as exc:
            if exc.status in vectors.NOT_OFFERED:
                return facts
            if exc.status == 500:
                return replace(facts, notes=(*facts.notes, "embeddings: none, the upstream failed when asked for one"))
            raise
        except Unreadable:
            return facts
        (vector,) = vectors.vectors_of(answer, 1)
        return replace(facts, embedding_size=len(vector))

    async def _text(self, address: Address, kind: UpstreamKind, context_length: int | None) -> Dialect:
        """Asks for one token as later requests will. A field that is refused by name is renamed or left out."""
        habits: Habits | None = Habits()
        while True:
            assert habits is not None
            try:
                await self._try(address, habits)
            except Refused as exc:
                habits = habits.after(exc)
                if habits is None:
                    raise
            else:
                facts = chat.facts_of(kind, self.context_length or context_length, habits)
                return TextDialect(address, self.model, facts, habits)

    async def _try(self, address: Address, habits: Habits) -> None:
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": "user", "content": "Hi"}],
            habits.max_tokens: 1,
            "temperature": 1.0,
            "top_p": 1.0,
            "stream": True,
        }
        if habits.tells_usage:
            body["stream_options"] = {"include_usage": True}
        path, first_s = f"{address.path}/chat/completions", self.timeouts.first_s
        async with asked(address, "POST", path, self.key, body, timeouts=self.timeouts, head_s=first_s) as answer:
            received = [event async for event in events(answer, self.key, self.timeouts)]
        if not any("choices" in event for event in received):
            raise Broken("a trial of one token gave no choice")

    async def _card(self, address: Address) -> Mapping[str, Any]:
        """The model's entry in the list. For a server without a list, the user's word counts."""
        try:
            listed = cards_of(
                await ask_json(address, "GET", f"{address.path}/models", self.key, timeouts=self.timeouts)
            )
        except Refused as exc:
            if exc.status in {404, 405, 501}:
                return {}
            raise
        for card in listed:
            if card.get("id") == self.model:
                return card
        if len(listed) == 1 and listed[0].get("owned_by") == "llamacpp":
            return listed[0]  # it has one model and answers to every name
        shown = ", ".join(public_name(str(card.get("id"))) for card in listed[:_LISTED]) or "none"
        raise ModelNotFound(f"the upstream lists no model {self.model!r}; it lists {shown}", param="model")

    async def _ask_root(self, address: Address, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Anything computed may wait behind other requests, as any first event may."""
        computed = path.endswith(("/completion", "/completions", "/embeddings"))
        timeouts = replace(self.timeouts, ask_s=self.timeouts.first_s) if computed else self.timeouts
        return await ask_json(address, method, address.root + path, self.key, body, timeouts=timeouts)

    def _fitted(self, facts: UpstreamFacts) -> UpstreamFacts:
        return replace(facts, context_length=min(facts.context_length, self.context_length or MAX_INT))


def only_model(reference: Reference, key: Key, timeouts: Timeouts) -> str:
    """The name of the one model that the upstreams list, from the first one that answers. Blocks.

    Raises `DrivetrainError`; `ModelNotFound` if there is not exactly one.
    """
    failed: Exception | None = None
    for address in reference.addresses:
        try:
            names = [
                str(card.get("id"))
                for card in cards_of(blocking.ask(address, "GET", f"{address.path}/models", key, timeouts=timeouts))
            ]
        except (OSError, Broken, Refused) as exc:
            failed = exc
            continue
        if len(names) == 1:
            return names[0]
        shown = ", ".join(map(public_name, names[:_LISTED])) or "none"
        raise ModelNotFound(f"the upstream lists {shown}; name one of them with --model", param="model")
    assert failed is not None
    raise while_loading(failed) from failed


def cards_of(found: Any) -> list[Mapping[str, Any]]:
    cards = found.get("data") if isinstance(found, dict) else None
    if not isinstance(cards, list) or not all(isinstance(card, dict) for card in cards):
        raise Broken("its list of models is not valid")
    return cards


def _object(found: Any) -> Mapping[str, Any]:
    if not isinstance(found, Mapping):
        raise Broken("its description of the model is not valid")
    return found


def public_name(model: str) -> str:
    """llama.cpp names a model by its path on that machine, which stays private."""
    return model.replace("\\", "/").rpartition("/")[2] if model.startswith("/") or "\\" in model else model


def _context_length(card: Mapping[str, Any]) -> int | None:
    lengths = (card.get(name) for name in _CONTEXT_NAMES)
    return next((n for n in lengths if type(n) is int and 0 < n < MAX_INT), None)
