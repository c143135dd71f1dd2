"""Flags of `serve` for its log."""

from __future__ import annotations

import argparse
from typing import Any

from drivetrain.telemetry.logs import LEVELS, LogFormat, configure


def add_log_flags(group: Any) -> None:
    group.add_argument(
        "--log-format",
        choices=tuple(LogFormat),
        default=LogFormat.TEXT.value,
        help="log format on stderr: text for people, json for machines (default: text)",
    )
    group.add_argument(
        "--log-level",
        choices=LEVELS,
        help="info logs how each request ended, never its prompt or answer (default: info; with -q: warning)",
    )


def start_log(args: argparse.Namespace) -> None:
    configure(args.log_format, args.log_level or ("warning" if args.quiet else "info"))
