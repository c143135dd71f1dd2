"""Log lines for people or for machines. Nothing here decides what is logged; no prompt, output or key ever is."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TextIO

FIELDS = "drivetrain"
"""The attribute of a log record that holds its fields."""


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


LEVELS = ("debug", "info", "warning", "error")

OTHERS = ("opentelemetry", "uvicorn")
"""What they warn of is written in the same lines; else it would be plain text between them."""


def configure(form: str, level: str, stream: TextIO | None = None) -> logging.Handler:
    """Write what Drivetrain logs, a line each. Called once, by a program; a library leaves logging alone."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if form == LogFormat.JSON else TextLines())
    _give(handler, "drivetrain", level)
    for name in OTHERS:
        _give(handler, name, "error" if level == "error" else "warning")
    return handler


def _give(handler: logging.Handler, name: str, level: str) -> None:
    logger = logging.getLogger(name)
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    logger.propagate = False


def fields_of(record: logging.LogRecord) -> Mapping[str, Any]:
    found: Mapping[str, Any] = getattr(record, FIELDS, {})
    return found


def _moment(record: logging.LogRecord) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"


class TextLines(logging.Formatter):
    """One line a record, whatever somebody put into a name; an exception's lines follow, moved in."""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{_moment(record)} {record.levelname.lower()} {_one_line(record.getMessage())}"
        if record.exc_info:
            line += "".join(f"\n  {_one_line(part)}" for part in self.formatException(record.exc_info).splitlines())
        return line


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        document: dict[str, Any] = {
            "time": _moment(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **fields_of(record),
        }
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return json.dumps(document, allow_nan=False, default=str)


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else "\ufffd" for c in text)
