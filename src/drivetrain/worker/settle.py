"""What a request leaves open, settled for its model: its sampling values by their sources, its room in the context."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any

from drivetrain.core.errors import ContextOverflow
from drivetrain.core.request import GenerateRequest, Overflow
from drivetrain.core.sampling import Sampling
from drivetrain.families.base import Family

NEUTRAL = Sampling()
_NAMES = tuple(field.name for field in fields(Sampling))
_asked = attrgetter(*_NAMES)

GUARD = "max_repetitions"
"""Honoured by the worker, so not a part of how an engine samples."""

Layer = tuple[str, Mapping[str, Any]]
"""The name of a source and what it says."""

RESERVE = 256
"""Room kept for an answer of unstated length when a prompt is cut (a quarter of a small context)."""


class Defaults:
    """The layers under a request, first one first. Values that the engine cannot honour are left out."""

    def __init__(
        self,
        *,
        settings: Mapping[str, Any],
        weights: Mapping[str, Any],
        catalogue: Mapping[str, Any],
        family: Family,
        honoured: frozenset[str],
    ) -> None:
        form = dict(family.sampling)
        if family.max_tokens is not None:
            form["max_tokens"] = family.max_tokens
        self._layers: list[Layer] = [
            ("settings", settings),
            ("generation_config", weights),
            ("catalogue", catalogue),
            ("family", form),
        ]
        self._origin: dict[str, tuple[str, Any]] = {}
        for name in _NAMES:
            if name in honoured:
                self._origin[name] = self._find(name, getattr(NEUTRAL, name))
        self._guard = self._find(GUARD, 0) if GUARD in honoured else None
        self._resolved = Sampling(**{name: value for name, (_, value) in self._origin.items()})

    @property
    def origins(self) -> Mapping[str, tuple[str, Any]]:
        """For each honoured sampling field: who decides it when the request does not, and the value."""
        return {**self._origin, **({GUARD: self._guard} if self._guard else {})}

    def resolve(self, request: GenerateRequest) -> Sampling:
        """A request that asks for a temperature above 0 lifts a default `top_k` of 1, which would undo it."""
        asked = {name: value for name, value in zip(_NAMES, _asked(request), strict=True) if value is not None}
        if not asked:
            return self._resolved
        if asked.get("temperature", 0) > 0 and self._resolved.top_k == 1:
            asked.setdefault("top_k", NEUTRAL.top_k)
        return replace(self._resolved, **asked)

    def settled(self, request: GenerateRequest) -> dict[str, tuple[str, Any]]:
        """For each honoured sampling field: who decided it for this request, and the value in force."""
        sampling, found = self.resolve(request), {}
        for name, (origin, default) in self._origin.items():
            value = getattr(sampling, name)
            if getattr(request, name) is not None:
                origin = "request"
            elif value != default:  # the request asked for something that this would undo
                origin = "neutral"
            found[name] = (origin, value)
        if self._guard:
            asked = request.max_repetitions
            found[GUARD] = self._guard if asked is None else ("request", asked)
        return found

    def max_repetitions(self, request: GenerateRequest) -> int:
        """0: a choice may repeat itself."""
        if request.max_repetitions is not None:
            return request.max_repetitions
        return self._guard[1] if self._guard else 0

    def max_tokens(self) -> int | None:
        return self.max_tokens_from()[1]

    def max_tokens_from(self) -> tuple[str, int | None]:
        """With who says so."""
        return self._find("max_tokens", None, "context")

    def _find(self, name: str, otherwise: Any, origin: str = "neutral") -> tuple[str, Any]:
        """What the first layer says that has it, with the layer's name."""
        said = ((source, layer[name]) for source, layer in self._layers if name in layer)
        return next(said, (origin, otherwise))


def refuse_hopeless(text: str, *, limit: int, longest_piece: int, param: str) -> None:
    """Before it is split: a text that cannot fit by its length alone."""
    if len(text) > limit * longest_piece:
        raise ContextOverflow(
            f"the prompt is too long: {len(text)} characters are far more than a context of {limit} tokens can hold",
            prompt_tokens=len(text) // longest_piece,
            limit=limit,
            param=param,
        )


@dataclass(frozen=True, slots=True)
class Fitted:
    ids: tuple[int, ...]
    max_tokens: int
    truncated: int = 0


def fit(
    ids: list[int],
    *,
    limit: int,
    max_tokens: int | None,
    default_max_tokens: int | None,
    min_tokens: int = 0,
    policy: Overflow,
    bos_id: int | None,
    separate: bool = False,
    param: str = "prompt",
    can_be_cut: bool = True,
) -> Fitted:
    """`max_tokens` and `min_tokens` are what the request says; the default is clamped to the room, its word is not,
    unless the policy is to shorten the answer.

    `param` names the field that holds the prompt. `separate`: encoder and decoder have a context each
    (encoder-decoder models). A cut keeps a leading BOS. `can_be_cut`: whether a prompt that does not fit could be.
    """
    if policy is Overflow.SHORTEN_ANSWER and max_tokens:
        default_max_tokens, max_tokens = max_tokens, None
    field, stated = ("min_tokens", min_tokens) if max_tokens is None else ("max_tokens", max_tokens)
    if stated > limit - (0 if separate else 1):
        raise ContextOverflow(
            f"{field} is {stated}, which leaves no room for a prompt in a context of {limit} tokens",
            prompt_tokens=len(ids),
            limit=limit,
            param=field,
        )
    cutting = policy.cuts
    answer = stated if max_tokens is not None else max(stated, _answer_room(limit, default_max_tokens, cutting=cutting))
    room = limit if separate else limit - answer
    if len(ids) > room:
        if not cutting or room < 1:
            raise _overflow(len(ids), field, stated, limit, param, can_be_cut=can_be_cut)
        ids, truncated = _cut(ids, room, policy, bos_id)
    else:
        truncated = 0
    left = limit if separate else limit - len(ids)
    wanted = max_tokens if max_tokens is not None else default_max_tokens
    return Fitted(tuple(ids), left if wanted is None else min(max(wanted, min_tokens), left), truncated)


def _answer_room(limit: int, default: int | None, *, cutting: bool) -> int:
    if not cutting:
        return 1
    return max(1, min(default or RESERVE, RESERVE, limit // 4))


def _cut(ids: list[int], room: int, policy: Overflow, bos_id: int | None) -> tuple[list[int], int]:
    head = ids[:1] if bos_id is not None and ids[:1] == [bos_id] and room > 1 else []
    body = ids[len(head) :]
    keep = room - len(head)
    if policy is Overflow.TRUNCATE_LEFT:
        kept = body[len(body) - keep :]
    else:
        front = keep // 2
        kept = body[:front] + body[len(body) - (keep - front) :]
    return head + kept, len(body) - keep


def _overflow(
    prompt_tokens: int, field: str, stated: int, limit: int, param: str, *, can_be_cut: bool
) -> ContextOverflow:
    """In the words by which clients know it."""
    if stated and prompt_tokens < limit:
        said = f"input length and `{field}` exceed context limit: {prompt_tokens} + {stated} > {limit}"
    elif prompt_tokens == limit:
        said = f"prompt is too long: {limit} tokens > {limit - 1}, for the context of {limit} holds an answer too"
    else:
        said = f"prompt is too long: {prompt_tokens} tokens > {limit} of the context"
    return ContextOverflow(
        f"{said}; "
        f"shorten the prompt or the answer{', or set overflow to truncate_left or truncate_middle' * can_be_cut}",
        prompt_tokens=prompt_tokens,
        limit=limit,
        param=field if stated and prompt_tokens < limit else param,
    )
