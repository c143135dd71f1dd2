"""Which weights are taken, and that broken ones give one line that names the file and the remedy, and no path."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_samples import gguf_bytes, model_folder, safetensors_bytes

from drivetrain import safetensors_header
from drivetrain.core.engine import WeightsFormat
from drivetrain.core.errors import LoadFailed
from drivetrain.store import gguf_header
from drivetrain.store.digests import quick_digest
from drivetrain.store.formats import config_requests_remote_code, detect


def refused(path: Path) -> str:
    with pytest.raises(LoadFailed) as caught:
        detect(path)
    message = caught.value.message
    assert "\n" not in message
    assert str(path.parent) not in message
    return message


def test_safetensors_folder(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m")
    found = detect(folder)
    assert (found.format, found.path, found.files) == (WeightsFormat.SAFETENSORS, folder, ("model.safetensors",))


def test_sharded_folder(tmp_path: Path) -> None:
    found = detect(model_folder(tmp_path / "m", shards=3))
    assert found.files == tuple(f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3))


def test_gguf_file_and_folder(tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    file.write_bytes(gguf_bytes())
    (tmp_path / "mmproj-tiny.gguf").write_bytes(gguf_bytes())
    for path in (file, tmp_path):
        found = detect(path)
        assert (found.format, found.path, found.files) == (WeightsFormat.GGUF, file, ("tiny.gguf",))


def test_gguf_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(gguf_bytes())
    assert detect(tmp_path / "blob").format is WeightsFormat.GGUF


def test_two_ggufs_need_a_choice(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(gguf_bytes())
    assert "holds 2 GGUF files; give one of them" in refused(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth"])
def test_pickles_are_refused_and_conversion_explained(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / name).write_bytes(b"\x80\x04.")
    for path in (tmp_path, tmp_path / name):
        message = refused(path)
        assert message.startswith(name)
        assert "only safetensors and GGUF are read" in message
        assert "save_pretrained" in message


def test_missing_shard_is_named(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m", shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    assert "model-00002-of-00003.safetensors of model.safetensors.index.json is missing" in refused(folder)


def test_shards_without_an_index(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m", shards=2)
    (folder / "model.safetensors.index.json").unlink()
    assert "model.safetensors.index.json is missing" in refused(folder)


@pytest.mark.parametrize("shard", ["../secret.safetensors", "/etc/passwd", "x.bin", ""])
def test_an_index_cannot_point_elsewhere(shard: str, tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m", shards=1)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": shard}}))
    assert "does not name the weight files" in refused(folder)


@pytest.mark.parametrize("keep", [0, 4, 8, 50, -1])
def test_truncated_safetensors(keep: int, tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m")
    (folder / "model.safetensors").write_bytes(safetensors_bytes()[:keep])
    message = refused(folder)
    assert message.startswith("model.safetensors is ")
    assert "fetch it again" in message


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (safetensors_bytes() + b"x", "is damaged"),
        (struct.pack("<Q", 2**63) + b"{}", "impossible length"),
        (struct.pack("<Q", 4) + b"nope", "cannot be read"),
        (struct.pack("<Q", 2) + b"[]", "cannot be read"),
        (struct.pack("<Q", 10) + b'{"a": 1.5}', "cannot be read"),
        (b"<!DOCTYPE html><html>not found</html>", "impossible length"),
    ],
)
def test_what_is_not_safetensors(body: bytes, words: str, tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m")
    (folder / "model.safetensors").write_bytes(body)
    assert words in refused(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"x"', "[" * 100_000, "\xff"])
def test_bad_config(text: str, tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m")
    (folder / "config.json").write_text(text, encoding="latin-1")
    assert refused(folder).startswith("config.json is not ")


def test_no_config_or_only_an_adapter(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m")
    (folder / "config.json").unlink()
    assert "has no config.json" in refused(folder)
    (folder / "adapter_config.json").write_text("{}")
    assert "only an adapter" in refused(folder)


def test_a_model_beside_what_is_left_of_an_adapter(tmp_path: Path) -> None:
    """As a tool leaves it that merged one, or made a GGUF of it."""
    folder = model_folder(tmp_path / "m")
    (folder / "adapter_config.json").write_text("{}")
    assert detect(folder).format is WeightsFormat.SAFETENSORS
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "pickle" in refused(folder)
    only_gguf = tmp_path / "g"
    only_gguf.mkdir()
    (only_gguf / "model.gguf").write_bytes(gguf_bytes())
    (only_gguf / "adapter_config.json").write_text("{}")
    assert detect(only_gguf).format is WeightsFormat.GGUF


def test_nothing_to_load(tmp_path: Path) -> None:
    assert "is empty" in refused(tmp_path)
    (tmp_path / "README.md").write_text("hello")
    assert "holds no weights" in refused(tmp_path)
    assert "README.md is not a model" in refused(tmp_path / "README.md")
    assert "neither a folder nor a file" in refused(tmp_path / "nothing")


def test_a_single_safetensors_file_asks_for_its_folder(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m")
    assert "give the folder" in refused(folder / "model.safetensors")


def test_a_pipe_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.gguf")
    assert "neither a folder nor a file" in refused(tmp_path / "model.gguf")


def test_every_truncation_of_a_gguf_is_noticed(tmp_path: Path) -> None:
    whole = gguf_bytes()
    file = tmp_path / "tiny.gguf"
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        assert gguf_header.problem(file) is not None, length
    file.write_bytes(whole)
    assert gguf_header.problem(file) is None


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "is empty"),
        (b"GGML" + bytes(100), "is not a GGUF file"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(100), "version"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**63, 0), "is truncated"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**63), "is truncated"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**63), "is truncated"),
        (b"GGUF" + struct.pack("<IQQQcI", 3, 0, 1, 1, b"k", 77), "unknown type 77"),
        (b"GGUF" + struct.pack("<IQQQcIIQ", 3, 0, 1, 1, b"k", 9, 0, 2**63), "is truncated"),
        (b"GGUF" + struct.pack("<IQQQcI", 3, 0, 1, 1, b"k", 9) + struct.pack("<IQ", 9, 1) * 9, "unknown type 9"),
        (b"GGUF" + struct.pack("<IQQQcI", 3, 1, 0, 1, b"t", 99), "too many dimensions"),
    ],
)
def test_bad_gguf(body: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(body)
    message = refused(tmp_path / "bad.gguf")
    assert message.startswith("bad.gguf ")
    assert words in message


@given(st.binary(max_size=200))
def test_no_header_can_break_the_readers(tail: bytes) -> None:
    path = Path(os.environ.get("TMPDIR", "/tmp"), f"drivetrain-header-{os.getpid()}")
    try:
        for prefix in (b"GGUF\x03\0\0\0", b"GGUF" + struct.pack("<IQQ", 3, 1, 1), b""):
            path.write_bytes(prefix + tail)
            gguf_header.problem(path)
        path.write_bytes(struct.pack("<Q", len(tail)) + tail)
        safetensors_header.problem(path)
    finally:
        path.unlink()


def test_remote_code_in_a_config_is_listed() -> None:
    config = {
        "auto_map": {"AutoConfig": "configuration_x.XConfig", "AutoTokenizer": ["tok.Slow", None]},
        "vision_config": {"auto_map": {"AutoModel": "other/repo--modeling_y.Y"}},
    }
    assert config_requests_remote_code(config) == [
        "AutoConfig=configuration_x.XConfig",
        "AutoModel=other/repo--modeling_y.Y",
        "AutoTokenizer=tok.Slow",
    ]
    assert config_requests_remote_code({"auto_map": "x.Y"}) == ["auto_map=x.Y"]
    assert config_requests_remote_code({"auto_map": {}, "text_config": {"model_type": "llama"}}) == []


def test_quick_digest_changes_with_the_file_and_not_with_the_place(tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    file.write_bytes(gguf_bytes(seed=1))
    before = quick_digest(detect(file))
    assert before.startswith("quick-")
    assert before == quick_digest(detect(file))
    moved = file.rename(tmp_path / "moved.gguf")
    assert quick_digest(detect(moved)) == before
    stat = moved.stat()
    moved.write_bytes(gguf_bytes(seed=2))
    os.utime(moved, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert quick_digest(detect(moved)) != before
    folder = model_folder(tmp_path / "m")
    first = quick_digest(detect(folder))
    (folder / "config.json").write_text('{"changed": 1}')
    assert quick_digest(detect(folder)) != first
