"""vLLM's own server: token ids in and out over `/v1/completions`, chats rendered there."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from drivetrain.core.engine import EngineRequest, IdLogprobs, PromptStep, Step, TokenStep
from drivetrain.core.errors import EngineFailed, InvalidRequest
from drivetrain.core.kinds import MAX_INT
from drivetrain.core.parameters import TOKEN_PARAMETERS, WORKER_PARAMETERS
from drivetrain.core.results import FinishReason
from drivetrain.engines.base.frame import frame
from drivetrain.engines.base.room import room
from drivetrain.engines.remote.dialects.base import AnswerReader, AskUpstream, Learn, UpstreamFacts, UpstreamKind
from drivetrain.engines.remote.dialects.vllm_tokenizer import Speller, split_question
from drivetrain.engines.remote.errors import Broken, Refused, Unreadable
from drivetrain.engines.remote.spellings import ENDS, SPELLED, WORDS
from drivetrain.http.address import Address
from drivetrain.text.grammar.lark import HEADER

HONOURED = frozenset({
    "n", "seed", "min_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty",
    "frequency_penalty", "logit_bias", "suppress_tokens", "cache_salt",
})  # fmt: skip
"""Not `bad_words_ids`: over HTTP vLLM takes only words, and splits them itself."""

MOST_LOGPROBS = 20
"""vLLM's own default limit. If a server allows fewer, none are offered."""

_PROVEN = "zq"

BAN = -100.0
"""The lowest bias that vLLM's server accepts: at the highest temperature, a factor of e⁻⁵⁰."""

_LOWEST_LOGPROB = -9999.0
_VOCABULARY = re.compile(r"[Vv]ocabulary size: (\d+)")
_REFUSALS = frozenset({400, 404, 405, 422, 501})
_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


async def facts_of(ask: AskUpstream, model: str, completions: str, context_length: int) -> UpstreamFacts | None:
    """From trials for ids, logprobs and ends, one token each; None if this version gives no ids.

    `completions` is the path below the root. Raises `Refused`, `Broken` and `OSError` for what any request may meet: a
    server that is silent or busy is not taken for a less capable one.
    """
    try:
        return await _Trial(ask, model, completions).facts(context_length)
    except Refused as exc:
        if exc.status not in _REFUSALS:
            raise
    except (Unreadable, KeyError, TypeError, ValueError, IndexError, AttributeError):
        pass  # another version, or a server in front of one: the text tier is tried next
    return None


def without_generation(context_length: int) -> UpstreamFacts:
    """Of a server that only embeds: its refusals do not tell the size of its vocabulary."""
    return UpstreamFacts(
        kind=UpstreamKind.VLLM,
        tokens=True,
        parameters=WORKER_PARAMETERS | TOKEN_PARAMETERS,
        context_length=context_length,
        vocab_size=MAX_INT,
        generation=False,
    )


