"""The same figures under vLLM's names, for dashboards and autoscalers that read those (`--metrics-compat vllm`).

Only metrics that mean the same here. As in vLLM, none of them count refused requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from drivetrain.core.errors import Cancelled, DeadlineExceeded, EngineFailed, OutOfMemory
from drivetrain.core.results import FinishReason
from drivetrain.core.stats import Histogram, Stats
from drivetrain.core.status import Status
from drivetrain.server.metrics.exposition import family, histogram

_LABELS = ("model_name", "engine")
_ENGINE = "0"
_REASONS = {
    Cancelled.code: "abort",
    DeadlineExceeded.code: "abort",
    EngineFailed.code: "error",
    OutOfMemory.code: "error",
}


def series(statuses: Mapping[str, Status], stats: Mapping[str, Stats]) -> Iterator[Metric]:
    """By model: `statuses` of the loaded ones, `stats` of all."""
    counts = [((model, _ENGINE), counted) for model, counted in stats.items()]

    def gauge(name: str, value: Callable[[Status], float]) -> Metric:
        rows = [((model, _ENGINE), value(status)) for model, status in statuses.items()]
        return family(GaugeMetricFamily, f"vllm:{name}", "as in vLLM", _LABELS, rows)

    def counter(name: str, value: Callable[[Stats], float]) -> Metric:
        rows = [(labels, value(counted)) for labels, counted in counts]
        return family(CounterMetricFamily, f"vllm:{name}", "as in vLLM", _LABELS, rows)

    def spread(name: str, of: Callable[[Stats], Histogram]) -> Metric:
        rows = [(labels, of(counted)) for labels, counted in counts]
        return histogram(f"vllm:{name}", "as in vLLM", _LABELS, rows)

    yield gauge("num_requests_running", lambda s: s.running)
    yield gauge("num_requests_waiting", lambda s: s.waiting)
    yield gauge("kv_cache_usage_perc", lambda s: s.kv_used)
    yield gauge("gpu_cache_usage_perc", lambda s: s.kv_used)  # its name in earlier versions, which autoscalers read
    yield counter("prompt_tokens", lambda s: s.prompt_tokens)
    yield counter("generation_tokens", lambda s: s.completion_tokens)
    yield counter("prefix_cache_queries", lambda s: s.prompt_tokens)
    yield counter("prefix_cache_hits", lambda s: s.cached_tokens)
    yield counter("num_preemptions", lambda s: s.engine.preemptions)
    yield family(
        CounterMetricFamily,
        "vllm:request_success",
        "as in vLLM",
        (*_LABELS, "finished_reason"),
        [((*labels, reason), number) for labels, counted in counts for reason, number in _reasons(counted).items()],
    )
    yield spread("time_to_first_token_seconds", lambda s: s.first_token_s)
    yield spread("inter_token_latency_seconds", lambda s: s.between_tokens_s)
    yield spread("time_per_output_token_seconds", lambda s: s.between_tokens_s)
    yield spread("e2e_request_latency_seconds", lambda s: s.request_s)
    yield spread("request_queue_time_seconds", lambda s: s.queue_s)
    yield spread("request_prefill_time_seconds", lambda s: s.prefill_s)
    yield spread("request_decode_time_seconds", lambda s: s.decode_s)
    yield spread("request_prompt_tokens", lambda s: s.prompt_length)
    yield spread("request_generation_tokens", lambda s: s.answer_length)


def _reasons(stats: Stats) -> Counter[str]:
    reasons: Counter[str] = Counter({"stop": 0, "length": 0, "abort": 0, "error": 0})
    reasons.update(stats.answers)
    reasons["stop"] += reasons.pop(FinishReason.TOOL_CALLS, 0)  # its engine knows of no calls
    for ending, number in stats.endings.items():
        if ending in _REASONS:
            reasons[_REASONS[ending]] += number
    return reasons
