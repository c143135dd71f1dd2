"""llama.cpp's own server: token ids in and out over `/completion`, chats rendered here with the model's template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from drivetrain.core.engine import EngineRequest, PromptStep, Step, TokenStep
from drivetrain.core.parameters import TOKEN_PARAMETERS, WORKER_PARAMETERS
from drivetrain.core.prompt import Prompt, apart, find_specials, own_specials
from drivetrain.core.tokenizer import check_wanted
from drivetrain.engines.base.frame import frame
from drivetrain.engines.base.room import room
from drivetrain.engines.llama_server import completion
from drivetrain.engines.llama_server.ends import ENDS
from drivetrain.engines.llama_server.frames import ChoiceIds, EndFrame, PromptFrame, TokenFrame, read, unspelled
from drivetrain.engines.remote.blocking import Ask
from drivetrain.engines.remote.dialects.base import AnswerReader, AskUpstream, Learn, UpstreamFacts, UpstreamKind
from drivetrain.engines.remote.errors import Broken, Refused, Unreadable
from drivetrain.engines.remote.spellings import SPELLED, SUSPICIOUS
from drivetrain.http.address import Address
from drivetrain.text.infill import INFILL_NAMES

HONOURED = completion.HONOURED - completion.SEVERAL_COMPLETIONS - {"constraint"}
"""And constraints, where a trial shows it."""

_PROVEN = "zq"
_REFUSALS = frozenset({400, 404, 405, 422, 500, 501})


async def facts_of(ask: AskUpstream, card: Mapping[str, Any]) -> UpstreamFacts:
    """From `/props`, the model's entry in `/v1/models`, and how special tokens are split. Raises `Broken`."""
    props = await ask("GET", "/props")
    constrains = await _constrains(ask)
    try:
        template = str(props.get("chat_template") or "") or None
        bos, eos = (str(props.get(name) or "") or None for name in ("bos_token", "eos_token"))
        spelled = [*ENDS, *INFILL_NAMES, *filter(None, (bos, eos)), *SPELLED.findall(template or "")]
        specials = await _specials(ask, sorted(set(spelled)))
        ends = {*ENDS, eos}
        return UpstreamFacts(
            kind=UpstreamKind.LLAMACPP,
            tokens=True,
            parameters=WORKER_PARAMETERS | TOKEN_PARAMETERS | HONOURED | ({"constraint"} if constrains else set()),
            context_length=int(props["default_generation_settings"]["n_ctx"]),
            max_concurrency=int(props["total_slots"]),
            vocab_size=int(card["meta"]["n_vocab"]),
            eos_ids=frozenset(i for text, i in specials.items() if text in ends),
            specials=specials,
            bos_token=bos,
            eos_token=eos,
            chat_template=template,
            dtype=str(props.get("model_ftype") or "unknown"),
            notes=() if constrains else ("constraints are refused: the upstream is not known to have llguidance",),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise Broken("its description of the model is not one that this version reads") from exc


async def _constrains(ask: AskUpstream) -> bool:
    """Whether it takes our grammars. One without llguidance would end its process at them, so what it makes of a schema
    is looked at first: a grammar for llguidance, if it has it. Raises what any request may meet."""
    schema = {"prompt": "a", "n_predict": 0, "json_schema": {"const": _PROVEN}}
    grammar = {"prompt": "a", "n_predict": 16, "grammar": f'{completion.LARK}start: "{_PROVEN}"'}
    try:
        made = (await ask("POST", "/completion", schema))["generation_settings"]["grammar"]
        if not made.startswith(completion.LARK.strip()):
            return False
        return bool((await ask("POST", "/completion", grammar))["content"] == _PROVEN)
    except Refused as exc:
        if exc.status not in _REFUSALS:
            raise
    except (Unreadable, KeyError, TypeError, AttributeError):
        pass  # another version
    return False


async def _specials(ask: AskUpstream, spellings: Sequence[str]) -> dict[str, int]:
    """Those that are one id as special tokens, and not as plain text."""
    body = {"content": "\n".join(spellings), "with_pieces": True}
    special = (await ask("POST", "/tokenize", {**body, "parse_special": True}))["tokens"]
    plain = (await ask("POST", "/tokenize", {**body, "parse_special": False}))["tokens"]
    found = {entry["piece"]: int(entry["id"]) for entry in special if isinstance(entry["piece"], str)}
    usual = {int(entry["id"]) for entry in plain}
    return {text: found[text] for text in spellings if text in found and found[text] not in usual}


class LlamaCppDialect:
    def __init__(self, address: Address, facts: UpstreamFacts, ask: AskUpstream) -> None:
        self.facts = facts
        self.path = f"{address.root}/completion"
        self._ask = ask
        self._salted = False

    def body(self, request: EngineRequest, index: int) -> dict[str, Any]:
        self._salted |= request.cache_salt is not None  # it knows no salts: from then on nobody sees what it has kept
        asked = completion.Completion(
            prompt=request.prompt_ids,
            limit=room(request) + completion.OVERSHOOT,
            seed=completion.seed_at(request.seeds[index]),
            banned=frozenset(request.sampling.suppress_tokens),
            ignore_eos=not self.facts.eos_ids <= request.stop_ids,
            reuse=not self._salted,
        )
        return asked.body(request)

    def reader(self, request: EngineRequest, index: int, learn: Learn) -> AnswerReader:
        return _LlamaCppReader(request, index, learn, self._ask)


class _LlamaCppReader:
    def __init__(self, request: EngineRequest, index: int, learn: Learn, ask: AskUpstream) -> None:
        self.over = False
        self._ids = ChoiceIds(index, request)
        self._learn = learn
        self._ask = ask

    async def hear(self, event: Mapping[str, Any]) -> Sequence[Step]:
        try:
            frame = read(event)
            if isinstance(frame, PromptFrame):
                return (PromptStep(cached_tokens=frame.cached),)
            return (self._end(frame) if isinstance(frame, EndFrame) else await self._take(frame),)
        except (KeyError, TypeError, ValueError, AttributeError) as exc:
            raise Broken("an event is not what llama.cpp's API says") from exc

    async def _take(self, frame: TokenFrame) -> TokenStep:
        for token_id, spelling in frame.spellings():
            self._learn(token_id, spelling)
        missing = frame.missing(len(self._ids.sampled))
        step = self._ids.step(frame, await self._recover(frame, missing) if missing else ())
        self.over = step.reason is not None
        pieces = (*[b""] * (missing + len(frame.ids) - 1), frame.text.encode("utf-8", "replace"))
        return step._replace(pieces=pieces[: len(step.token_ids)])

    def _end(self, frame: EndFrame) -> TokenStep:
        """llama.cpp ended where we did not: at an end that is not known here, or because its context is full."""
        self.over = True
        if frame.reason is None:
            raise Broken("llama.cpp ended the answer and does not say why")
        return TokenStep(self._ids.index, (), None, frame.reason)

    async def _recover(self, frame: TokenFrame, count: int) -> tuple[int, ...]:
        """The upstream has the vocabulary, and models spell a character as it is split there."""
        found = await self._ask("POST", "/tokenize", {"content": frame.text})
        ids = tuple(int(i) for i in found["tokens"])
        if len(ids) != count + len(frame.ids) or ids[count:] != frame.ids:
            raise unspelled(count)
        return ids[:count]

    @property
    def settled(self) -> bool:
        return self.over

    def close(self) -> Sequence[Step]:
        raise Broken("the stream ended before the answer did")


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