class _Trial:
    def __init__(self, ask: AskUpstream, model: str, completions: str) -> None:
        self._ask = ask
        self._model = model
        self._completions = completions

    async def facts(self, context_length: int) -> UpstreamFacts:
        plain, framed = [await self._split("a", framed=framed) for framed in (False, True)]
        named = await self._named()
        logprobs = await self._logprobs(plain)
        constrains = await self._constrains(plain)
        answers = {text: await self._answer_of(plain, i) for text, i in named.items()}
        ends = sorted({i for text, i in named.items() if answers[text]["finish_reason"] == "stop"})
        plain_names = frozenset(text for text, i in named.items() if i not in ends and text in answers[text]["text"])
        specials = {text: i for text, i in named.items() if text not in plain_names}
        names = {i: text for text, i in specials.items()}
        notes = ["chats are rendered by the upstream"]
        if not ends:
            notes.append("no end of the model is known by its name: the upstream ends answers, ignore_eos is refused")
        if not constrains:
            notes.append("constraints are refused: in a trial the upstream did not follow a grammar")
        found = logprobs | ({"ignore_eos"} if ends else set()) | ({"constraint"} if constrains else set())
        return UpstreamFacts(
            kind=UpstreamKind.VLLM,
            tokens=True,
            parameters=WORKER_PARAMETERS | TOKEN_PARAMETERS | HONOURED | found,
            context_length=context_length,
            vocab_size=await self._vocab_size(plain),
            eos_ids=frozenset(ends),
            specials=specials,
            plain_names=plain_names,
            bos_token=next((names[i] for i in frame(plain, framed)[:1] if i in names), None),
            eos_token=next((names[i] for i in ends), None),
            notes=tuple(notes),
        )

    async def _named(self) -> dict[str, int]:
        """The usual names, and those in the frame of a chat, that are one token here."""
        names = [*ENDS, *WORDS, *SPELLED.findall(await self._chat())]
        body = split_question(self._model, "\n".join(sorted(set(names))), spelled=True)
        answer = await self._ask("POST", "/tokenize", body)
        wanted = set(names)
        return {text: int(i) for i, text in zip(answer["tokens"], answer["token_strs"], strict=True) if text in wanted}

    async def _chat(self) -> str:
        """Empty for a model without a chat template, whose upstream then refuses messages itself."""
        body = {"model": self._model, "messages": [{"role": "user", "content": "a"}]}
        try:
            ids = (await self._ask("POST", "/tokenize", body))["tokens"]
        except Refused as exc:
            if exc.status not in _REFUSALS:
                raise
            return ""
        return str((await self._ask("POST", "/detokenize", {"model": self._model, "tokens": ids}))["prompt"])

    async def _vocab_size(self, ids: Sequence[int]) -> int:
        """From its refusal of an id that no vocabulary has. Raises `ValueError` if it accepts the id."""
        try:
            await self._complete(ids, logit_bias={str(2**31 - 1): 0.0})
        except Refused as exc:
            if found := _VOCABULARY.search(exc.message):
                return int(found[1])
            raise
        raise ValueError("an id outside of every vocabulary is taken")

    async def _logprobs(self, ids: Sequence[int]) -> frozenset[str]:
        """Which of the two kinds of logprobs come with ids. Raises `KeyError` or `ValueError` if no ids come."""
        try:
            choice = await self._complete(
                ids, echo=True, logprobs=MOST_LOGPROBS, return_token_ids=True, return_tokens_as_token_ids=True
            )
        except Refused as exc:
            if exc.status not in _REFUSALS:
                raise
            choice = await self._complete(ids, return_token_ids=True)
        if len(choice["token_ids"]) != 1:
            raise ValueError("no ids come back")
        entries = _entries(choice.get("logprobs") or {}, MOST_LOGPROBS)
        if len(entries) == len(ids) + 1:
            return frozenset({"logprobs", "prompt_logprobs"})
        return frozenset({"logprobs"}) if len(entries) == 1 else frozenset()

    async def _constrains(self, ids: Sequence[int]) -> bool:
        """Whether it takes our grammars. A vLLM that is not told which backend to use keeps the first that a request
        needed. Guidance takes them; xgrammar would read over how JSON is to be spaced, and refuses the header."""
        asked = {"grammar": f'{HEADER}start: "{_PROVEN}"'}
        try:
            answer = await self._complete(ids, max_tokens=16, structured_outputs=asked)
        except Refused as exc:
            if exc.status not in _REFUSALS:
                raise
            return False
        return bool(answer["text"] == _PROVEN)

    async def _answer_of(self, ids: Sequence[int], token_id: int) -> Mapping[str, Any]:
        """An answer forced to begin with this token: an end stops it, and a plain word shows in its text."""
        return await self._complete(ids, logit_bias={str(token_id): 100.0}, max_tokens=2)

    async def _complete(self, ids: Sequence[int], **more: Any) -> Mapping[str, Any]:
        body = {"model": self._model, "prompt": ids, "max_tokens": 1, "temperature": 0.0, **more}
        found: Mapping[str, Any] = (await self._ask("POST", self._completions, body))["choices"][0]
        return found

    async def _split(self, text: str, *, framed: bool) -> list[int]:
        answer = await self._ask("POST", "/tokenize", split_question(self._model, text, framed=framed))
        return [int(i) for i in answer["tokens"]]


class VllmDialect:
    def __init__(self, address: Address, model: str, facts: UpstreamFacts, ask: AskUpstream) -> None:
        self.facts = facts
        self.path = f"{address.path}/completions"
        self._model = model
        self._speller = Speller(ask, model, facts.specials)

    def body(self, request: EngineRequest, index: int) -> dict[str, Any]:
        """vLLM gives at least one token; for a choice that wants none, the reader drops it.

        A request that names its seed gets a salt of its own, so that no cached prefix changes its rounding.
        """
        sampling = request.sampling
        limit = max(1, room(request))
        ends_as_theirs = self.facts.eos_ids <= request.stop_ids
        body: dict[str, Any] = {
            "model": self._model,
            "prompt": request.prompt_ids,
            "max_tokens": limit,
            "min_tokens": min(request.min_tokens, limit),
            "stream": True,
            "return_token_ids": True,
            "stop": [],
            "stop_token_ids": sorted(request.stop_ids - self.facts.eos_ids if ends_as_theirs else request.stop_ids),
            "include_stop_str_in_output": True,  # our own pipeline takes it out
            "ignore_eos": not ends_as_theirs,
            "seed": request.seeds[index] % 2**63,  # -1 is «no seed» to it
            "temperature": 0.0 if sampling.greedy else sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": 0 if sampling.greedy else sampling.top_k,
            "min_p": sampling.min_p,
            "repetition_penalty": sampling.repetition_penalty,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "logit_bias": self._biases(request),
        }
        if request.grammar is not None:
            body["structured_outputs"] = {"grammar": HEADER + request.grammar.text}
        salt = secrets.token_hex(16) if request.seeded else request.cache_salt
        if salt is not None:
            body["cache_salt"] = salt
        counts = [count for count in (request.logprobs, request.prompt_logprobs) if count is not None]
        if counts:
            body["logprobs"] = max(counts)
            body["return_tokens_as_token_ids"] = True
            body["echo"] = request.prompt_logprobs is not None
        return body

    def reader(self, request: EngineRequest, index: int, learn: Learn) -> AnswerReader:
        return _VllmReader(request, index, learn, self._speller)

    def _biases(self, request: EngineRequest) -> dict[str, float]:
        """Raises `InvalidRequest` if nothing is left, since vLLM would sample all the same."""
        banned = request.sampling.suppress_tokens
        never = {*banned, *(request.stop_ids if request.min_tokens else ())}
        if len(never) >= self.facts.vocab_size:
            raise InvalidRequest("every token is banned: nothing is left to sample", param="suppress_tokens")
        biases = {**request.sampling.logit_bias, **dict.fromkeys(banned, BAN)}
        return {str(token_id): bias for token_id, bias in biases.items()}


