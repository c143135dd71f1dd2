"""llama.cpp's own server: token ids in and out over `/completion`, chats rendered here with the model's template."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from drivetrain.core.engine import EngineRequest, IdLogprobs, PromptStep, Step, TokenStep
from drivetrain.core.errors import EngineFailed
from drivetrain.core.parameters import TOKEN_PARAMETERS, WORKER_PARAMETERS
from drivetrain.core.prompt import Prompt, apart, find_specials, own_specials
from drivetrain.core.results import FinishReason
from drivetrain.core.tokenizer import check_wanted
from drivetrain.engines.remote.blocking import Ask
from drivetrain.engines.remote.dialects.base import AskUpstream, Facts, Learn, Reader, UpstreamKind
from drivetrain.engines.remote.errors import Broken
from drivetrain.engines.remote.spellings import ENDS, SPELLED, SUSPICIOUS, frame
from drivetrain.http.address import Address

HONOURED = frozenset({
    "n", "seed", "ignore_eos", "logprobs", "temperature", "top_p", "top_k", "min_p", "typical_p",
    "repetition_penalty", "logit_bias", "suppress_tokens", "cache_salt",
})  # fmt: skip
"""Not presence and frequency penalties: llama.cpp counts the prompt's tokens for them, the contract does not. Not what
holds for a part of the answer only, such as `min_tokens`: one request is one set of rules."""

OVERSHOOT = 4
"""Ids past a limit that suffice to complete any half character, behind which llama.cpp would hide ids."""

_ORDER = ("penalties", "temperature", "top_k", "top_p", "min_p", "typ_p")
_GREEDY_ORDER = ("penalties", "temperature")
_NO_SEED = 2**32 - 1


async def facts_of(ask: AskUpstream, card: Mapping[str, Any]) -> Facts:
    """From `/props`, the model's entry in `/v1/models`, and how special tokens are split. Raises `Broken`."""
    props = await ask("GET", "/props")
    try:
        template = str(props.get("chat_template") or "") or None
        bos, eos = (str(props.get(name) or "") or None for name in ("bos_token", "eos_token"))
        spelled = [*ENDS, *filter(None, (bos, eos)), *SPELLED.findall(template or "")]
        specials = await _specials(ask, sorted(set(spelled)))
        ends = {*ENDS, eos}
        return Facts(
            kind=UpstreamKind.LLAMACPP,
            tokens=True,
            parameters=WORKER_PARAMETERS | TOKEN_PARAMETERS | HONOURED,
            context_length=int(props["default_generation_settings"]["n_ctx"]),
            max_concurrency=int(props["total_slots"]),
            vocab_size=int(card["meta"]["n_vocab"]),
            eos_ids=frozenset(i for text, i in specials.items() if text in ends),
            specials=specials,
            bos_token=bos,
            eos_token=eos,
            chat_template=template,
            dtype=str(props.get("model_ftype") or "unknown"),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise Broken("its description of the model is not one that this version reads") from exc


async def _specials(ask: AskUpstream, spellings: Sequence[str]) -> dict[str, int]:
    """Those that are one id as special tokens, and not as plain text."""
    body = {"content": "\n".join(spellings), "with_pieces": True}
    special = (await ask("POST", "/tokenize", {**body, "parse_special": True}))["tokens"]
    plain = (await ask("POST", "/tokenize", {**body, "parse_special": False}))["tokens"]
    found = {entry["piece"]: int(entry["id"]) for entry in special if isinstance(entry["piece"], str)}
    usual = {int(entry["id"]) for entry in plain}
    return {text: found[text] for text in spellings if text in found and found[text] not in usual}


class LlamaCppDialect:
    def __init__(self, address: Address, facts: Facts, ask: AskUpstream) -> None:
        self.facts = facts
        self.path = f"{address.root}/completion"
        self._ask = ask
        self._salted = False

    def body(self, request: EngineRequest, index: int) -> dict[str, Any]:
        self._salted |= request.cache_salt is not None  # it knows no salts: from then on nobody sees what it has kept
        sampling = request.sampling
        banned = set(sampling.suppress_tokens)
        biases: list[tuple[int, float | bool]] = [(i, b) for i, b in sampling.logit_bias.items() if i not in banned]
        body: dict[str, Any] = {
            "prompt": request.prompt_ids,
            "n_predict": limit_of(request) + OVERSHOOT,
            "seed": _seed(request.seeds[index]),
            "stream": True,
            "return_tokens": True,
            "return_progress": True,
            "cache_prompt": not request.seeded and not self._salted,
            "response_fields": ["stop", "stop_type", "tokens_predicted"],
            "samplers": _GREEDY_ORDER if sampling.greedy else _ORDER,
            "temperature": 0.0 if sampling.greedy else sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "typical_p": sampling.typical_p,
            "repeat_penalty": sampling.repetition_penalty,
            "repeat_last_n": request.context_length,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "logit_bias": [*biases, *((i, False) for i in sorted(banned))],  # false is minus infinity to it
            "ignore_eos": not self.facts.eos_ids <= request.stop_ids,
        }
        if request.logprobs is not None:
            body["n_probs"] = max(1, request.logprobs)
            body["post_sampling_probs"] = False
        return body

    def reader(self, request: EngineRequest, index: int, learn: Learn) -> Reader:
        return _Reader(request, index, learn, self._ask)


class _Reader:
    def __init__(self, request: EngineRequest, index: int, learn: Learn, ask: AskUpstream) -> None:
        self.over = False
        self._request = request
        self._index = index
        self._learn = learn
        self._ask = ask
        self._limit = limit_of(request)
        self._received = 0

    async def hear(self, event: Mapping[str, Any]) -> Sequence[Step]:
        try:
            if "prompt_progress" in event:
                return (PromptStep(cached_tokens=int(event["prompt_progress"]["cache"])),)
            return (self._end(event) if event["stop"] else await self._ids(event),)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as exc:
            raise Broken("an event is not what llama.cpp's API says") from exc

    async def _ids(self, event: Mapping[str, Any]) -> TokenStep:
        """One frame: mostly one id. The first one after half a character has the text of those that were left out."""
        text, predicted = str(event["content"]), int(event["tokens_predicted"])
        ids = tuple(int(i) for i in event["tokens"])
        entries = self._logprobs(event)
        lost = predicted - self._received - len(ids)
        if lost > 0:
            ids = (*await self._recover(text, lost, ids), *ids)
            entries = None if entries is None else (*[IdLogprobs(None)] * lost, *entries)
        pieces = (*[b""] * (len(ids) - 1), text.encode("utf-8", "replace"))[: len(ids)]
        for taken, token_id in enumerate(ids, 1):
            reason = self._reason(token_id)
            if reason is not None:
                self.over = True
                kept = None if entries is None else entries[:taken]
                return TokenStep(self._index, ids[:taken], kept, reason, pieces[:taken])
        return TokenStep(self._index, ids, entries, None, pieces)

    def _reason(self, token_id: int) -> FinishReason | None:
        self._received += 1
        if token_id in self._request.stop_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if self._received >= self._limit else None

    def _end(self, event: Mapping[str, Any]) -> TokenStep:
        """llama.cpp ended where we did not: at an end that is not known here, or because its context is full."""
        self.over = True
        kind = event["stop_type"]
        if kind not in {"eos", "limit"}:
            raise Broken("llama.cpp ended the answer and does not say why")
        return TokenStep(self._index, (), None, FinishReason.STOP if kind == "eos" else FinishReason.LENGTH)

    async def _recover(self, text: str, count: int, last: tuple[int, ...]) -> tuple[int, ...]:
        """The ids that the stream left out: models spell a character as the vocabulary splits it."""
        found = await self._ask("POST", "/tokenize", {"content": text})
        ids = tuple(int(i) for i in found["tokens"])
        if len(ids) != count + len(last) or ids[count:] != last:
            raise EngineFailed(f"llama.cpp's stream left out {count} tokens that cannot be worked out from its text")
        return ids[:count]

    def _logprobs(self, event: Mapping[str, Any]) -> tuple[IdLogprobs, ...] | None:
        if self._request.logprobs is None:
            return None
        found = []
        for entry in event["completion_probabilities"]:
            for told in (entry, *entry["top_logprobs"]):
                self._learn(int(told["id"]), bytes(told["bytes"]))
            top = tuple((int(t["id"]), min(0.0, float(t["logprob"]))) for t in entry["top_logprobs"])
            found.append(IdLogprobs(min(0.0, float(entry["logprob"])), top[: self._request.logprobs]))
        return tuple(found)

    @property
    def settled(self) -> bool:
        return self.over

    def close(self) -> Sequence[Step]:
        raise Broken("the stream ended before the answer did")


def limit_of(request: EngineRequest) -> int:
    left = request.context_length - len(request.prompt_ids)
    return left if request.max_tokens is None else request.max_tokens


class LlamaCppSplitter:
    """The prompt as one text. Where a caller's words spell a special token, our own are named by their ids, and all
    between them is plain text."""

    def __init__(self, ask: Ask, specials: Mapping[str, int]) -> None:
        self._ask = ask
        self._ids = specials
        self._specials = frozenset(specials)
        self._server_bos: list[int] | None = None

    def encode(self, prompt: Prompt) -> list[int]:
        check_wanted()
        if self._is_forged(prompt):
            parts = apart(prompt, self._specials)
            content = [-1 - self._ids[text] if special else text for text, special in parts]
            ids = [-1 - i if i < 0 else i for i in self._split(content, specials=False)]
        else:
            ids = self._split(prompt.text, specials=True)
        if prompt.add_bos and ids[: len(self._bos())] != self._bos():
            return self._bos() + ids
        return ids

    def _is_forged(self, prompt: Prompt) -> bool:
        """Not all special tokens are known here, so what looks like one is asked for."""
        if own_specials(prompt, self._specials) != find_specials(prompt.text, self._specials):
            return True
        words = [s.text for s in prompt.segments if s.literal and SUSPICIOUS.search(s.text)]
        return bool(words) and self._split(words, specials=True) != self._split(words, specials=False)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._ask("/detokenize", {"tokens": list(ids)})["content"])

    def _split(self, content: str | Sequence[str | int], *, specials: bool, framed: bool = False) -> list[int]:
        body = {"content": content, "parse_special": specials, "add_special": framed}
        return [int(i) for i in self._ask("/tokenize", body)["tokens"]] if content else []

    def _bos(self) -> list[int]:
        """What the server begins a text with, by example."""
        if self._server_bos is None:
            plain, framed = self._split("a", specials=False), self._split("a", specials=False, framed=True)
            self._server_bos = frame(plain, framed)
        return self._server_bos


def _seed(seed: int) -> int:
    """llama.cpp's 32 bits from our 64, the same on every machine; never the one value that means «random» to it."""
    return int.from_bytes(hashlib.blake2b(seed.to_bytes(16, "big", signed=True), digest_size=8).digest()) % _NO_SEED
