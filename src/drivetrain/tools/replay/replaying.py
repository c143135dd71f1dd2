"""Makes the answers of receipts again on one worker, and scores the recorded ids where another answer comes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Unpack

from drivetrain.core.capabilities import Capabilities
from drivetrain.core.engine import Progress
from drivetrain.core.errors import DrivetrainError, InvalidRequest
from drivetrain.core.options import GenerateOptions
from drivetrain.core.receipt import ChoiceRecord, Receipt
from drivetrain.core.request import choice_seed
from drivetrain.core.results import Choice, Result
from drivetrain.core.status import Metadata
from drivetrain.tools.diff.compare import AnswerToken, Parting
from drivetrain.tools.diff.record import place_of, places_of
from drivetrain.tools.replay.again import is_greedy, request_of
from drivetrain.tools.replay.reading import Entry
from drivetrain.tools.replay.verdict import ChoiceVerdict, Replayed, Verdict, apart, first_difference, same_end, unknown

HALVINGS = 12
"""How many smaller shifts are tried where an answer is drawn: a large one passes an unlikely token by."""


class Generator(Protocol):
    """The part of a worker that is needed here."""

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def metadata(self) -> Metadata: ...

    async def generate(self, **request: Unpack[GenerateOptions]) -> Result: ...


@dataclass(frozen=True, slots=True)
class Terms:
    """`num_top` alternatives are listed. What a shift of two logits by `tolerance` turns around is rounding."""

    num_top: int
    tolerance: float


async def replay_all(
    worker: Generator, entries: Sequence[Entry], terms: Terms, label: str, progress: Progress
) -> list[Replayed]:
    """In the order of the entries, as many at once as the worker takes."""
    places = asyncio.Semaphore(worker.capabilities.max_concurrency)
    done = 0

    async def one(entry: Entry) -> Replayed:
        nonlocal done
        async with places:
            replayed = await replay(worker, entry, terms)
        done += 1
        progress(f"replaying on {label}", done / len(entries))
        return replayed

    progress(f"replaying on {label}", 0.0)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(entry)) for entry in entries]
    return [task.result() for task in tasks]


async def replay(worker: Generator, entry: Entry, terms: Terms) -> Replayed:
    receipt = entry.receipt
    if receipt is None:
        return Replayed(entry.where, None, Verdict.INVALID, entry.fault)
    try:
        return Replayed.of(entry.where, receipt, await _Replay(worker, receipt, terms).run())
    except InvalidRequest as exc:
        return Replayed(entry.where, receipt, Verdict.REFUSED, exc.message)
    except DrivetrainError as exc:
        return Replayed(entry.where, receipt, Verdict.FAILED, exc.message)
    except (TypeError, ValueError, AttributeError, KeyError):  # anybody can write a receipt
        return Replayed(entry.where, receipt, Verdict.REFUSED, "what it holds is not a request of this version")


class _Replay:
    """One receipt on one worker."""

    def __init__(self, worker: Generator, receipt: Receipt, terms: Terms) -> None:
        self._worker = worker
        self._receipt = receipt
        self._terms = terms
        self._can = worker.capabilities.parameters
        self._request = request_of(receipt, worker.capabilities)

    async def run(self) -> list[ChoiceVerdict]:
        wanted: dict[str, Any] = {"logprobs": self._terms.num_top} if "logprobs" in self._can else {}
        result = await self._worker.generate(**self._request, **wanted)
        if result.prompt_token_ids != self._receipt.prompt.ids:
            why = "the messages are rendered or split in another way here"
            return [ChoiceVerdict(each.index, Verdict.OTHER_PROMPT, why=why) for each in self._receipt.choices]
        if len(result.choices) != len(self._receipt.choices):
            raise InvalidRequest("it does not have as many choices as it asked for", param="receipt")
        pairs = zip(self._receipt.choices, result.choices, strict=True)
        return [await self._judge(recorded, again) for recorded, again in pairs]

    async def _judge(self, recorded: ChoiceRecord, again: Choice) -> ChoiceVerdict:
        at, places = first_difference(recorded.token_ids, again.token_ids), places_of(again)
        if at is None and same_end(recorded.finish_reason, again.finish_reason):
            found = tuple(place.logprob for place in places)
            return ChoiceVerdict(recorded.index, Verdict.IDENTICAL, logprobs=found)
        if at is None:
            why = f"it ended by {recorded.finish_reason}, and here by {again.finish_reason}"
            return ChoiceVerdict(recorded.index, Verdict.DIFFERENT, len(recorded.token_ids), None, why)
        forced = await self._forced(recorded.token_ids)
        second = places[at] if at < len(places) else None
        first = forced[at] if at < len(forced) else None
        if first is None and at < len(recorded.token_ids):
            first = unknown(recorded.token_ids[at], second)
        how = await self._turned(recorded, at, first, second)
        verdict, why = (Verdict.ROUNDING, how) if how else (Verdict.DIFFERENT, self._why(first, second))
        known = forced or places[:at]
        found = tuple(place.logprob for place in known)
        return ChoiceVerdict(recorded.index, verdict, at, Parting(first, second), why, found)

    async def _forced(self, ids: Sequence[int]) -> list[AnswerToken]:
        """Each recorded id behind those before it, as this engine rates it; empty if it rates no prompt."""
        if not {"prompt_logprobs", "echo"} <= self._can or "prompt_token_ids" not in self._request or not ids:
            return []
        prompt = (*self._request["prompt_token_ids"], *ids)
        asked: dict[str, Any] = {"max_tokens": 0, "echo": True, "prompt_logprobs": self._terms.num_top}
        try:
            result = await self._worker.generate(prompt_token_ids=prompt, **asked)
        except InvalidRequest:  # it is too long to be listed, say
            return []
        entries = (result.choices[0].logprobs or ())[-len(ids) :]
        return [place_of(entry) for entry in entries] if [e.token_id for e in entries] == list(ids) else []

    async def _turned(
        self, recorded: ChoiceRecord, at: int, first: AnswerToken | None, second: AnswerToken | None
    ) -> str:
        """How little brings the recorded token back; empty if more than rounding is needed, or if nobody can tell.

        The answer is made again up to there: as it is, in other company; with the logits of the two tokens moved
        towards each other; and a sampled one with them moved apart, which moves the edges of others in the draw, and
        with its temperature moved, which moves all logits.
        """
        is_drawn = not is_greedy(self._receipt)
        if first is None or second is None or (is_drawn and "seed" not in self._request):
            return ""
        tolerance, wanted = self._terms.tolerance, (*recorded.token_ids[:at], first.token_id)
        if "logit_bias" not in self._can:
            near = apart(first, second)
            tied = is_greedy(self._receipt) and near is not None and near <= tolerance
            return f"the engine rates the two tokens {near:.2g} apart" if tied else ""
        for when, nudge in self._nudges(first.token_id, second.token_id):
            if await self._so_far(recorded.index, at, nudge) == wanted:
                return f"the recorded token comes {when}"
        return ""

    def _nudges(self, wanted: int, instead: int) -> Iterator[tuple[str, dict[str, Any]]]:
        tolerance, drawn = self._terms.tolerance, not is_greedy(self._receipt)
        biases = {int(token_id): bias for token_id, bias in (self._request.get("logit_bias") or {}).items()}
        temperature = self._request.get("temperature", 1.0)

        def moved(share: float) -> dict[str, Any]:
            both = {wanted: biases.get(wanted, 0) + share / 2, instead: biases.get(instead, 0) - share / 2}
            return {"logit_bias": biases | both}

        yield "when the answer is made once more, in other company", {}
        num_shares = HALVINGS if drawn and self._draws_alike else 1
        for share in [tolerance / 2**halvings for halvings in reversed(range(num_shares))]:
            yield f"if the logits of the two are moved towards each other by {share:.2g}", moved(share)
            if drawn:
                yield f"if the logits of the two are moved apart by {share:.2g}", moved(-share)
                for word, factor in (("higher", 1 + share), ("lower", 1 - share)):
                    moved_to = max(0.0, min(2.0, temperature * factor))
                    yield f"if the temperature is {word} by a share of {share:.2g}", {"temperature": moved_to}

    @property
    def _draws_alike(self) -> bool:
        return self._worker.metadata.engine == self._receipt.engine

    async def _so_far(self, index: int, at: int, nudge: Mapping[str, Any]) -> tuple[int, ...]:
        """The ids of one choice up to this place, with a nudge."""
        request = {**self._request, **nudge, "n": 1, "max_tokens": at + 1}
        if "seed" in request:
            request["seed"] = choice_seed(request["seed"], index)
        if "min_tokens" in request:
            request["min_tokens"] = min(request["min_tokens"], at + 1)
        try:
            result = await self._worker.generate(**request)
        except InvalidRequest:  # a bias out of range, say
            return ()
        return result.choices[0].token_ids

    def _why(self, first: AnswerToken | None, second: AnswerToken | None) -> str:
        if first is None or second is None:
            return "one answer ends where the other goes on"
        near = apart(first, second)
        if near is None and first.logprob is not None and second.logprob is not None:
            near = abs(first.logprob - second.logprob)
        if near is None:
            return "the engine does not list the recorded token"
        apart_by_draw = not is_greedy(self._receipt) and not self._draws_alike
        drawn = "; the answer is sampled, and each engine draws in its own way" if apart_by_draw else ""
        return f"the engine rates the two tokens {near:.2g} apart{drawn}"
