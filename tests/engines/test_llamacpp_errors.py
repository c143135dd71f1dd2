"""What llama.cpp, its HTTP side and its process raise, each mapped; and files that cannot be loaded."""

from __future__ import annotations

import asyncio
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from drivetrain.core.engine import ModelSpec, WeightsFormat
from drivetrain.core.errors import (
    ContextOverflow,
    DrivetrainError,
    EngineFailed,
    InvalidRequest,
    InvalidSetting,
    LoadFailed,
    MissingExtra,
    OutOfMemory,
)
from drivetrain.engines.llamacpp import errors
from drivetrain.engines.llamacpp.child.connection import ChildConnection
from drivetrain.engines.llamacpp.engine import LlamaCppEngine
from drivetrain.engines.llamacpp.errors import ProcessDied, ServerRefused

KINDS = (
    "invalid_request_error", "authentication_error", "not_found_error", "server_error", "unavailable_error",
    "permission_error", "not_supported_error", "exceed_context_size_error",
)  # fmt: skip
"""All of llama.cpp's `error_type`s (tools/server/server-common.cpp)."""


def test_every_error_type_of_the_server_is_mapped() -> None:
    assert set(errors.REFUSALS) == set(KINDS)
    for kind in KINDS:
        raised = ServerRefused(400, kind, "no", prompt_tokens=9, limit=8)
        mapped = errors.while_running(raised)
        assert type(mapped) is errors.REFUSALS[kind]
        assert mapped.__cause__ is raised
    overflow = errors.while_running(ServerRefused(400, "exceed_context_size_error", "no", prompt_tokens=9, limit=8))
    assert isinstance(overflow, ContextOverflow)
    assert (overflow.prompt_tokens, overflow.limit) == (9, 8)


@pytest.mark.parametrize(
    ("raised", "running", "loading"),
    [
        (MemoryError(), OutOfMemory, OutOfMemory),
        (ServerRefused(500, "server_error", "failed to allocate buffer"), OutOfMemory, OutOfMemory),
        (ServerRefused(500, "server_error", "Context size has been exceeded."), OutOfMemory, OutOfMemory),
        (ServerRefused(500, "something_new", "hm"), EngineFailed, LoadFailed),
        (ServerRefused(418, "", "status 418"), EngineFailed, LoadFailed),
        (ProcessDied("status 1", ["ggml_backend_cpu_buffer: failed to allocate 9 bytes"]), OutOfMemory, OutOfMemory),
        (ProcessDied("status -6", ["memory allocation of 9 bytes failed"]), OutOfMemory, OutOfMemory),
        (ProcessDied("status -6", ["GGML_ASSERT(x) failed"]), EngineFailed, LoadFailed),
        (ProcessDied("status 1", ["ModuleNotFoundError: No module named 'xllamacpp'"]), EngineFailed, MissingExtra),
        (ModuleNotFoundError("No module named 'xllamacpp'", name="xllamacpp"), EngineFailed, MissingExtra),
        (ConnectionRefusedError(111, "refused"), EngineFailed, LoadFailed),
        (ConnectionResetError(104, "reset"), EngineFailed, LoadFailed),
        (BrokenPipeError(32, "pipe"), EngineFailed, LoadFailed),
        (TimeoutError(), EngineFailed, LoadFailed),
        (EOFError("the answer broke off"), EngineFailed, LoadFailed),
        (asyncio.IncompleteReadError(b"", 5), EngineFailed, LoadFailed),
        (asyncio.LimitOverrunError("long", 5), EngineFailed, LoadFailed),
        (json.JSONDecodeError("no", "x", 0), EngineFailed, LoadFailed),
        (KeyError("stop"), EngineFailed, LoadFailed),
        (RuntimeError("Failed to init server"), EngineFailed, LoadFailed),
        (InvalidRequest("x", param="p"), InvalidRequest, InvalidRequest),
    ],
)
def test_what_is_raised(raised: Exception, running: type[DrivetrainError], loading: type[DrivetrainError]) -> None:
    assert type(errors.while_running(raised)) is running
    assert type(errors.while_loading(raised)) is loading


def test_a_refused_grammar_is_the_fault_of_the_constraint() -> None:
    said = "Failed to initialize samplers: failed to parse grammar"
    assert errors.while_running(ServerRefused(400, "invalid_request_error", said)).param == "constraint"
    assert errors.while_running(ServerRefused(400, "invalid_request_error", "another")).param is None


