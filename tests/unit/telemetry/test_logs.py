"""Log lines: one a record, whatever is in it, for people and for machines."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator

import pytest

from drivetrain.telemetry.logs import FIELDS, OTHERS, LogFormat, configure


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    loggers = [logging.getLogger(name) for name in ("drivetrain", *OTHERS)]
    before = [(logger, logger.level, logger.propagate, list(logger.handlers)) for logger in loggers]
    yield io.StringIO()
    for logger, level, propagate, handlers in before:
        logger.setLevel(level)
        logger.propagate, logger.handlers = propagate, handlers


def test_a_line_for_people_stays_one_line(stream: io.StringIO) -> None:
    configure(LogFormat.TEXT, "info", stream)
    logging.getLogger("drivetrain.requests").info("%s ended", "req\n2026 error forged\x1b[31m")
    (line,) = stream.getvalue().splitlines()
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z info req\ufffd2026 error forged", line)
    assert "\x1b" not in line


def test_a_line_for_machines_has_the_fields(stream: io.StringIO) -> None:
    configure(LogFormat.JSON, "info", stream)
    logger = logging.getLogger("drivetrain.requests")
    logger.info("%s", "a\nb", extra={FIELDS: {"model": "m", "total_s": 0.5}})
    try:
        raise ValueError("broken")
    except ValueError:
        logger.exception("it failed")
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert first["message"] == "a\nb"
    assert (first["level"], first["logger"], first["model"], first["total_s"]) == (
        "info", "drivetrain.requests", "m", 0.5,
    )  # fmt: skip
    assert "ValueError: broken" in second["exception"]


def test_the_level(stream: io.StringIO) -> None:
    configure(LogFormat.TEXT, "warning", stream)
    logging.getLogger("drivetrain.requests").info("not this")
    logging.getLogger("drivetrain.server").warning("but this")
    assert "not this" not in stream.getvalue()
    assert "warning but this" in stream.getvalue()


@pytest.mark.parametrize("name", ["opentelemetry.sdk.trace.export", "uvicorn.error"])
def test_what_libraries_warn_of_comes_in_the_same_lines(
    stream: io.StringIO, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    configure(LogFormat.JSON, "debug", stream)
    logging.getLogger(name).info("not this")
    logging.getLogger(name).warning("but %s", "this")
    (line,) = stream.getvalue().splitlines()
    assert {key: json.loads(line)[key] for key in ("level", "logger", "message")} == {
        "level": "warning", "logger": name, "message": "but this",
    }  # fmt: skip
    assert capsys.readouterr().err == ""


def test_what_libraries_warn_of_is_not_told_to_who_wants_errors(stream: io.StringIO) -> None:
    configure(LogFormat.TEXT, "error", stream)
    logging.getLogger("uvicorn.error").warning("not this")
    logging.getLogger("uvicorn.error").error("but this")
    assert "not this" not in stream.getvalue()
    assert "error but this" in stream.getvalue()
