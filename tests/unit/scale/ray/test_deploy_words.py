"""What several replicas are together."""

from __future__ import annotations

import pytest

from drivetrain.core.capabilities import Capabilities
from drivetrain.core.status import Metadata, State, Status
from drivetrain.scale.ray.replica import Description, Terms
from drivetrain.scale.ray.reports import RECENT_S, ReplicaReports


def said(replica: str, state: State = State.READY, *, alive: bool = True, progress_s: float = 0.0) -> Description:
    return Description(
        metadata=Metadata(
            name="m", engine="fake", architecture="", device="cpu", dtype="", context_length=99, vocab_size=9,
            family="", family_why="", roles={}, separator="", stop=(), eos_ids=(), embedding_size=0, pooling=None,
            sampling={}, versions={},
        ),
        capabilities=Capabilities(parameters=frozenset(), context_length=99),
        terms=Terms(timeout_s=5, drain_s=1, reader_timeout_s=5, max_unread=100),
        status=Status(
            state=state, running=0, waiting=0, endings={}, prompt_tokens=0, completion_tokens=0, engine_alive=alive,
            last_progress_s=progress_s, preemptions=2,
        ),
        restarts=1,
        replica=replica,
    )  # fmt: skip


def heard(*states: State) -> ReplicaReports:
    words = ReplicaReports()
    for number, state in enumerate(states):
        words.hear(said(str(number), state), 0.0)
    return words


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
    assert heard(*states).state is together


def test_an_engine_lives_where_requests_are_taken() -> None:
    words = ReplicaReports()
    words.hear(said("a", State.RESTARTING, alive=True), 0.0)
    words.hear(said("b", State.READY, alive=False), 0.0)
    assert not words.engine_alive
    words.hear(said("c", State.READY, alive=True), 0.0)
    assert words.engine_alive


def test_the_last_progress_is_that_of_any() -> None:
    words = ReplicaReports()
    assert words.last_progress() is None
    words.hear(said("a", progress_s=50.0), 100.0)
    words.hear(said("b", progress_s=3.0), 98.0)
    assert words.last_progress() == 95.0


def test_one_that_is_not_heard_beside_others_counts_no_more_but_its_counts_do() -> None:
    words = ReplicaReports()
    words.hear(said("lost"), 0.0)
    together = []
    for now in (RECENT_S, RECENT_S + 0.1):
        words.hear(said("other", State.RESTARTING), now)
        together.append(words.state)
    assert together == [State.READY, State.RESTARTING]
    assert (words.restarts, words.preemptions) == (2, 4)
    words.hear(said("lost"), 1000.0)
    assert (words.restarts, words.preemptions) == (2, 4)


def test_a_long_silence_makes_nobody_worse() -> None:
    """A look waits for a free replica: where all are at work, none is heard."""
    words = ReplicaReports()
    words.hear(said("busy"), 0.0)
    words.hear(said("away", State.RESTARTING), 1.0)
    assert words.state is State.READY
    words.hear(said("busy"), 500.0)
    assert words.state is State.READY
