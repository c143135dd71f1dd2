"""A model's answers to schemas, each judged by a validator.

Every schema is sent to the worker, those that it will refuse too. What ends before its limit is JSON that validates,
and what was cut there is the beginning of an answer.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jsonschema_rs

from drivetrain.core.errors import DrivetrainError, InvalidRequest
from drivetrain.core.events import ChoiceFinished, Delta
from drivetrain.core.results import FinishReason

AT_ONCE = 16
VALID, CUT, REFUSED, TOO_WIDE = "valid", "cut by max_tokens", "refused", "refused on the way"
GOOD = (VALID, CUT, REFUSED, TOO_WIDE)
"""`TOO_WIDE`: a place inside the answer has too many ways on, which is found when the answer gets there (ADR 19)."""

Begins = Callable[[str, str], bool]
"""Is this text the beginning of an answer to the schema of this name?"""


def is_valid(schema: Any, value: Any) -> bool:
    return jsonschema_rs.validator_for(schema, validate_formats=True).is_valid(value)


@dataclass(frozen=True, slots=True)
class Outcome:
    kind: str
    note: str = ""
    tokens: int = 0


class Asking:
    """`seed` numbers each request: the n-th schema has the same one on every engine."""

    def __init__(self, worker: Any, begins: Begins, max_tokens: int) -> None:
        self._worker = worker
        self._begins = begins
        self._max_tokens = max_tokens
        self._gate = asyncio.Semaphore(AT_ONCE)
        self.outcomes: dict[str, Outcome] = {}

    async def all(self, cases: dict[str, dict[str, Any]]) -> dict[str, Any]:
        began = time.perf_counter()
        await asyncio.gather(*(self._one(name, case, number) for number, (name, case) in enumerate(cases.items())))
        seconds = time.perf_counter() - began
        await self._worker.generate(prompt="Hello", max_tokens=2, ignore_eos=True)
        return {
            "outcomes": dict(Counter(outcome.kind for outcome in self.outcomes.values()).most_common()),
            "faults": {name: f"{o.kind}: {o.note}" for name, o in self.outcomes.items() if o.kind not in GOOD},
            "on the way": {name: o.note for name, o in self.outcomes.items() if o.kind == TOO_WIDE},
            "tokens": sum(outcome.tokens for outcome in self.outcomes.values()),
            "seconds": round(seconds, 1),
        }

    @property
    def honoured(self) -> set[str]:
        return {name for name, outcome in self.outcomes.items() if outcome.kind != REFUSED}

    async def _one(self, name: str, case: dict[str, Any], number: int) -> None:
        async with self._gate:
            self.outcomes[name] = await self._ask(name, case, number)
        if len(self.outcomes) % 25 == 0:
            print(f"{len(self.outcomes)} schemas asked", file=sys.stderr, flush=True)

    async def _ask(self, name: str, case: dict[str, Any], number: int) -> Outcome:
        text, tokens, reason = "", 0, None
        try:
            async for event in self._worker.stream(
                messages=[{"role": "user", "content": "Give me an example of " + case["description"]}],
                constraint={"json_schema": case["schema"]}, temperature=1.0, seed=number, max_tokens=self._max_tokens,
            ):  # fmt: skip
                if isinstance(event, Delta):
                    text, tokens = text + event.text, tokens + len(event.token_ids)
                elif isinstance(event, ChoiceFinished):
                    reason = event.reason
        except InvalidRequest as exc:
            if exc.param is None or not exc.param.startswith("constraint"):
                return Outcome(f"error: {exc.code}", exc.message, tokens)
            return Outcome(TOO_WIDE if tokens else REFUSED, exc.message, tokens)
        except DrivetrainError as exc:
            return Outcome(f"error: {exc.code}", exc.message, tokens)
        return self._judged(name, case["schema"], text, tokens, reason)

    def _judged(self, name: str, schema: Any, text: str, tokens: int, reason: FinishReason | None) -> Outcome:
        if reason is FinishReason.LENGTH:
            # Half a character at the end is told as U+FFFD.
            whole = self._begins(name, text.rstrip("\ufffd"))
            return Outcome(CUT if whole else "NO BEGINNING", text[-300:], tokens)
        if reason is not FinishReason.STOP:
            return Outcome(f"ended: {reason}", text[:300], tokens)
        try:
            good = is_valid(schema, json.loads(text))
        except ValueError as exc:
            return Outcome("INVALID", f"{exc}: {text[:300]}", tokens)
        return Outcome(VALID if good else "INVALID", text[:300], tokens)
