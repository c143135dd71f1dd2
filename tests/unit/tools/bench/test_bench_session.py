"""Rounds of two sides in turns, warm-ups dropped, and what is left of a run that is interrupted."""

from __future__ import annotations

import asyncio

import pytest
from bench_rigs import ScriptedTarget, failed, outcome, workload

from drivetrain.tools.bench.outcome import RequestOutcome
from drivetrain.tools.bench.session import WARM_UP_ARRIVALS, BenchSide, NotAnswered, Session, order
from drivetrain.tools.bench.workload import Closed, Level, arrivals


def quiet(doing: str, share: float) -> None:
    return None


async def test_rounds_are_interleaved_and_the_first_of_a_turn_alternates() -> None:
    log: list[tuple[str, str, int]] = []
    session = Session(
        [BenchSide(ScriptedTarget("a", log)), BenchSide(ScriptedTarget("b", log))], [Closed(2)], workload(rounds=3)
    )
    await session.run(quiet)
    assert "".join(label for label, _, _ in log) == "aabb" + "bbaa" + "aabb" + "bbaa"
    assert [len(rounds) for rounds in session.played[0].rounds] == [3, 3]  # the warm-up is not among them


async def test_both_sides_get_the_same_prompts_and_no_round_has_those_of_another() -> None:
    log: list[tuple[str, str, int]] = []
    session = Session(
        [BenchSide(ScriptedTarget("a", log)), BenchSide(ScriptedTarget("b", log))], [Closed(2), Closed(3)], workload()
    )
    await session.run(quiet)
    ours, theirs = ([prompt for label, prompt, _ in log if label == side] for side in "ab")
    assert sorted(ours) == sorted(theirs)
    assert len(set(ours)) == len(ours) == 3 * (2 + 3)


async def test_sides_with_a_salt_share_no_prompt() -> None:
    log: list[tuple[str, str, int]] = []
    sides = [BenchSide(ScriptedTarget("a", log), salt="0"), BenchSide(ScriptedTarget("b", log), salt="1")]
    await Session(sides, [Closed(4)], workload()).run(quiet)
    assert len({prompt for _, prompt, _ in log}) == len(log)


async def test_prompts_are_as_long_as_the_first_side_says() -> None:
    """The scripted target has three tokens around its words."""
    target = ScriptedTarget("a")
    session = Session([BenchSide(target)], [Closed(1)], workload(prompt_tokens=50))
    await session.prepare()
    assert [tokens for _, _, tokens in target.log] == [1, 1]
    await session.run(quiet)
    assert {len(prompt.split()) for _, prompt, _ in target.log[2:]} == {47}
    assert {tokens for _, _, tokens in target.log[2:]} == {4}


async def test_a_closed_loop_has_no_more_streams_than_asked_for() -> None:
    active, most = 0, 0

    async def answer(prompt: str, max_tokens: int) -> RequestOutcome:
        nonlocal active, most
        active += 1
        most = max(most, active)
        await asyncio.sleep(0.001)
        active -= 1
        return outcome(0.0, [0.1])

    session = Session([BenchSide(ScriptedTarget("a", answer=answer))], [Closed(3, 4)], workload(rounds=1))
    await session.run(quiet)
    assert most == 3
    assert len(session.played[0].rounds[0][0].outcomes) == 12


async def test_an_open_loop_sends_when_it_is_due_whether_or_not_it_was_answered() -> None:
    level = arrivals(20.0, 5, count=20)
    sent: list[float] = []
    all_sent = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def answer(prompt: str, max_tokens: int) -> RequestOutcome:
        sent.append(loop.time())
        if len(sent) == WARM_UP_ARRIVALS + level.num_requests:
            all_sent.set()
        elif len(sent) > WARM_UP_ARRIVALS:
            await all_sent.wait()  # nobody is answered before the last one is sent
        return outcome(0.0, [0.1])

    session = Session([BenchSide(ScriptedTarget("a", answer=answer))], [level], workload(rounds=1))
    await session.run(quiet)
    measured = sent[WARM_UP_ARRIVALS:]
    assert len(measured) == 20
    passed = [at - measured[0] for at in measured]
    assert level.due_s[-1] > 0.6
    assert all(at >= due - level.due_s[0] - 0.25 for at, due in zip(passed, level.due_s, strict=True))


async def test_the_share_grows_to_the_whole() -> None:
    shares: list[float] = []
    levels: list[Level] = [Closed(2), arrivals(1000.0, 1, count=10)]
    session = Session([BenchSide(ScriptedTarget("a")), BenchSide(ScriptedTarget("b"))], levels, workload())
    await session.run(lambda doing, share: shares.append(share))
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


async def test_a_side_that_refuses_is_told_before_anything_is_measured() -> None:
    async def refuse(prompt: str, max_tokens: int) -> RequestOutcome:
        return failed("http 400", "what is ignore_eos?")

    session = Session([BenchSide(ScriptedTarget("a", answer=refuse))], [Closed(1)], workload())
    with pytest.raises(NotAnswered, match=r"a does not answer: http 400: what is ignore_eos\?; ask another one"):
        await session.prepare()
    with pytest.raises(NotAnswered, match="answered no request of the first round"):
        await session.run(quiet)


async def test_failures_after_the_first_round_are_measured() -> None:
    asked = 0

    async def answer(prompt: str, max_tokens: int) -> RequestOutcome:
        nonlocal asked
        asked += 1
        return failed() if asked > 2 else outcome(0.0, [0.1])

    session = Session([BenchSide(ScriptedTarget("a", answer=answer))], [Closed(2)], workload(rounds=1))
    await session.run(quiet)
    assert session.played[0].rounds[0][0].failures == {"overloaded": 2}


async def test_an_interrupt_keeps_what_was_answered() -> None:
    asked = 0

    async def answer(prompt: str, max_tokens: int) -> RequestOutcome:
        nonlocal asked
        asked += 1
        if asked == 6:  # the second of the second measured round
            await asyncio.Event().wait()
        return outcome(0.0, [0.1])

    session = Session([BenchSide(ScriptedTarget("a", answer=answer))], [Closed(2)], workload(rounds=5))
    running = asyncio.ensure_future(session.run(quiet))
    while asked < 6:
        await asyncio.sleep(0.001)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    whole, part = session.played[0].rounds[0]
    assert (whole.complete, len(whole.outcomes)) == (True, 2)
    assert (part.complete, len(part.outcomes)) == (False, 1)


async def test_an_answer_that_takes_too_long_is_a_failure_and_the_others_are_not() -> None:
    asked = 0

    async def answer(prompt: str, max_tokens: int) -> RequestOutcome:
        nonlocal asked
        asked += 1
        if asked == 4:
            await asyncio.Event().wait()
        return outcome(0.0, [0.1])

    session = Session([BenchSide(ScriptedTarget("a", answer=answer))], [Closed(2)], workload(rounds=1, timeout_s=0.05))
    await session.run(quiet)
    (done,) = session.played[0].rounds[0]
    assert done.failures == {"timeout": 1}
    assert len(done.answers) == 1


def test_order() -> None:
    assert [order(turn, 2) for turn in range(4)] == [[0, 1], [1, 0], [0, 1], [1, 0]]
    assert order(3, 1) == [0]
