"""Turns a checked request into the engine's: rendered, tokenized, fitted into the context, with defaults filled in."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

from drivetrain.core.budget import check_answer, tokens_held
from drivetrain.core.caller import CALLER
from drivetrain.core.capabilities import Capabilities, Reproducibility
from drivetrain.core.constraint import Constraint, Grammar
from drivetrain.core.engine import EngineInfo, EngineRequest, Media
from drivetrain.core.errors import InvalidRequest, Unsupported
from drivetrain.core.messages import ImagePart
from drivetrain.core.prompt import Prompt, forged
from drivetrain.core.request import GenerateRequest, Overflow, choice_seed
from drivetrain.core.stats import Stats
from drivetrain.core.tokenizer import LONGEST_PIECE
from drivetrain.families.base import Family
from drivetrain.text.answers.detect import FormChoice
from drivetrain.text.answers.reading import AnswerReading
from drivetrain.text.byte_tokenizer import ByteTokenizer
from drivetrain.text.choice import StopRules
from drivetrain.text.grammar.compile import GrammarCompiler
from drivetrain.text.grammar.rules import AnswerRules
from drivetrain.text.infill import Infill
from drivetrain.worker.chats import Chats
from drivetrain.worker.media.loader import MediaLoader
from drivetrain.worker.media.pictures import Pictures
from drivetrain.worker.off_loop import on_thread
from drivetrain.worker.settle import Defaults, Fitted, fit, refuse_hopeless
from drivetrain.worker.text_threads import TextThreads

T = TypeVar("T")

CHOSEN_SEEDS = 2**53
"""Up to here, so that any program that reads a receipt's JSON reads the seed that it says."""


@dataclass(frozen=True, slots=True)
class Prepared:
    request: EngineRequest
    rules: StopRules
    prompt_text: str
    truncated: int
    reading: AnswerReading | None = None
    """How the answers are read; None: their text is all content."""
    pictures: Pictures | None = None
    """To be released once the engine has reported the prompt's ids or no longer holds anything of the request."""
    grammar: str | None = None
    """The kind of grammar that the answers are held to, as in `Started`."""

    def let_go(self) -> None:
        if self.pictures is not None:
            self.pictures.let_go()


