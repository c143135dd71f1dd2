"""From a checked request to what the engine gets: rendered, tokenized, fitted into the context, defaults filled in."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from drivetrain.core.engine import EngineInfo, EngineRequest, Media
from drivetrain.core.errors import (
    DrivetrainError,
    EngineFailed,
    InvalidRequest,
    NotReady,
    Unsupported,
)
from drivetrain.core.messages import ImagePart, Message
from drivetrain.core.parameters import MAX_SEED, string
from drivetrain.core.prompt import Prompt
from drivetrain.core.request import GenerateRequest, Overflow
from drivetrain.core.tokenizer import LONGEST_PIECE
from drivetrain.core.wanted import Wanted
from drivetrain.families.base import Family
from drivetrain.text.choice import StopRules
from drivetrain.text.spans import forged
from drivetrain.worker.defaults import Defaults
from drivetrain.worker.media import MediaLoader
from drivetrain.worker.overflow import Fitted, fit, refuse_hopeless

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Prepared:
    request: EngineRequest
    rules: StopRules
    prompt_text: str
    truncated: int


class Preparer:
    """Holds what is the same for all requests of a model.

    Rendering and tokenizing run in `executor`, off the event loop.
    """

    def __init__(
        self,
        *,
        info: EngineInfo,
        family: Family,
        eos_ids: frozenset[int],
        defaults: Defaults,
        overflow: Overflow,
        media: MediaLoader,
        executor: Executor,
    ) -> None:
        self._info = info
        self._tokenizer = info.tokenizer
        self._family = family
        self._eos_ids = eos_ids
        self._defaults = defaults
        self._overflow = overflow
        self._media = media
        self._executor = executor

    async def prepare(self, request: GenerateRequest, request_id: str) -> Prepared:
        images = await self._images(request)
        return await self.on_thread(lambda: self._prepare(request, request_id, images))

    async def tokenize(self, messages: tuple[Message, ...] | None, prompt: str | None) -> list[int]:
        def work() -> list[int]:
            rendered = self._rendered(messages) if messages is not None else Prompt.raw(prompt or "")
            return self._tokenizer.encode(rendered)

        if prompt is not None:
            string("text", prompt)
        self._refuse_ids("text")
        limit = self._info.capabilities.limits.max_prompt_chars
        chars = len(prompt or "") + sum(len(message.text) for message in messages or ())
        if chars > limit:
            raise InvalidRequest(f"the text has {chars} characters; the limit is {limit}", param="text")
        return await self.on_thread(work)

    async def detokenize(self, ids: Sequence[int]) -> str:
        self._refuse_ids("tokens")
        known = self._info.vocab_size
        if not isinstance(ids, (list, tuple)) or any(type(i) is not int or not 0 <= i < known for i in ids):
            raise InvalidRequest(f"ids must be a list of integers from 0 to {known - 1}", param="tokens")
        return await self.on_thread(lambda: self._tokenizer.decode(ids, skip_special=False))

    async def on_thread(self, work: Callable[[], T]) -> T:
        """Text work off the event loop. Whatever a tokenizer or template raises, a panic too, comes back typed."""
        wanted = Wanted()
        try:
            job = self._executor.submit(_typed, partial(wanted.run, work))
        except RuntimeError as exc:  # the executor is shut
            raise NotReady("the worker is stopped") from exc
        with wanted:  # who is cancelled here, leaves: the thread looks for that
            return await asyncio.wrap_future(job)

    async def _images(self, request: GenerateRequest) -> list[object]:
        parts: list[tuple[ImagePart, str]] = [(p, f"images[{i}]") for i, p in enumerate(request.images or ())]
        for i, message in enumerate(request.messages or ()):
            parts += [
                (part, f"messages[{i}].content[{j}]")
                for j, part in enumerate(message.content)
                if isinstance(part, ImagePart)
            ]
        return [await self._media.load(part, where) for part, where in parts]

    def _prepare(self, request: GenerateRequest, request_id: str, images: list[object]) -> Prepared:
        self._check_ids(request)
        limit = min(request.context_length or self._info.capabilities.context_length, self._context)
        if images or not self._info.capabilities.tokens:
            return self._with_media(request, request_id, images, limit)
        prompt = self._render(request)
        if prompt is not None:
            cut = Overflow(request.overflow or self._overflow) is not Overflow.ERROR
            longest = LONGEST_PIECE if cut else self._tokenizer.longest_piece
            refuse_hopeless(prompt.text, limit=limit, longest_piece=longest, param=_prompt_field(request))
        ids = list(request.prompt_token_ids or ()) if prompt is None else self._tokenizer.encode(prompt)
        if not ids:
            raise InvalidRequest("the prompt is empty", param="prompt")
        check_known(ids, self._info.vocab_size, _prompt_field(request))
        fitted = fit(
            ids,
            limit=limit,
            max_tokens=request.max_tokens,
            default_max_tokens=self._defaults.max_tokens(),
            policy=Overflow(request.overflow or self._overflow),
            bos_id=self._tokenizer.id_of(self._tokenizer.bos_token or ""),
            separate=self._info.encoder_decoder,
            param=_prompt_field(request),
        )
        text = self._prompt_text(prompt, fitted) if request.echo else ""
        engine_request = self._engine_request(request, request_id, fitted.ids, fitted.max_tokens, None, limit)
        return Prepared(engine_request, self._rules(request), text, fitted.truncated)

    @property
    def _context(self) -> int:
        return self._info.capabilities.context_length

    def _render(self, request: GenerateRequest) -> Prompt | None:
        if request.messages is not None:
            return self._rendered(request.messages)
        return None if request.prompt is None else Prompt.raw(request.prompt)

    def _rendered(self, messages: tuple[Message, ...]) -> Prompt:
        return replace(self._family.render(messages), messages=messages)

    def _refuse_ids(self, param: str) -> None:
        if not self._info.capabilities.tokens:
            raise Unsupported("this model's engine knows texts only, no token ids", param=param)

    def _prompt_text(self, prompt: Prompt | None, fitted: Fitted) -> str:
        if prompt is not None and not fitted.truncated:
            return prompt.text
        return self._tokenizer.decode(fitted.ids)

    def _with_media(self, request: GenerateRequest, request_id: str, images: list[object], limit: int) -> Prepared:
        """The engine's processor tokenizes this prompt, so a special token that the caller spelled is refused."""
        prompt = self._render(request)
        if prompt is None:
            raise InvalidRequest("images need a prompt in text, not in ids", param="images")
        if request.overflow is not None and request.overflow is not Overflow.ERROR:
            raise Unsupported("a prompt with images cannot be cut: overflow must be error", param="overflow")
        specials = self._tokenizer.special_strings | {self._info.image_token or ""} - {""}
        if spelled := forged(prompt, specials):
            raise InvalidRequest(
                f"a message beside images must not spell the model's own token {spelled}", param="messages"
            )
        max_tokens = request.max_tokens if request.max_tokens is not None else self._defaults.max_tokens()
        media = Media(prompt, tuple(images))
        engine_request = self._engine_request(request, request_id, (), max_tokens, media, limit)
        return Prepared(engine_request, self._rules(request), "", 0)

    def _engine_request(
        self,
        request: GenerateRequest,
        request_id: str,
        ids: tuple[int, ...],
        max_tokens: int | None,
        media: Media | None,
        limit: int,
    ) -> EngineRequest:
        seed = request.seed if request.seed is not None else secrets.randbelow(2**63)
        return EngineRequest(
            request_id=request_id,
            prompt_ids=ids,
            media=media,
            context_length=limit,
            max_tokens=max_tokens,
            max_tokens_is_default=request.max_tokens is None,
            min_tokens=request.min_tokens or 0,
            stop_ids=frozenset(request.stop_token_ids or ()) | self._eos(request),
            sampling=self._defaults.resolve(request),
            seeds=tuple(_wrap(seed + i) for i in range(request.n or 1)),
            seeded=request.seed is not None,
            logprobs=request.logprobs,
            prompt_logprobs=request.prompt_logprobs,
            cache_salt=request.cache_salt,
        )

    def _eos(self, request: GenerateRequest) -> frozenset[int]:
        return frozenset() if request.ignore_eos else self._eos_ids

    def _rules(self, request: GenerateRequest) -> StopRules:
        return StopRules(
            strings=request.stop if request.stop is not None else self._family.stop or self._info.stop,
            token_ids=request.stop_token_ids or (),
            sequences=request.stop_sequences or (),
            eos_ids=self._eos(request),
            min_tokens=request.min_tokens or 0,
            include_in_text=bool(request.include_stop_str_in_output),
            tokenizer=self._tokenizer,
        )

    def _check_ids(self, request: GenerateRequest) -> None:
        """An id past the vocabulary would fail deep inside an engine (and take a GPU process with it)."""
        named: dict[str, Iterable[int]] = {
            "prompt_token_ids": request.prompt_token_ids or (),
            "stop_token_ids": request.stop_token_ids or (),
            "stop_sequences": (i for ids in request.stop_sequences or () for i in ids),
            "logit_bias": request.logit_bias or (),
            "sequence_bias": (i for ids, _ in request.sequence_bias or () for i in ids),
            "bad_words_ids": (i for ids in request.bad_words_ids or () for i in ids),
            "suppress_tokens": request.suppress_tokens or (),
            "begin_suppress_tokens": request.begin_suppress_tokens or (),
        }
        for name, ids in named.items():
            check_known(ids, self._info.vocab_size, name)


def _typed(work: Callable[[], T]) -> T:
    try:
        return work()
    except DrivetrainError:
        raise
    except BaseException as exc:
        raise EngineFailed(f"the tokenizer failed on this text ({type(exc).__name__})") from exc


def _prompt_field(request: GenerateRequest) -> str:
    fields = ("messages", "prompt", "prompt_token_ids")
    return next(name for name in fields if getattr(request, name) is not None)


def check_known(ids: Iterable[int], vocab_size: int, param: str) -> None:
    worst = max(ids, default=-1)
    if worst >= vocab_size:
        raise InvalidRequest(
            f"{param} holds the id {worst}; the model's vocabulary ends at {vocab_size - 1}", param=param
        )


def _wrap(seed: int) -> int:
    """Seeds stay in 64 bits, signed."""
    return (seed + MAX_SEED + 1) % (2 * (MAX_SEED + 1)) - (MAX_SEED + 1)
