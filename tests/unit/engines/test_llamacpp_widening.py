"""A GGUF file in F16: the same metadata, the values of its quantized weights, and nothing of a file that is broken."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy
import pytest

from drivetrain.core.errors import LoadFailed, MissingExtra
from drivetrain.engines.llamacpp.gguf import read_metadata
from drivetrain.engines.llamacpp.widening import widen

KINDS = gguf.GGMLQuantizationType
SHAPES = {"token_embd.weight": (5, 64), "blk.0.ffn_up.weight": (3, 96), "blk.0.norm.weight": (7,), "odd.weight": (3, 5)}
HELD = {"token_embd.weight": KINDS.Q8_0, "blk.0.ffn_up.weight": KINDS.Q4_1, "odd.weight": KINDS.F16}


def no_progress(what: str, share: float | None) -> None:
    """Nobody looks."""


def quantized(path: Path, held: dict[str, Any] = HELD, alignment: int = 32) -> dict[str, Any]:
    """Write a file by the format's own library. Returns the values that it holds, by name."""
    random = numpy.random.default_rng(7)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_1)
    writer.add_custom_alignment(alignment)
    writer.add_token_list(["general.file_type", "b", "é"])
    values = {}
    for name, shape in SHAPES.items():
        plain = random.normal(size=shape).astype("f4")
        kind = held.get(name, KINDS.F32)
        data = gguf.quants.quantize(plain, kind)
        values[name] = gguf.quants.dequantize(data, kind).reshape(shape)
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return values


@pytest.mark.parametrize("alignment", [32, 64])
def test_the_values_are_the_same_to_half_precision(tmp_path: Path, alignment: int) -> None:
    source, target = tmp_path / "source.gguf", tmp_path / "wide.gguf"
    values = quantized(source, alignment=alignment)
    widen(source, target, no_progress)
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(target).tensors}
    assert list(tensors) == list(values)
    for name, tensor in tensors.items():
        assert tensor.tensor_type == (KINDS.F16 if name in HELD else KINDS.F32)
        assert tensor.data_offset % alignment == 0
        found = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(SHAPES[name])
        wanted = values[name].astype("f2").astype("f4") if name in HELD else values[name]
        assert numpy.array_equal(found, wanted)


def test_the_metadata_are_the_same_but_for_what_the_weights_are(tmp_path: Path) -> None:
    source, target = tmp_path / "source.gguf", tmp_path / "wide.gguf"
    quantized(source)
    widen(source, target, no_progress)
    before, after = dict(read_metadata(source)), dict(read_metadata(target))
    assert before.pop("general.file_type") == gguf.LlamaFileType.MOSTLY_Q4_1
    assert after.pop("general.file_type") == gguf.LlamaFileType.MOSTLY_F16
    assert before == after


def test_its_progress_ends_with_the_file(tmp_path: Path) -> None:
    source, target = tmp_path / "source.gguf", tmp_path / "wide.gguf"
    quantized(source)
    seen: list[tuple[str, float | None]] = []
    widen(source, target, lambda what, share: seen.append((what, share)))
    shares = [share for _, share in seen if share is not None]
    assert len(shares) == len(seen) == len(SHAPES)
    assert shares == sorted(shares)
    assert 0 < shares[0] < shares[-1] <= 1
    assert all(what.startswith("preparing the weights, once (") for what, _ in seen)


def test_a_tensor_of_another_type_is_named(tmp_path: Path) -> None:
    source = tmp_path / "source.gguf"
    quantized(source, held={**HELD, "blk.0.ffn_up.weight": KINDS.Q5_0})
    with pytest.raises(LoadFailed, match=r"blk\.0\.ffn_up\.weight is of the tensor type 6"):
        widen(source, tmp_path / "wide.gguf", no_progress)


@pytest.mark.parametrize("left", [0.0, 0.3, 0.9])
def test_a_file_that_ends_too_early_is_refused(tmp_path: Path, left: float) -> None:
    source = tmp_path / "source.gguf"
    quantized(source)
    os.truncate(source, int(left * source.stat().st_size))
    with pytest.raises(LoadFailed, match=r"cannot be written in F16: .*; pull the model again"):
        widen(source, tmp_path / "wide.gguf", no_progress)


def test_without_numpy_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source.gguf"
    quantized(source)
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(MissingExtra, match=r"run: pip install '\.\[llamacpp\]'"):
        widen(source, tmp_path / "wide.gguf", no_progress)


def test_a_weight_that_is_too_large_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "source.gguf"
    quantized(source)
    whole = bytearray(source.read_bytes())
    begins = next(t.data_offset for t in gguf.GGUFReader(source).tensors if t.name == "token_embd.weight")
    whole[int(begins) : int(begins) + 2] = numpy.float16(60_000).tobytes()  # the first scale
    source.write_bytes(whole)
    with pytest.raises(LoadFailed, match="cannot be written in F16: a weight is too large for it"):
        widen(source, tmp_path / "wide.gguf", no_progress)


def test_any_single_wrong_byte_of_the_header_is_refused_or_harmless(tmp_path: Path) -> None:
    source, target = tmp_path / "source.gguf", tmp_path / "wide.gguf"
    quantized(source)
    whole = source.read_bytes()
    start = gguf.GGUFReader(source).data_offset
    refused = 0
    for place in range(0, start, 3):
        source.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            widen(source, target, no_progress)
        except LoadFailed:
            refused += 1
        assert not target.exists() or target.stat().st_size < 2 * (1 + len(SHAPES)) * len(whole)
        target.unlink(missing_ok=True)
    assert refused > 10
