"""The CPU takes the place of the device."""

from __future__ import annotations

from pathlib import Path

import pytest

from on_device.devices import CPU, Device


@pytest.fixture(scope="session")
def device() -> Device:
    return CPU


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")
