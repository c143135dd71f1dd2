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
        help="lines for people or for machines, on stderr (default: text)",
    )
    group.add_argument(
        "--log-level",
        choices=LEVELS,
        help="info says how each request ended, never what was asked or answered (default: info; with -q: warning)",
    )


def start_log(args: argparse.Namespace) -> None:
    configure(args.log_format, args.log_level or ("warning" if args.quiet else "info"))
