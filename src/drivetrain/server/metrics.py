"""`/metrics`: what the workers and the server counted, for Prometheus. The same series on every engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import Response

from drivetrain import __version__
from drivetrain.core.results import FinishReason
from drivetrain.core.stats import ENDINGS, Histogram, Stats
from drivetrain.core.status import State, Status
from drivetrain.core.worker import Worker
from drivetrain.server import metrics_models, metrics_vllm
from drivetrain.server.context import Context
from drivetrain.server.exposition import family, histogram
from drivetrain.server.settings import MetricsCompat


async def metrics(request: Request, context: Context) -> Response:
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    registry.register(_Series(context))
    try:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
    except (TypeError, ValueError):  # a version that is none
        encode, content_type = choose_encoder("")
    return Response(encode(registry), headers={"cache-control": "no-store", "content-type": content_type})


@dataclass(frozen=True, slots=True)
class Look:
    """One model at one moment."""

    model: str
    status: Status
    stats: Stats

    @classmethod
    def at(cls, model: str, worker: Worker) -> Look:
        return cls(model, worker.status, worker.stats)


class _Series:
    """What the registry asks when somebody reads it."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def collect(self) -> Iterator[Metric]:
        looks = [Look.at(name, worker) for name, worker in self._context.models]
        yield from _gauges(looks)
        yield from _counters(looks)
        yield from _histograms(looks)
        yield from metrics_models.series(self._context.models.report())
        yield from self._of_the_server()
        if self._context.settings.metrics_compat == MetricsCompat.VLLM:
            yield from metrics_vllm.series((look.model, look.status, look.stats) for look in looks)

    def _of_the_server(self) -> Iterator[Metric]:
        counts = self._context.counts
        yield family(
            CounterMetricFamily,
            "drivetrain_http_responses",
            "answers by address and status; a path that is none of ours is empty",
            ("method", "path", "status"),
            (((method, path, str(status)), n) for (method, path, status), n in counts.responses.items()),
        )
        yield family(
            CounterMetricFamily,
            "drivetrain_refusals",
            "requests refused before anything was generated, by why and by the field at fault",
            ("reason", "param"),
            counts.refusals.items(),
        )
        yield family(GaugeMetricFamily, "drivetrain_build_info", "always 1", ("version",), [((__version__,), 1)])


def _gauges(looks: Sequence[Look]) -> Iterator[Metric]:
    def each(name: str, meaning: str, value: Callable[[Status], float]) -> Metric:
        return family(
            GaugeMetricFamily,
            f"drivetrain_{name}",
            meaning,
            ("model",),
            [((k.model,), value(k.status)) for k in looks],
        )

    yield each("requests_running", "requests that run now", lambda s: s.running)
    yield each("requests_waiting", "requests in the queue", lambda s: s.waiting)
    yield each(
        "ready",
        "1 while requests are taken and the engine lives",
        lambda s: s.state is State.READY and s.engine_alive,
    )
    yield each("kv_cache_used_ratio", "share of the room for keys and values that requests hold", lambda s: s.kv_used)
    yield each("last_progress_seconds", "since the engine last did something", lambda s: s.last_progress_s)
    yield family(
        GaugeMetricFamily,
        "drivetrain_upstream_up",
        "whether an upstream of the engine remote may be asked (1), or its breaker is open (0), in the order given",
        ("model", "upstream"),
        (((look.model, str(i)), up) for look in looks for i, up in enumerate(look.status.upstreams)),
    )
    yield family(
        GaugeMetricFamily,
        "drivetrain_device_memory_bytes",
        "memory of a device; cpu is the host, and its allocated bytes are this process",
        ("model", "device", "kind"),
        (
            ((look.model, memory.device, kind), getattr(memory, f"{kind}_bytes"))
            for look in looks
            for memory in look.status.memory
            for kind in ("allocated", "cached", "total", "available")
        ),
    )


def _counters(looks: Sequence[Look]) -> Iterator[Metric]:
    def each(name: str, meaning: str, value: Callable[[Look], float]) -> Metric:
        return family(
            CounterMetricFamily,
            f"drivetrain_{name}",
            meaning,
            ("model",),
            [((k.model,), value(k)) for k in looks],
        )

    yield family(
        CounterMetricFamily,
        "drivetrain_requests",
        "ended requests by how they ended: finished, or the code of the error",
        ("model", "ending"),
        (((look.model, ending), look.stats.endings[ending]) for look in looks for ending in ENDINGS),
    )
    yield family(
        CounterMetricFamily,
        "drivetrain_answers",
        "finished choices by their finish reason",
        ("model", "reason"),
        (((look.model, reason), look.stats.answers[reason]) for look in looks for reason in FinishReason),
    )
    yield each("prompt_tokens", "tokens of prompts, counted when a request ends", lambda k: k.stats.prompt_tokens)
    yield each("cached_prompt_tokens", "of these, found in the engine's prefix cache", lambda k: k.stats.cached_tokens)
    yield each("completion_tokens", "tokens sampled, counted as they come", lambda k: k.stats.completion_tokens)
    yield each("preemptions", "running requests that had to give their memory back", lambda k: k.status.preemptions)
    yield each("engine_restarts", "how often the engine was started again", lambda k: k.stats.restarts)


def _histograms(looks: Sequence[Look]) -> Iterator[Metric]:
    rows: tuple[tuple[str, str, Callable[[Stats], Histogram]], ...] = (
        ("queue_seconds", "from the request to its slot", lambda s: s.queue_s),
        ("first_token_seconds", "from the request to its first token", lambda s: s.first_token_s),
        ("inter_token_seconds", "between two tokens of a choice", lambda s: s.between_tokens_s),
        ("prefill_seconds", "from the slot to the first token", lambda s: s.prefill_s),
        ("decode_seconds", "from the first token to the last one", lambda s: s.decode_s),
        ("request_seconds", "from the request to its ending", lambda s: s.request_s),
        ("prompt_length_tokens", "tokens of a request's prompt", lambda s: s.prompt_length),
        ("answer_length_tokens", "tokens of a request's answer", lambda s: s.answer_length),
    )
    for name, meaning, of in rows:
        yield histogram(f"drivetrain_{name}", meaning, ("model",), [((look.model,), of(look.stats)) for look in looks])
