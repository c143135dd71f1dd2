"""What a library says, made fit for a message of ours."""

from __future__ import annotations

import pytest

from drivetrain.engines.base.error_text import clean, one_line


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("cannot open\n  /home/someone/x/config.json", "cannot open <path>"),
        ("from 10.1.2.3:8080, later", "from <address>, later"),
        ("see https://host.example:1/a/b?c=d for it", "see <address> for it"),
        (r"no C:\Users\me\model.bin", "no <path>"),
        ("2.13.0 and a/b stay", "2.13.0 and a/b stay"),
        ("", ""),
    ],
)
def test_paths_and_addresses_are_left_out(said: str, told: str) -> None:
    assert clean(said) == told


def test_it_is_short_and_names_the_class() -> None:
    assert clean("y" * 301) == "y" * 299 + "…"
    assert clean("y" * 300) == "y" * 300
    assert one_line(ValueError("bad\nvalue")) == "ValueError: bad value"
    assert one_line(KeyError()) == "KeyError"
