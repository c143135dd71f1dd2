"""`/metrics`: what the workers and the server counted, for Prometheus. The same series on every engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import Response

from drivetrain import __version__
from drivetrain.core.constraint import GRAMMAR_KINDS
from drivetrain.core.results import EngineCounts, FinishReason
from drivetrain.core.stats import ENDINGS, Histogram, Stats
from drivetrain.core.status import State, Status
from drivetrain.server.context import Context
from drivetrain.server.metrics import models as metrics_models
from drivetrain.server.metrics import vllm_names
from drivetrain.server.metrics.exposition import family, histogram
from drivetrain.server.settings import MetricsCompat


async def metrics(request: Request, context: Context) -> Response:
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    registry.register(_Series(context))
    encode, content_type = _encoder(request, context)
    return Response(encode(registry), headers={"cache-control": "no-store", "content-type": content_type})


def _encoder(request: Request, context: Context) -> tuple[Callable[[CollectorRegistry], bytes], str]:
    """As the client accepts. vLLM's names need the plain text format: the others turn `:` into `_`."""
    accept = "" if context.settings.metrics_compat == MetricsCompat.VLLM else request.headers.get("accept", "")
    try:
        return choose_encoder(accept)
    except (TypeError, ValueError):  # an invalid version
        return choose_encoder("")


