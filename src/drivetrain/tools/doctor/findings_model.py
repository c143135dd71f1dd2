"""What is wrong with one model."""

from __future__ import annotations

from collections.abc import Iterator

from drivetrain.core.errors import DeadlineExceeded, EngineFailed, NotLoaded, NotReady, OutOfMemory, Overloaded
from drivetrain.core.status import State
from drivetrain.tools.doctor.amounts import many, percent, span
from drivetrain.tools.doctor.report import Finding, ModelReport, Severity

OFTEN = 0.05
FAILING = 0.01
FEW = 3
"""This many are no accident, however small their share is."""

FULL_KV = 0.95
LONG_QUEUE_S = 10.0
RESTARTS_A_DAY = 1.0
TURNS = 0.2
"""Loads per request above which models push one another out of memory."""

_MORE = {
    "llamacpp": "more --slots",
    "native": "a larger --max-batch",
    "transformers": "--engine native if it can run the model (drivetrain inspect says so)",
    "remote": "more upstreams",
    "vllm": "more max_num_seqs in --vllm-args",
}
"""How each engine runs more at once."""

_LESS_KV = {
    "llamacpp": "a larger --context-length or fewer --slots",
    "native": "a larger --kv-cache-gb, or a --max-running low enough that all fit",
    "vllm": "a larger --kv-cache-gb, or a --max-running low enough that all fit",
}


def of_model(model: ModelReport, *, ready: bool, uptime_s: float | None) -> Iterator[Finding]:
    """`ready` is that of the whole server."""
    yield from _state(model, ready)
    yield from _engine(model, uptime_s)
    yield from _endings(model)
    yield from _room(model)


def _state(model: ModelReport, ready: bool) -> Iterator[Finding]:
    name = model.name
    if model.state == State.FAILED and model.engine_alive is not None:
        yield _act(
            "failed",
            name,
            "The engine hangs and cannot be stopped.",
            "Requests for it get 503, and its memory stays in use.",
            "restart the server; its log says since when",
        )
    elif model.state == State.FAILED:
        retry = f" and it will be tried again in {span(model.retry_in_s)}" if model.retry_in_s else ""
        yield _act(
            "failed",
            name,
            f"The model could not be loaded{f': {model.failure}' if model.failure else '.'}",
            f"Requests for it get 503{retry}.",
            "fix the cause, then POST /admin/models/load"
            if model.failure
            else "the server's log says why, and so does this command with a key for /admin (--admin-key-file)",
        )
    elif model.state == State.RESTARTING:
        yield _act(
            "restarting",
            name,
            "The engine has failed and is being restarted.",
            "Requests get 503 with Retry-After until it runs.",
            "check again in a minute; the server's log says why it failed",
        )
    elif model.state == State.LOADING:
        far = f" ({percent(model.loading_share)})" if model.loading_share else ""
        yield Finding(
            code="loading",
            level=Severity.NOTE if ready else Severity.ACT,
            model=name,
            what=f"The model is being loaded{far}.",
            means="Requests for it wait.",
            remedy="check again in a moment",
        )
    elif model.state in {State.DRAINING, State.STOPPED}:
        yield _act(
            "draining",
            name,
            "The server is shutting down.",
            "It accepts no more requests.",
            "use another server",
        )
    elif model.engine_alive is False:
        yield _act(
            "engine_down",
            name,
            "The engine has stopped.",
            "Requests get 503. A server with --no-restart leaves it stopped.",
            "check again in a moment; if it does not recover, restart the server",
        )


def _engine(model: ModelReport, uptime_s: float | None) -> Iterator[Finding]:
    name = model.name
    if model.stalled_s is not None:
        yield _act(
            "stalled",
            name,
            f"{many(model.running or 0, 'request')} running, and no progress for {span(model.stalled_s)}.",
            "The engine hangs, or is computing one very long step.",
            "if this continues, restart the server; the server itself restarts the engine after --stall-s",
        )
    down = [str(number) for number, up in enumerate(model.upstreams, 1) if not up]
    if down:
        which = f"{len(down)} of {many(len(model.upstreams), 'upstream')} (number {', '.join(down)})"
        yield _act(
            "upstream_down",
            name,
            f"The breaker is open for {which}.",
            "It failed several times, and gets no requests until a probe succeeds.",
            "check that server; its number is its place on the command line of serve",
        )
    if model.restarts:
        days = max(1.0, (uptime_s or 0.0) / 86_400)
        yield Finding(
            code="restarted",
            level=Severity.ACT if model.restarts >= RESTARTS_A_DAY * days else Severity.NOTE,
            model=name,
            what=f"The engine was restarted {many(model.restarts, 'time')}.",
            means="It died, hung or ran out of memory, and its requests were lost.",
            remedy="the server's log says why each time",
        )


