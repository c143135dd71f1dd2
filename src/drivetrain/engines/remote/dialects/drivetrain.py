"""Another Drivetrain: token ids in and out over `/v1/completions`, with everything that it declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from drivetrain.core.engine import EngineRequest, IdLogprobs, Step, TokenStep
from drivetrain.core.parameters import ENGINE_PARAMETERS, TOKEN_PARAMETERS, WORKER_PARAMETERS
from drivetrain.core.prompt import Prompt
from drivetrain.core.results import FinishReason
from drivetrain.core.sampling import Sampling
from drivetrain.engines.remote.blocking import Ask
from drivetrain.engines.remote.dialects.base import (
    AnswerReader,
    AskUpstream,
    Learn,
    UpstreamFacts,
    UpstreamKind,
    messages_json,
)
from drivetrain.engines.remote.errors import Broken
from drivetrain.http.address import Address

_SAMPLING = tuple(field.name for field in fields(Sampling))
_NOT_OVER_HTTP = frozenset({"images", "prompt_logprobs", "sequence_bias", "exponential_decay_length_penalty"})
_NOT_KNOWN_LATER = frozenset({"reproducibility"})
"""What another server behind the same address, or a restart of it, takes away without any request failing."""

_NAMES = {"structured_outputs": "constraint"}
"""Fields that have another name over HTTP."""

_OWN = frozenset({"n"})
"""Always honoured: each choice is a request of its own."""


def facts_of(card: Mapping[str, Any]) -> UpstreamFacts:
    """From the `capabilities` of `/v1/models/{id}`. Raises `Broken`."""
    try:
        listed = {_NAMES.get(name, name) for name in card["parameters"]}
        sent = listed & ENGINE_PARAMETERS - _NOT_OVER_HTTP - _NOT_KNOWN_LATER
        defaults = {n: d["value"] for n, d in card["defaults"].items() if d["source"] != "neutral"}
        return UpstreamFacts(
            kind=UpstreamKind.DRIVETRAIN,
            tokens=True,
            parameters=WORKER_PARAMETERS | TOKEN_PARAMETERS | sent | _OWN,
            context_length=int(card["context_length"]),
            max_concurrency=int(card["max_concurrency"]),
            vocab_size=int(card["vocab_size"]),
            eos_ids=frozenset(int(i) for i in card["eos_ids"]),
            specials={str(name): int(i) for name, i in card.get("infill_tokens", {}).items()},
            stop=tuple(str(text) for text in card["stop"]),
            generation=bool(card["generation"]),
            embedding_size=int(card.get("embedding_size") or 0),
            embed_inputs=int(card["limits"]["max_embed_inputs"]),
            pooling=card.get("pooling"),
            architecture=str(card["architecture"]),
            dtype=str(card["dtype"]),
            default_sampling=defaults,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise Broken("its description of the model is not one that this version can read") from exc


async def with_specials(facts: UpstreamFacts, ask: AskUpstream, model: str) -> UpstreamFacts:
    """Adds the special tokens that can be found: the ends, and the one that texts begin with. Raises `Broken`.

    It told only those for filling in the middle.
    """
    try:
        texts = [(await ask("POST", "/tokenize", {"model": model, "prompt": text}))["tokens"] for text in ("a", "b")]
        begins = [ids[0] for ids in texts if len(ids) > 1]
        bos = begins[0] if len(begins) == 2 and begins[0] == begins[1] else None
        spelled = {}
        for token_id in sorted(facts.eos_ids | ({bos} if bos is not None else set())):
            answer = await ask("POST", "/detokenize", {"model": model, "tokens": [token_id]})
            if str(answer["prompt"]).strip():  # else it is the space that a vocabulary puts before any text
                spelled[str(answer["prompt"])] = int(token_id)
    except (KeyError, TypeError, ValueError, IndexError) as exc:
        raise Broken("its way of splitting texts is not one that this version can read") from exc
    names = {token_id: text for text, token_id in spelled.items()}
    eos = min(facts.eos_ids, default=None)
    return replace(
        facts,
        specials={**facts.specials, **spelled},
        bos_token=None if bos is None else names.get(bos),
        eos_token=None if eos is None else names.get(eos),
    )


class DrivetrainDialect:
    def __init__(self, address: Address, model: str, facts: UpstreamFacts, *, max_stops: int) -> None:
        self.facts = facts
        self.path = f"{address.path}/completions"
        self._model = model
        self._max_stops = max_stops

    def body(self, request: EngineRequest, index: int) -> dict[str, Any]:
        """Its own stops are off, because ours decide. A stop id stays in the text until our pipeline takes it out."""
        known = self.facts.parameters
        sampling = {name: getattr(request.sampling, name) for name in _SAMPLING if name in known}
        if "logit_bias" in sampling:
            sampling["logit_bias"] = {str(i): bias for i, bias in sampling["logit_bias"].items()}
        ends_as_theirs = self.facts.eos_ids <= request.stop_ids
        stop_ids = sorted(request.stop_ids - self.facts.eos_ids if ends_as_theirs else request.stop_ids)
        body: dict[str, Any] = {
            "model": self._model,
            "prompt_token_ids": request.prompt_ids,
            "max_tokens": request.max_tokens,
            "stream": True,
            "return_token_ids": True,
            "stop": [],
            "stop_token_ids": stop_ids[: self._max_stops],  # our matcher finds the others
            "include_stop_str_in_output": True,
            **sampling,
        }
        if not ends_as_theirs:
            body["ignore_eos"] = True
        if request.min_tokens:
            body["min_tokens"] = request.min_tokens
        if request.seeded:
            body["seed"] = request.seeds[index]
        if request.cache_salt is not None:
            body["cache_salt"] = request.cache_salt
        if request.logprobs is not None:
            body["logprobs"] = request.logprobs
        if request.grammar is not None:
            body["structured_outputs"] = {"grammar": request.grammar.text}
        return body

    def reader(self, request: EngineRequest, index: int, learn: Learn) -> AnswerReader:
        return _DrivetrainReader(request, index, learn)


class _DrivetrainReader:
    def __init__(self, request: EngineRequest, index: int, learn: Learn) -> None:
        self.over = False
        self._request = request
        self._index = index
        self._learn = learn

    async def hear(self, event: Mapping[str, Any]) -> Sequence[Step]:
        try:
            choices = event["choices"]
            return [self._step(choices[0])] if choices else ()
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as exc:
            raise Broken("an event is not what Drivetrain's API says") from exc

    def _step(self, choice: Mapping[str, Any]) -> TokenStep:
        ids = tuple(int(i) for i in choice.get("token_ids") or ())
        entries = (choice.get("logprobs") or {}).get("entries") or []
        reason = choice["finish_reason"]
        self.over = reason is not None
        return TokenStep(
            self._index,
            ids,
            self._logprobs(entries, len(ids)),
            None if reason is None else FinishReason(reason),
            self._pieces(str(choice["text"]), entries, len(ids)),
        )

    def _logprobs(self, entries: Sequence[Mapping[str, Any]], count: int) -> tuple[IdLogprobs, ...] | None:
        if self._request.logprobs is None:
            return None
        found = []
        for entry in entries:
            self._learn(int(entry["id"]), bytes(entry["bytes"]))
            for other in entry["top"]:
                self._learn(int(other["id"]), bytes(other["bytes"]))
            top = tuple((int(other["id"]), float(other["logprob"])) for other in entry["top"])
            found.append(IdLogprobs(float(entry["logprob"]), top))
        return (*found, *[IdLogprobs(None)] * (count - len(found)))

    @staticmethod
    def _pieces(text: str, entries: Sequence[Mapping[str, Any]], count: int) -> tuple[bytes, ...]:
        """Each id's own bytes, if they are given. Else the last id of a delta has all of its text."""
        if not count:
            return ()
        pieces = tuple(bytes(entry["bytes"]) for entry in entries)
        if len(pieces) == count and b"".join(pieces).decode("utf-8", "replace") == text:
            return pieces
        return (*[b""] * (count - 1), text.encode())

    @property
    def settled(self) -> bool:
        return self.over

    def close(self) -> Sequence[Step]:
        raise Broken("the stream ended without a finish reason")


class DrivetrainSplitter:
    """The upstream renders chats and prompts with a suffix itself, with its own idea of what is special."""

    def __init__(self, ask: Ask, model: str) -> None:
        self._ask = ask
        self._model = model

    def encode(self, prompt: Prompt) -> list[int]:
        body: dict[str, Any] = {"prompt": prompt.text}
        if prompt.gap is not None:
            body = dict(zip(("prompt", "suffix"), prompt.gap, strict=True))
        elif prompt.messages is not None:
            body = {"messages": messages_json(prompt.messages)}
        return [int(i) for i in self._ask("/tokenize", {"model": self._model, **body})["tokens"]]

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._ask("/detokenize", {"model": self._model, "tokens": list(ids)})["prompt"])
