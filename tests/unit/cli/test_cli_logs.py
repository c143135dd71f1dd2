"""Where the format and the level of the log come from: a flag, then the environment, then the default."""

from __future__ import annotations

import argparse

import pytest

from drivetrain.cli.serve.logs import add_log_flags, log_format, log_level
from drivetrain.core.errors import InvalidSetting


def parsed(*arguments: str, quiet: bool = False) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_log_flags(parser)
    return parser.parse_args(arguments, argparse.Namespace(quiet=quiet))


def test_a_flag_goes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DRIVETRAIN_LOG_FORMAT", "DRIVETRAIN_LOG_LEVEL"):
        monkeypatch.delenv(name, raising=False)
    assert (log_format(parsed()), log_level(parsed()), log_level(parsed(quiet=True))) == ("text", "info", "warning")
    monkeypatch.setenv("DRIVETRAIN_LOG_FORMAT", "json")
    monkeypatch.setenv("DRIVETRAIN_LOG_LEVEL", "error")
    assert (log_format(parsed()), log_level(parsed(quiet=True))) == ("json", "error")
    given = parsed("--log-format", "text", "--log-level", "info")
    assert (log_format(given), log_level(given)) == ("text", "info")


@pytest.mark.parametrize("name", ["DRIVETRAIN_LOG_FORMAT", "DRIVETRAIN_LOG_LEVEL"])
def test_another_value_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "loud")
    with pytest.raises(InvalidSetting, match=f"{name} is 'loud'; it must be ") as caught:
        log_format(parsed()), log_level(parsed())
    assert caught.value.param == name