def _endings(model: ModelReport) -> Iterator[Finding]:
    if _often(model, Overloaded.code):
        limits = [f"{model.max_running:,} at once" if model.max_running else ""]
        limits += [f"{model.max_waiting:,} in the queue" if model.max_waiting is not None else ""]
        allowed = " and ".join(filter(None, limits))
        yield _act(
            "overloaded",
            model.name,
            _of_all(model, "were refused as overloaded", Overloaded.code),
            f"More requests came than it accepts{f' ({allowed})' if allowed else ''}.",
            f"{_more(model)}, or more replicas; a longer queue (--max-waiting) only if the waiting times allow",
        )
    if _often(model, NotReady.code, NotLoaded.code):
        yield _act(
            "unavailable",
            model.name,
            _of_all(model, "were refused because the model was not available", NotReady.code, NotLoaded.code),
            "It was loading or restarting, had failed, or found no room.",
            "a larger --max-loaded, --pin for this model, or the log for why it failed",
        )
    if _often(model, EngineFailed.code, share=FAILING):
        yield _act(
            "failures",
            model.name,
            _of_all(model, "were lost to a failure of the engine", EngineFailed.code),
            "Their answers were cut off, or never began.",
            "the server's log says what happened to each",
        )
    if model.ended_as(OutOfMemory.code):
        yield _act(
            "out_of_memory",
            model.name,
            _of_all(model, "ran out of memory", OutOfMemory.code),
            "The requests that run together do not fit into memory.",
            "a lower --max-running, a smaller --kv-cache-gb or --context-length, or a larger device",
        )
    if _often(model, DeadlineExceeded.code):
        yield _act(
            "deadlines",
            model.name,
            _of_all(model, "timed out", DeadlineExceeded.code),
            "They waited or ran for longer than their timeout_s.",
            "more capacity if they wait long (queue), shorter answers (--max-tokens), or a longer --timeout-s",
        )


def _room(model: ModelReport) -> Iterator[Finding]:
    kv, preemptions = model.kv_used, model.preemptions or 0
    preempted = preemptions >= max(FEW, OFTEN * model.ended)
    if preempted or (kv is not None and kv >= FULL_KV and model.waiting):
        yield Finding(
            code="kv_full",
            level=Severity.ACT if preempted else Severity.NOTE,
            model=model.name,
            what=f"{many(preemptions, 'preemption')}; the memory for keys and values is {percent(kv or 0.0)} full now.",
            means="Requests lose their place and are computed again." if preempted else "Requests wait for memory.",
            remedy=_LESS_KV.get(model.engine or "", "more memory for keys and values, or a lower --max-running"),
        )
    if model.queue is not None and model.queue.count >= FEW and model.queue.p99_s >= LONG_QUEUE_S:
        yield Finding(
            code="long_queue",
            level=Severity.NOTE,
            model=model.name,
            what=f"One request in a hundred waited {span(model.queue.p99_s)} or more for its slot.",
            means="More requests arrive at once than can run at once.",
            remedy=f"{_more(model)}, or more replicas",
        )
    if model.loads and model.loads >= FEW and model.loads >= TURNS * model.ended and model.unloads:
        yield Finding(
            code="turns",
            level=Severity.NOTE,
            model=model.name,
            what=f"It was loaded {many(model.loads, 'time')} for {many(model.ended, 'request')}.",
            means="Models push one another out of memory, and requests wait for loads.",
            remedy="a larger --max-loaded if memory allows, a longer --turn-s, or another server",
        )


def _more(model: ModelReport) -> str:
    return _MORE.get(model.engine or "", "more --slots or a larger --max-batch")


def _often(model: ModelReport, *endings: str, share: float = OFTEN) -> bool:
    return model.ended_as(*endings) >= FEW and model.share(*endings) >= share


def _of_all(model: ModelReport, how: str, *endings: str) -> str:
    number = model.ended_as(*endings)
    return f"{percent(model.share(*endings))} of requests {how} ({number:,} of {model.ended:,})."


def _act(code: str, model: str, what: str, means: str, remedy: str) -> Finding:
    return Finding(code=code, level=Severity.ACT, model=model, what=what, means=means, remedy=remedy)