class _Series:
    """Collected when the registry is read. Counters stay when their model is unloaded; gauges go with it."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def collect(self) -> Iterator[Metric]:
        models = self._context.models
        statuses = {name: worker.status for name, worker in models}
        stats = {model.name: model.stats for model in models.members}
        yield from _gauges(statuses)
        yield from _counters(stats)
        yield from _histograms(stats)
        yield from metrics_models.series(models.report())
        yield from self._of_the_server()
        if self._context.settings.metrics_compat == MetricsCompat.VLLM:
            yield from vllm_names.series(statuses, stats)

    def _of_the_server(self) -> Iterator[Metric]:
        counts = self._context.counts
        yield family(
            CounterMetricFamily,
            "drivetrain_http_responses",
            "responses by path and status; an unknown path is shown as empty",
            ("method", "path", "status"),
            (((method, path, str(status)), n) for (method, path, status), n in counts.responses.items()),
        )
        yield family(
            CounterMetricFamily,
            "drivetrain_refusals",
            "requests refused before generation, by reason and by the field at fault",
            ("reason", "param"),
            counts.refusals.items(),
        )
        yield family(GaugeMetricFamily, "drivetrain_build_info", "always 1", ("version",), [((__version__,), 1)])


def _gauges(statuses: Mapping[str, Status]) -> Iterator[Metric]:
    def each(name: str, meaning: str, value: Callable[[Status], float]) -> Metric:
        return family(
            GaugeMetricFamily,
            f"drivetrain_{name}",
            meaning,
            ("model",),
            [((model,), value(status)) for model, status in statuses.items()],
        )

    yield each("requests_running", "requests running now", lambda s: s.running)
    yield each("requests_waiting", "requests waiting in the queue", lambda s: s.waiting)
    yield each(
        "ready",
        "1 while requests are accepted and the engine is alive",
        lambda s: s.state is State.READY and s.engine_alive,
    )
    yield each("kv_cache_used_ratio", "share of the memory for keys and values that requests hold", lambda s: s.kv_used)
    yield family(
        GaugeMetricFamily,
        "drivetrain_kv_cache_blocks",
        "blocks of the memory for keys and values, where the engine has them; shared ones are held by several requests",
        ("model", "state"),
        (
            ((model, state), getattr(blocks, state))
            for model, status in statuses.items()
            if (blocks := status.kv_blocks) is not None
            for state in ("held", "shared", "kept", "free")
        ),
    )
    yield family(
        GaugeMetricFamily,
        "drivetrain_compute_threads",
        "threads on the processor, where the engine chooses them: taken, and left to other busy processes",
        ("model", "state"),
        (
            ((model, state), number)
            for model, status in statuses.items()
            if (threads := status.threads) is not None
            for state, number in (("taken", threads.now), ("yielded", threads.most - threads.now))
        ),
    )
    yield each("last_progress_seconds", "time since the engine last made progress", lambda s: s.last_progress_s)
    yield family(
        GaugeMetricFamily,
        "drivetrain_upstream_up",
        "whether an upstream gets requests (1) or its breaker is open (0), in the order given",
        ("model", "upstream"),
        (((model, str(i)), up) for model, status in statuses.items() for i, up in enumerate(status.upstreams)),
    )
    yield family(
        GaugeMetricFamily,
        "drivetrain_device_memory_bytes",
        "memory of a device; cpu is the host, where allocated means by this process",
        ("model", "device", "kind"),
        (
            ((model, memory.device, kind), getattr(memory, f"{kind}_bytes"))
            for model, status in statuses.items()
            for memory in status.memory
            for kind in ("allocated", "cached", "total", "available")
        ),
    )


def _counters(stats: Mapping[str, Stats]) -> Iterator[Metric]:
    def each(name: str, meaning: str, value: Callable[[Stats], float]) -> Metric:
        return family(
            CounterMetricFamily,
            f"drivetrain_{name}",
            meaning,
            ("model",),
            [((model,), value(counted)) for model, counted in stats.items()],
        )

    yield family(
        CounterMetricFamily,
        "drivetrain_requests",
        "ended requests by outcome: finished, or the code of the error",
        ("model", "ending"),
        (((model, ending), counted.endings[ending]) for model, counted in stats.items() for ending in ENDINGS),
    )
    yield family(
        CounterMetricFamily,
        "drivetrain_answers",
        "finished choices by finish reason",
        ("model", "reason"),
        (((model, reason), counted.answers[reason]) for model, counted in stats.items() for reason in FinishReason),
    )
    yield family(
        CounterMetricFamily,
        "drivetrain_constrained_requests",
        "started requests whose answers are held to a grammar, by what it comes from",
        ("model", "form"),
        (((model, form), counted.constrained[form]) for model, counted in stats.items() for form in GRAMMAR_KINDS),
    )
    yield family(
        CounterMetricFamily,
        "drivetrain_grammar_mask_seconds",
        "processor time spent on computing what grammars allow next, where the engine tells",
        ("model",),
        (((model,), spent) for model, counted in stats.items() if (spent := counted.engine.mask_s) is not None),
    )
    yield family(
        CounterMetricFamily,
        "drivetrain_draft_tokens",
        "tokens that the engine proposed to itself, by what became of them, where it does so",
        ("model", "outcome"),
        (((model, outcome), number) for model, counted in stats.items() for outcome, number in _drafts(counted.engine)),
    )
    yield each("prompt_tokens", "prompt tokens, counted when a request ends", lambda s: s.prompt_tokens)
    yield each("cached_prompt_tokens", "prompt tokens found in the engine's prefix cache", lambda s: s.cached_tokens)
    yield each("completion_tokens", "generated tokens, counted as they come", lambda s: s.completion_tokens)
    yield each("preemptions", "running requests that had to give up their memory", lambda s: s.engine.preemptions)
    yield each("engine_restarts", "times the engine was restarted", lambda s: s.restarts)


def _drafts(counts: EngineCounts) -> list[tuple[str, int]]:
    outcomes = {"accepted": counts.accepted_tokens, "refused": counts.refused_tokens}
    return [(outcome, number) for outcome, number in outcomes.items() if number is not None]


def _histograms(stats: Mapping[str, Stats]) -> Iterator[Metric]:
    rows: tuple[tuple[str, str, Callable[[Stats], Histogram]], ...] = (
        ("load_wait_seconds", "time that requests waited for their model to load", lambda s: s.load_wait_s),
        ("queue_seconds", "time from the request to its slot", lambda s: s.queue_s),
        (
            "grammar_compile_seconds",
            "time that requests waited for a new grammar to be compiled",
            lambda s: s.compile_s,
        ),
        ("first_token_seconds", "time from the request to its first token", lambda s: s.first_token_s),
        ("inter_token_seconds", "time between two tokens of a choice", lambda s: s.between_tokens_s),
        ("prefill_seconds", "time from the slot to the first token", lambda s: s.prefill_s),
        ("decode_seconds", "time from the first token to the last", lambda s: s.decode_s),
        ("request_seconds", "time from the request to its end", lambda s: s.request_s),
        ("prompt_length_tokens", "prompt tokens per request", lambda s: s.prompt_length),
        ("answer_length_tokens", "generated tokens per request", lambda s: s.answer_length),
    )
    for name, meaning, of in rows:
        samples = [((model,), of(counted)) for model, counted in stats.items()]
        yield histogram(f"drivetrain_{name}", meaning, ("model",), samples)
