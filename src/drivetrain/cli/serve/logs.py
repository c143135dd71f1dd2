"""Flags of `serve` for its log."""

from __future__ import annotations

import argparse
import os
from collections.abc import Collection
from typing import Any

from drivetrain.core.errors import InvalidSetting
from drivetrain.telemetry.logs import LEVELS, LogFormat, configure

FORMAT_VARIABLE, LEVEL_VARIABLE = "DRIVETRAIN_LOG_FORMAT", "DRIVETRAIN_LOG_LEVEL"


def add_log_flags(group: Any) -> None:
    group.add_argument(
        "--log-format",
        choices=tuple(LogFormat),
        help=f"log format on stderr: text for people, json for machines (default: {FORMAT_VARIABLE}, or else text)",
    )
    group.add_argument(
        "--log-level",
        choices=LEVELS,
        help="info logs how each request ended, never its prompt or answer "
        f"(default: {LEVEL_VARIABLE}, or else info; with -q: warning)",
    )


def log_format(args: argparse.Namespace) -> str:
    """Raises `InvalidSetting`."""
    return args.log_format or _stated(FORMAT_VARIABLE, tuple(map(str, LogFormat))) or LogFormat.TEXT.value


def log_level(args: argparse.Namespace) -> str:
    """Raises `InvalidSetting`."""
    return args.log_level or _stated(LEVEL_VARIABLE, LEVELS) or ("warning" if args.quiet else "info")


def start_log(args: argparse.Namespace) -> None:
    configure(log_format(args), log_level(args))


def _stated(variable: str, known: Collection[str]) -> str:
    value = os.environ.get(variable, "")
    if value and value not in known:
        raise InvalidSetting(f"{variable} is {value!r}; it must be {' or '.join(known)}", param=variable)
    return value
