"""What is said of how to install what is optional, by how the package was installed."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from drivetrain.core import extras
from drivetrain.core.errors import MissingExtra


@pytest.fixture(autouse=True)
def _anew() -> Iterator[None]:
    extras._source.cache_clear()
    yield
    extras._source.cache_clear()


@pytest.mark.parametrize(
    ("stated", "command"),
    [
        ({"url": "file:///home/me/drivetrain", "dir_info": {"editable": True}}, "'.[vision]'"),
        ({"url": "file:///home/me/drivetrain", "dir_info": {}}, "'.[vision]'"),
        ({"url": "file:///tmp/a%20b/drivetrain-1.0-py3-none-any.whl"}, "'./drivetrain-1.0-py3-none-any.whl[vision]'"),
        (
            {"url": "https://our.host/drivetrain.whl", "archive_info": {}},
            "'drivetrain[vision] @ https://our.host/drivetrain.whl'",
        ),
        ({"url": "https://our.host/x", "vcs_info": {"vcs": "git"}}, "'drivetrain[vision] @ git+https://our.host/x'"),
        (None, "'drivetrain[vision]'"),
        ("no json", "'drivetrain[vision]'"),
        ([], "'drivetrain[vision]'"),
    ],
)
def test_it_comes_from_where_the_package_came(monkeypatch: pytest.MonkeyPatch, stated: Any, command: str) -> None:
    text = stated if isinstance(stated, str) or stated is None else json.dumps(stated)
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _: SimpleNamespace(read_text=lambda _: text))
    assert extras.install_command("vision") == f"pip install {command}"
    assert str(MissingExtra("x", extra="vision")).endswith(f"run: pip install {command}")


def test_a_package_that_was_never_installed_lies_in_its_clone(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    assert extras.install_command("vision") == "pip install '.[vision]'"