class _VllmReader:
    def __init__(self, request: EngineRequest, index: int, learn: Learn, speller: Speller) -> None:
        self.over = False
        self._request = request
        self._index = index
        self._learn = learn
        self._speller = speller
        self._begun = False

    async def hear(self, event: Mapping[str, Any]) -> Sequence[Step]:
        try:
            choices = event["choices"]
            return await self._steps(choices[0]) if choices else ()
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as exc:
            raise Broken("an event is not what vLLM's API says") from exc

    async def _steps(self, choice: Mapping[str, Any]) -> Sequence[Step]:
        counts = (self._request.logprobs, self._request.prompt_logprobs)
        entries = _entries(choice.get("logprobs") or {}, max(count or 0 for count in counts))
        prompt = await self._prompt(entries)
        if room(self._request) <= 0:
            self.over = True
            return (*prompt, TokenStep(self._index, (), None, FinishReason.LENGTH))
        return (*prompt, await self._tokens(choice, entries))

    async def _prompt(self, entries: list[IdLogprobs]) -> Sequence[Step]:
        """The first event echoes the prompt if its logprobs are wanted. They are removed from `entries`."""
        if self._begun or self._request.prompt_logprobs is None:
            self._begun = True
            return ()
        self._begun = True
        ids, count = self._request.prompt_ids, self._request.prompt_logprobs
        found = [IdLogprobs(entry.logprob, entry.top[:count]) for entry in entries[: len(ids)]]
        del entries[: len(ids)]
        if len(found) != len(ids):
            raise Broken("the logprobs of the prompt are not those of its tokens")
        await self._speller.spell_text(ids, self._learn)
        await self._speller.spell((i for entry in found for i, _ in entry.top), self._learn)
        return (PromptStep(logprobs=tuple(found)),)

    async def _tokens(self, choice: Mapping[str, Any], entries: Sequence[IdLogprobs]) -> TokenStep:
        ids, text = tuple(int(i) for i in choice["token_ids"]), str(choice["text"])
        if text and not ids:
            raise Broken("a text came without its tokens")
        reason = choice["finish_reason"]
        if reason is not None and reason not in _REASONS:
            raise EngineFailed("the upstream ended the answer for another reason than its end or its length")
        self.over = reason is not None
        logprobs = None
        if (count := self._request.logprobs) is not None:
            logprobs = tuple(IdLogprobs(entry.logprob, entry.top[:count]) for entry in entries)
            if len(logprobs) != len(ids):
                raise Broken("the logprobs are not those of the tokens")
            await self._speller.spell((i for entry in logprobs for i, _ in entry.top), self._learn)
        pieces = await self._speller.pieces(ids, text, self._learn)
        return TokenStep(self._index, ids, logprobs, _REASONS.get(reason), pieces)

    @property
    def settled(self) -> bool:
        return self.over

    def close(self) -> Sequence[Step]:
        raise Broken("the stream ended without a finish reason")


def _entries(listed: Mapping[str, Any], count: int) -> list[IdLogprobs]:
    """vLLM lists the `count` likeliest ids, and the actual one besides if it is none of them."""
    found = []
    for logprob, top in zip(listed.get("token_logprobs") or (), listed.get("top_logprobs") or (), strict=True):
        if logprob is None:
            found.append(IdLogprobs(None))
            continue
        ranked = sorted(((_id(name), _logprob(value)) for name, value in top.items()), key=lambda pair: -pair[1])
        found.append(IdLogprobs(_logprob(logprob), tuple(ranked[:count])))
    return found


def _id(name: str) -> int:
    """`token_id:17`. Raises `ValueError`."""
    return int(name.removeprefix("token_id:"))


def _logprob(value: Any) -> float:
    return min(0.0, max(_LOWEST_LOGPROB, float(value)))