class Preparer:
    """One per loaded model. Rendering and tokenizing run on `threads`, off the event loop."""

    def __init__(
        self,
        *,
        info: EngineInfo,
        capabilities: Capabilities,
        family: Family,
        form: FormChoice,
        infill: Infill | None,
        eos_ids: frozenset[int],
        defaults: Defaults,
        overflow: Overflow,
        media: MediaLoader,
        threads: TextThreads,
        stats: Stats,
    ) -> None:
        self._info = info
        self._capabilities = capabilities
        self._tokenizer = info.tokenizer
        self._family = family
        self._infill = infill
        self._eos_ids = eos_ids
        self._defaults = defaults
        self._overflow = overflow
        self._media = media
        self._threads = threads
        self._stats = stats
        vocabulary, ends = (ByteTokenizer(), frozenset[int]()) if info.gives_pieces else (info.tokenizer, eos_ids)
        self._grammars = GrammarCompiler(
            vocabulary,
            ends,
            threads.trial,
            context_length=info.capabilities.context_length,
            of_pieces=info.gives_pieces,
        )
        self._chats = Chats(
            family,
            form,
            None if info.gives_pieces else info.tokenizer,
            enforces="constraint" in capabilities.parameters,
        )

    async def warm(self) -> None:
        """Do what the first constraint would have to wait for."""
        if "constraint" in self._capabilities.parameters:
            await self._threads.grammars.run(self._grammars.warm)

    async def prepare(self, request: GenerateRequest, request_id: str) -> Prepared:
        prepared = await self._prepared(request, request_id)
        try:
            rules = self._chats.rules(request, prepared.reading)
            grammar = await self._grammar(rules) if rules is not None else None
        except BaseException:
            prepared.let_go()
            raise
        if rules is None:
            return prepared
        return replace(prepared, request=replace(prepared.request, grammar=grammar), grammar=rules.kind)

    async def _prepared(self, request: GenerateRequest, request_id: str) -> Prepared:
        if request.has_images or not self._capabilities.tokens:
            return await self._with_media(request, request_id)
        return await self._on_thread(request, lambda: self._prepare(request, request_id))

    async def _grammar(self, wanted: Constraint | AnswerRules) -> Grammar:
        """Compiled once, on a thread that no prompt waits for, in turn with what other callers want."""
        kept = self._grammars.kept(wanted)
        if kept is not None:
            return kept
        began = time.monotonic()
        try:
            return await self._threads.grammars.run(lambda: self._grammars.compile(wanted), CALLER.get())
        finally:
            self._stats.compile_s.observe(time.monotonic() - began)

    async def _on_thread(self, request: GenerateRequest, work: Callable[[], T]) -> T:
        return await on_thread(self._threads.for_prompt(_chars(request)), work)

    def _limit(self, request: GenerateRequest) -> int:
        return min(request.context_length or self._context, self._context)

    def _prepare(self, request: GenerateRequest, request_id: str) -> Prepared:
        self._check_ids(request)
        limit, field = self._limit(request), _prompt_field(request)
        policy = self._policy(request)
        prompt = self._render(request)
        if prompt is not None:
            longest = LONGEST_PIECE if policy.cuts else self._tokenizer.longest_piece
            refuse_hopeless(prompt.text, limit=limit, longest_piece=longest, param=field)
        ids = list(request.prompt_token_ids or ()) if prompt is None else self._tokenizer.encode(prompt)
        if not ids:
            raise InvalidRequest("the prompt is empty", param="prompt")
        check_known(ids, self._info.vocab_size, field)
        check_answer(request, self._capabilities, len(ids))
        fitted = fit(
            ids,
            limit=limit,
            max_tokens=request.max_tokens,
            default_max_tokens=self._default_max_tokens(request, len(ids), limit),
            min_tokens=request.min_tokens or 0,
            policy=policy,
            bos_id=self._tokenizer.id_of(self._tokenizer.bos_token or ""),
            separate=self._info.encoder_decoder,
            param=field,
            can_be_cut=not request.suffix,
        )
        text = self._prompt_text(prompt, fitted) if request.echo else ""
        engine_request = self._engine_request(request, request_id, fitted.ids, fitted.max_tokens, None, limit)
        reading = self._chats.reading(request, prompt)
        return Prepared(engine_request, self._rules(request), text, fitted.truncated, reading)

    def _default_max_tokens(self, request: GenerateRequest, prompt_tokens: int, limit: int) -> int | None:
        """For a request that names none; at most what the limit on answers allows. None: the rest of the context."""
        default = self._defaults.max_tokens()
        held = max(1, tokens_held(request, self._capabilities.limits, prompt_tokens))
        if held >= limit or not self._capabilities.tokens:  # an engine without ids may know no context either
            return default
        return held if default is None else min(default, held)

    def _policy(self, request: GenerateRequest) -> Overflow:
        policy = request.overflow or self._overflow
        return Overflow.ERROR if request.suffix and policy.cuts else policy

    @property
    def _context(self) -> int:
        return self._info.capabilities.context_length

    def _render(self, request: GenerateRequest) -> Prompt | None:
        if request.messages is not None:
            return self._chats.render(request)
        if request.suffix:
            assert self._infill is not None, "else it was refused"
            return self._infill.form.prompt(request.prompt or "", request.suffix)
        return None if request.prompt is None else Prompt.raw(request.prompt)

    def _prompt_text(self, prompt: Prompt | None, fitted: Fitted) -> str:
        if prompt is not None and not fitted.truncated:
            return prompt.text
        return self._tokenizer.decode(fitted.ids)

    async def _with_media(self, request: GenerateRequest, request_id: str) -> Prepared:
        """The text comes first, because the prompt form may have no place for images."""
        prompt, rules, reading = await self._on_thread(request, lambda: self._media_texts(request))
        pictures = (
            await self._media.load(_images(request), hashes=request.receipt is not None)
            if request.has_images
            else Pictures()
        )
        limit, max_tokens = self._limit(request), request.max_tokens
        if max_tokens is None:
            default = self._default_max_tokens(request, 0, limit)
            max_tokens = None if default is None else max(default, request.min_tokens or 0)
        media = Media(prompt, pictures)
        engine_request = self._engine_request(request, request_id, (), max_tokens, media, limit)
        return Prepared(engine_request, rules, "", 0, reading, pictures)

    def _media_texts(self, request: GenerateRequest) -> tuple[Prompt, StopRules, AnswerReading | None]:
        prompt = self._media_prompt(request)
        return prompt, self._rules(request), self._chats.reading(request, prompt)

    def _media_prompt(self, request: GenerateRequest) -> Prompt:
        """The engine's processor tokenizes this prompt, so a special token that the caller spelled is refused."""
        self._check_ids(request)
        prompt = self._render(request)
        if prompt is None:
            raise InvalidRequest("images need a text prompt, not token ids", param="images")
        if request.overflow is not None and request.overflow.cuts:
            raise Unsupported(
                "a prompt with images cannot be cut: overflow must be error or shorten_answer", param="overflow"
            )
        specials = self._tokenizer.special_strings | {self._info.image_token or ""} - {""}
        if spelled := forged(prompt, specials):
            raise InvalidRequest(
                f"a message with images must not contain the model's own token {spelled}", param="messages"
            )
        return prompt

    def _engine_request(
        self,
        request: GenerateRequest,
        request_id: str,
        ids: tuple[int, ...],
        max_tokens: int | None,
        media: Media | None,
        limit: int,
    ) -> EngineRequest:
        seeds = "seed" in self._capabilities.parameters
        repeatable = (
            request.seed is not None
            or (request.receipt is not None and seeds)
            or request.reproducibility is Reproducibility.EXACT
        )
        seed = request.seed if request.seed is not None else secrets.randbelow(CHOSEN_SEEDS)
        return EngineRequest(
            request_id=request_id,
            prompt_ids=ids,
            media=media,
            context_length=limit,
            max_tokens=max_tokens,
            max_tokens_is_default=request.max_tokens is None or self._policy(request) is Overflow.SHORTEN_ANSWER,
            min_tokens=request.min_tokens or 0,
            stop_ids=frozenset(request.stop_token_ids or ()) | self._eos(request),
            sampling=self._defaults.resolve(request),
            token_bytes=self._tokenizer.token_bytes,
            seeds=tuple(choice_seed(seed, i) for i in range(request.n or 1)),
            seeded=repeatable,
            logprobs=request.logprobs,
            prompt_logprobs=request.prompt_logprobs,
            cache_salt=request.cache_salt,
        )

    def _eos(self, request: GenerateRequest) -> frozenset[int]:
        if request.ignore_eos:
            return frozenset()
        return self._eos_ids | self._infill.end_ids if request.suffix and self._infill is not None else self._eos_ids

    def _rules(self, request: GenerateRequest) -> StopRules:
        self._check_spelled(request.stop_sequences or ())
        return StopRules(
            strings=request.stop if request.stop is not None else self._family.stop or self._info.stop,
            token_ids=request.stop_token_ids or (),
            sequences=request.stop_sequences or (),
            eos_ids=self._eos(request),
            min_tokens=request.min_tokens or 0,
            include_in_text=bool(request.include_stop_str_in_output),
            max_repetitions=self._defaults.max_repetitions(request),
            tokenizer=self._tokenizer,
        )

    def _check_spelled(self, sequences: Iterable[tuple[int, ...]]) -> None:
        """Stops given as ids are also matched as the text that they spell, which is many times as long."""
        limits = self._capabilities.limits
        limit = limits.max_stops * limits.max_stop_chars
        chars = sum(len(self._tokenizer.token_text(i)) for ids in sequences for i in ids)
        if chars > limit:
            raise InvalidRequest(
                f"stop_sequences spells {chars:,} characters; the limit is {limit:,}", param="stop_sequences"
            )

    def _check_ids(self, request: GenerateRequest) -> None:
        """An id past the vocabulary would fail deep inside an engine (and take a GPU process with it).

        Not the prompt's, which `_prepare` checks, however they were given.
        """
        ids_by_field: dict[str, Iterable[int]] = {
            "stop_token_ids": request.stop_token_ids or (),
            "stop_sequences": (i for ids in request.stop_sequences or () for i in ids),
            "logit_bias": request.logit_bias or (),
            "sequence_bias": (i for ids, _ in request.sequence_bias or () for i in ids),
            "bad_words_ids": (i for ids in request.bad_words_ids or () for i in ids),
            "suppress_tokens": request.suppress_tokens or (),
            "begin_suppress_tokens": request.begin_suppress_tokens or (),
        }
        for name, ids in ids_by_field.items():
            check_known(ids, self._info.vocab_size, name)


def _chars(request: GenerateRequest) -> int:
    """Characters, or ids."""
    texts = sum(message.num_chars for message in request.messages or ())
    texts += sum(len(tool.parameters) + len(tool.description) for tool in request.tools or ())
    return texts + len(request.prompt or request.prompt_token_ids or "") + len(request.suffix or "")


def _images(request: GenerateRequest) -> list[tuple[ImagePart, str]]:
    """Each with its place in the request."""
    parts: list[tuple[ImagePart, str]] = [(p, f"images[{i}]") for i, p in enumerate(request.images or ())]
    for i, message in enumerate(request.messages or ()):
        parts += [
            (part, f"messages[{i}].content[{j}]")
            for j, part in enumerate(message.content)
            if isinstance(part, ImagePart)
        ]
    return parts


def _prompt_field(request: GenerateRequest) -> str:
    fields = ("messages", "prompt", "prompt_token_ids")
    return next(name for name in fields if getattr(request, name) is not None)


def check_known(ids: Iterable[int], vocab_size: int, param: str) -> None:
    worst = max(ids, default=-1)
    if worst >= vocab_size:
        raise InvalidRequest(
            f"{param} contains the id {worst}; the model's vocabulary ends at {vocab_size - 1}", param=param
        )