def test_messages_are_one_short_line_without_paths_and_addresses() -> None:
    died = ProcessDied(
        "status 1", ["0.00.025.437 E llama_model_load: error loading model: /home/a/b.gguf is\nbad " * 50]
    )
    for exc in (died, ServerRefused(500, "server_error", "at /home/a/b from 127.0.0.1:8080\n" + "y" * 900)):
        for text in (errors.while_running(exc).message, errors.while_loading(exc).message):
            assert "\n" not in text
            assert "/home" not in text
            assert "127.0.0.1" not in text
            assert len(text) < 700


def test_the_first_telling_line_of_the_log_is_the_reason() -> None:
    died = ProcessDied(
        "status 1",
        [
            "0.00.040.192 E llama_model_load: error loading model: unknown model architecture: 'llamx'",
            "0.00.040.216 E llama_model_load_from_file_impl: failed to load model",
            "0.00.040.687 E srv          init: exiting due to model loading error",
            "RuntimeError: Failed to init server, please check the input params.",
        ],
    )
    assert errors.while_loading(died).message == "the model cannot be loaded: unknown model architecture: 'llamx'"


@pytest.mark.parametrize("body", [b"", b"no json", b"[]", b'{"error": 5}', b'{"error": {"code": "x"}}'])
def test_an_answer_that_is_no_error_object_is_still_an_error(body: bytes) -> None:
    assert ServerRefused.parse(502, body).status == 502


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{{{",
        b"nonsense\r\n\r\n",
        b'HTTP/1.1 500 No\r\nContent-Length: 35\r\n\r\n{"error":{"type":"server_error"}}   ',
    ],
)
async def test_a_broken_answer_is_a_typed_error(answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(Exception) as caught:  # noqa: PT011 - which one does not matter: it is mapped
            await ChildConnection("127.0.0.1", port, "key").ask("GET", "/x")
        assert type(errors.while_running(caught.value)) is EngineFailed


async def test_an_error_in_the_middle_of_a_stream() -> None:
    event = b'data: {"content":"a"}\n\n'
    failed = b'data: {"error":{"code":500,"message":"boom","type":"server_error"}}\n\n'

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for part in (event[:7], event[7:] + b": a comment\n\n", failed):
            writer.write(b"%x\r\n%b\r\n" % (len(part), part))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        heard: list[dict[str, Any]] = []

        def hear(event: dict[str, Any]) -> bool:
            heard.append(event)
            return False

        with pytest.raises(ServerRefused, match="boom"):
            await ChildConnection("127.0.0.1", port, "key").follow("/x", {}, hear)
        assert heard == [{"content": "a"}]


def test_no_file_no_gguf_and_half_a_header(tmp_path: Path) -> None:
    cases = {
        "not": b"hello" * 100,
        "empty": b"",
        "half": b"GGUF" + struct.pack("<IQQ", 3, 0, 5) + struct.pack("<Q", 4),
        "old": b"GGUF" + struct.pack("<IQQ", 1, 0, 0),
        "no-vocabulary": b"GGUF" + struct.pack("<IQQ", 3, 0, 0),
        "kind": b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k" + struct.pack("<I", 99),
    }
    for name, data in cases.items():
        (tmp_path / name).write_bytes(data)
    for name in [*cases, "missing"]:
        with pytest.raises(LoadFailed) as caught:
            asyncio.run(load(tmp_path / name))
        assert "\n" not in caught.value.message
        assert str(tmp_path) not in caught.value.message


def test_only_gguf() -> None:
    with pytest.raises(LoadFailed, match="GGUF"):
        asyncio.run(load(Path(), WeightsFormat.SAFETENSORS))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cut in the tensors", "unknown architecture"])
async def test_damaged_weights(smollm2: str, tmp_path: Path, how: str) -> None:
    whole = weights(smollm2).read_bytes()
    made = tmp_path / "model.gguf"
    made.write_bytes(whole[:40_000_000] if how.startswith("cut") else whole.replace(b"llama", b"llamx", 20))
    with pytest.raises(LoadFailed) as caught:
        await load(made)
    assert ("incomplete" if how.startswith("cut") else "llamx") in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("slots", 0), ("slots", "four"), ("slots", True), ("threads", -1), ("context_length", 10**6),
        ("context_length", 0), ("pooling", "sum"), ("gpu_layers", -2),
    ],
)  # fmt: skip
async def test_bad_settings_are_named(smollm2: str, name: str, value: Any) -> None:
    with pytest.raises(InvalidSetting) as caught:
        await load(weights(smollm2), **{name: value})
    assert caught.value.param == name


def weights(name: str) -> Path:
    from drivetrain.store.store import Store

    return Store().pull(name).path


async def load(path: Path, form: WeightsFormat = WeightsFormat.GGUF, **options: Any) -> None:
    engine = LlamaCppEngine()
    try:
        await engine.load(ModelSpec(name="m", path=path, format=form, options=options), lambda what, share: None)
    finally:
        await engine.close()
