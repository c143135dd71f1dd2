"""The flags of `serve` about traces, and the tracer that they or the environment ask for."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from drivetrain.cli.flags import options
from drivetrain.core.errors import InvalidSetting
from drivetrain.telemetry.wanted import ENDPOINT_VARIABLES, wanted, wanted_tracer

if TYPE_CHECKING:
    import argparse

    from drivetrain.telemetry.tracing import GenAiTracer


def add_tracing_flags(group: Any) -> None:
    group.add_argument(
        "--otlp-endpoint",
        metavar="URL",
        help="send traces and metrics to this OpenTelemetry collector, such as http://127.0.0.1:4318 "
        f"(or set {ENDPOINT_VARIABLES[0]})",
    )
    group.add_argument(
        "--trace-content", action="store_true", help="include prompts and answers in the traces (default: off)"
    )
    group.add_argument(
        "--trace-sample",
        type=options.number,
        metavar="X",
        help="the share of traces to record, from 0 to 1, if the caller has not decided (default: all)",
    )


def tracing(args: argparse.Namespace) -> AbstractContextManager[GenAiTracer | None]:
    """The tracer, or None if nobody asked for one. Raises `InvalidSetting` for options of traces if there are none."""
    for flag, given in (("--trace-content", args.trace_content), ("--trace-sample", args.trace_sample is not None)):
        if given and not wanted(args.otlp_endpoint):
            raise InvalidSetting(
                f"{flag} has no effect without traces: give --otlp-endpoint too",
                param="otlp_endpoint",
            )
    return wanted_tracer(args.otlp_endpoint, content=args.trace_content, sample=args.trace_sample)
