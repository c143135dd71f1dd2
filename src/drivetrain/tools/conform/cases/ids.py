"""The ids of answers and requests."""

from __future__ import annotations

from drivetrain.tools.conform.case import ALWAYS, Area, Cases
from drivetrain.tools.conform.trial import Trial
from drivetrain.tools.conform.verdict import NotOffered, ensure

CASES = Cases(Area.IDS, ALWAYS)
case = CASES.case

HEADER = "x-request-id"


@case("unique", asks="the same request twice", holds="two different ids in the answers")
async def _unique(t: Trial) -> None:
    api = await t.known.text_api()
    ids = [(await t.generate(api)).document.get("id") for _ in range(2)]
    ensure(all(isinstance(i, str) and i for i in ids), f"the ids are {ids}")
    ensure(ids[0] != ids[1], f"two answers have the same id {ids[0]!r}")


@case("streams_unique", asks="the same stream twice", holds="two different ids in the events")
async def _streams_unique(t: Trial) -> None:
    api = await t.known.text_api()
    ids = [(await t.stream(api)).document.get("id") for _ in range(2)]
    ensure(all(isinstance(i, str) and i for i in ids), f"the ids are {ids}")
    ensure(ids[0] != ids[1], f"two streams have the same id {ids[0]!r}")


@case("header", asks="two requests", holds="two different x-request-id headers", offered="answers have the header")
async def _header(t: Trial) -> None:
    found = [(await t.get("/models")).reply_headers.get(HEADER) for _ in range(2)]
    if not any(found):
        raise NotOffered(f"answers have no header {HEADER}")
    ensure(all(found) and found[0] != found[1], f"two answers have the request ids {found}")
