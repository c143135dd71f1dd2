"""Ceilings measured for real, on whatever is installed, and what a model's files say of its size."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import struct
import sys
from pathlib import Path

import pytest

from drivetrain.core.errors import LoadFailed
from drivetrain.tools.bench import ceilings, probe
from drivetrain.tools.bench.ceilings import Ceilings, NotMeasured, measure, read
from drivetrain.tools.bench.weights import weigh


def output_of(capsys: pytest.CaptureFixture[str]) -> Ceilings | NotMeasured:
    return read(capsys.readouterr().out.encode())


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Quick, and of no use as a measurement."""
    monkeypatch.setattr(probe, "READ_BYTES", 2**20)
    monkeypatch.setattr(probe, "SIZES", (64,))
    monkeypatch.setattr(probe, "TRIES", 1)


@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_what_is_installed_measures(
    library: str, small: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: real(name) if name == library else None)
    probe.main("cpu", "float32")
    found = output_of(capsys)
    if real(library) is None:
        assert found == NotMeasured("neither torch nor numpy is installed")
        return
    assert isinstance(found, Ceilings)
    assert found.measured_with.startswith(library)
    assert found.memory_gb_per_s > 0
    assert found.product_gflop_per_s > 0


@pytest.mark.parametrize(("device", "words"), [("cpu", "neither torch nor numpy"), ("cuda:0", "torch is not")])
def test_without_a_library_nothing_is_made_up(
    device: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    probe.main(device, "float32")
    found = output_of(capsys)
    assert isinstance(found, NotMeasured)
    assert words in found.why


async def test_a_probe_that_breaks_is_told() -> None:
    found = await measure("no-such-device", "float32")
    assert isinstance(found, NotMeasured)
    assert "no-such-device" in found.why or "torch is not installed" in found.why


async def test_a_probe_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "sleeper"
    script.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(60)\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    monkeypatch.setattr(ceilings, "TIMEOUT_S", 0.2)
    async with asyncio.timeout(20):
        found = await measure()
    assert isinstance(found, NotMeasured)
    assert "more than 0.2 s" in found.why


def test_the_best_of_two_measurements_counts() -> None:
    values = {"measured_with": "torch", "device": "CPU", "dtype": "float32"}
    first = Ceilings(memory_gb_per_s=10, product_gflop_per_s=90, **values)
    second = Ceilings(memory_gb_per_s=12, product_gflop_per_s=80, **values)
    assert first.best_of(second) == Ceilings(memory_gb_per_s=12, product_gflop_per_s=90, **values)


def safetensors(path: Path, **shapes: list[int]) -> None:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        size = 2
        for length in shape:
            size *= length
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    raw = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + bytes(end))


def test_parameters_of_shards_are_added(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    names = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    safetensors(tmp_path / names[0], a=[3, 4], scalar=[])
    safetensors(tmp_path / names[1], b=[5])
    index = {"weight_map": {"a": names[0], "scalar": names[0], "b": names[1]}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    found = weigh(tmp_path)
    assert found.num_parameters == 3 * 4 + 1 + 5
    assert found.file_bytes == sum((tmp_path / name).stat().st_size for name in names)


def test_parameters_of_a_gguf_file(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    tensors = b"".join(
        struct.pack("<Q", len(name)) + name + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
        + struct.pack("<IQ", 0, offset)
        for name, shape, offset in ((b"a", (8, 4), 0), (b"b", (16,), 128))
    )  # fmt: skip
    head = b"GGUF" + struct.pack("<IQQ", 3, 2, 0) + tensors
    path.write_bytes(head + bytes(-len(head) % 32) + bytes(192))
    found = weigh(path)
    assert (found.num_parameters, found.file_bytes) == (48, path.stat().st_size)


def test_no_model_has_no_size(tmp_path: Path) -> None:
    with pytest.raises(LoadFailed):
        weigh(tmp_path)
