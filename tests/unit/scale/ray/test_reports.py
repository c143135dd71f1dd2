"""What several replicas are together."""

from __future__ import annotations

import pytest

from drivetrain.core.capabilities import Capabilities
from drivetrain.core.results import EngineCounts
from drivetrain.core.status import Metadata, State, Status
from drivetrain.scale.ray.reports import RECENT_S, ReplicaReport, ReplicaReports, Terms


def report(
    replica: str,
    state: State = State.READY,
    *,
    alive: bool = True,
    progress_s: float = 0.0,
    mask_s: float | None = None,
) -> ReplicaReport:
    return ReplicaReport(
        metadata=Metadata(
            name="m", engine="fake", architecture="", device="cpu", dtype="", context_length=99, vocab_size=9,
            family="", family_why="", answer_form="", answer_form_why="", tool_form="", tool_form_why="",
            roles={}, separator="", stop=(), eos_ids=(), embedding_size=0, pooling=None,
            sampling={}, versions={},
        ),
        capabilities=Capabilities(parameters=frozenset(), context_length=99),
        terms=Terms(timeout_s=5, drain_s=1, reader_timeout_s=5, max_unread=100),
        status=Status(
            state=state, running=0, waiting=0, endings={}, prompt_tokens=0, completion_tokens=0, engine_alive=alive,
            last_progress_s=progress_s, counts=EngineCounts(2, mask_s),
        ),
        restarts=1,
        replica=replica,
    )  # fmt: skip


def reports_of(*states: State) -> ReplicaReports:
    reports = ReplicaReports()
    for number, state in enumerate(states):
        reports.add(report(str(number), state), 0.0)
    return reports


@pytest.mark.parametrize(
    ("states", "together"),
    [
        ((), State.LOADING),
        ((State.READY, State.RESTARTING, State.FAILED), State.READY),
        ((State.RESTARTING, State.RESTARTING), State.RESTARTING),
        ((State.FAILED, State.RESTARTING, State.DRAINING), State.RESTARTING),
        ((State.FAILED, State.FAILED), State.FAILED),
        ((State.DRAINING, State.STOPPED), State.LOADING),
    ],
)
def test_they_are_what_the_best_of_them_is(states: tuple[State, ...], together: State) -> None:
    assert reports_of(*states).state is together


def test_an_engine_lives_where_requests_are_taken() -> None:
    reports = ReplicaReports()
    reports.add(report("a", State.RESTARTING, alive=True), 0.0)
    reports.add(report("b", State.READY, alive=False), 0.0)
    assert not reports.engine_alive
    reports.add(report("c", State.READY, alive=True), 0.0)
    assert reports.engine_alive


def test_the_last_progress_is_that_of_any() -> None:
    reports = ReplicaReports()
    assert reports.last_progress() is None
    reports.add(report("a", progress_s=50.0), 100.0)
    reports.add(report("b", progress_s=3.0), 98.0)
    assert reports.last_progress() == 95.0


def test_one_that_is_not_heard_beside_others_counts_no_more_but_its_counts_do() -> None:
    reports = ReplicaReports()
    reports.add(report("lost"), 0.0)
    together = []
    for now in (RECENT_S, RECENT_S + 0.1):
        reports.add(report("other", State.RESTARTING), now)
        together.append(reports.state)
    assert together == [State.READY, State.RESTARTING]
    assert (reports.restarts, reports.counts.preemptions) == (2, 4)
    reports.add(report("lost"), 1000.0)
    assert (reports.restarts, reports.counts.preemptions) == (2, 4)


def test_the_time_of_masks_is_the_sum_over_those_that_tell() -> None:
    reports = ReplicaReports()
    reports.add(report("a"), 0.0)
    assert reports.counts.mask_s is None
    for mask_s in (0.5, 0.25):  # one that comes late
        reports.add(report("b", mask_s=mask_s), 0.0)
    reports.add(report("c", mask_s=1.0), 0.0)
    assert reports.counts.mask_s == 1.5


def test_a_long_silence_makes_nobody_worse() -> None:
    """A poll waits for a free replica: while all are busy, none reports."""
    reports = ReplicaReports()
    reports.add(report("busy"), 0.0)
    reports.add(report("away", State.RESTARTING), 1.0)
    assert reports.state is State.READY
    reports.add(report("busy"), 500.0)
    assert reports.state is State.READY
