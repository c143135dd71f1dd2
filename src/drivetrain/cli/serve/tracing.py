"""The flags of `serve` about traces, and the tracer that they or the environment ask for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from drivetrain.cli.flags import options
from drivetrain.core.errors import InvalidSetting
from drivetrain.telemetry.tracing import ENDPOINT_VARIABLES, wanted

if TYPE_CHECKING:
    import argparse

    from drivetrain.telemetry.tracing import Tracer


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


def traced(args: argparse.Namespace) -> bool:
    """Whether there are traces. Raises `InvalidSetting` for options of traces if there are none."""
    if wanted(args.otlp_endpoint):
        return True
    for flag, given in (("--trace-content", args.trace_content), ("--trace-sample", args.trace_sample is not None)):
        if given:
            raise InvalidSetting(
                f"{flag} has no effect without traces: give --otlp-endpoint too",
                param="otlp_endpoint",
            )
    return False


@contextlib.contextmanager
def tracing(args: argparse.Namespace) -> Iterator[Tracer | None]:
    """The tracer, or None if nobody asked for one. At the end what is left is sent, for a limited time."""
    if not traced(args):
        yield None
        return
    from drivetrain.telemetry.otel import open_tracer

    with open_tracer(args.otlp_endpoint, content=args.trace_content, sample=args.trace_sample) as tracer:
        yield tracer
