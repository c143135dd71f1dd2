"""S5, the model worker: its verbs on ours, each of its defects asserted absent."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import drivetrain
from drivetrain import Delta, Started
from drivetrain.assembly import SETTINGS
from drivetrain.core.engine import ModelSpec, WeightsFormat
from drivetrain.core.errors import EngineFailed, InvalidRequest, InvalidSetting, NotReady, OutOfMemory
from drivetrain.core.events import Finished
from drivetrain.core.status import State
from drivetrain.engines.fake import FakeEngine, Script
from drivetrain.worker.settings import Settings
from drivetrain.worker.sources import read_settings
from drivetrain.worker.worker import EngineWorker
from probe import engine_of
from recorded_spans import RecordingTracer

ASK: dict[str, Any] = {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 12, "ignore_eos": True}


@pytest.fixture(scope="module")
async def worker(checkpoint: Callable[[str], Path]) -> AsyncIterator[EngineWorker]:
    async with drivetrain.Worker.open(checkpoint("llama"), engine="transformers") as made:
        yield made


def state_of(worker: EngineWorker) -> State:
    return worker.state


def faked(script: Script, tracer: RecordingTracer | None = None, **settings: Any) -> EngineWorker:
    spec = ModelSpec(name="fake", path=Path(), format=WeightsFormat.NONE)
    return EngineWorker(FakeEngine(script), spec, Settings(**settings), tracer=tracer)


# The old verbs


async def test_load_strips_a_trailing_slash_and_follows_links(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    link = tmp_path / "my-model"
    link.symlink_to(checkpoint("gpt2"))
    async with drivetrain.Worker.open(f"{link}/", engine="transformers") as opened:
        assert opened.metadata.architecture == "gpt2"
        assert not opened.metadata.name.endswith("/")


def test_parameters_come_from_flags_environment_and_file(tmp_path: Path) -> None:
    config = tmp_path / "drivetrain.toml"
    config.write_text('dtype = "float16"\nmax_waiting = 7\n[models.my-model]\nmax_waiting = 8\npooling = "last"\n')
    environment = {
        "DRIVETRAIN_MY_MODEL_DEVICE": "cpu", "DRIVETRAIN_DEVICE": "cuda", "DRIVETRAIN_TIMEOUT_S": "5",
        "DRIVETRAIN_TEMPERATURE": "0.5", "DRIVETRAIN_HOME": "/elsewhere",
    }  # fmt: skip
    resolved = read_settings(SETTINGS, "my-model", {"temperature": 0.25}, environment=environment, config=config)
    settings, origins = resolved.settings, resolved.origins
    assert (settings.temperature, origins["temperature"]) == (0.25, "flag or keyword")
    assert (settings.value("device"), origins["device"]) == ("cpu", "environment DRIVETRAIN_MY_MODEL_DEVICE")
    assert (settings.timeout_s, origins["timeout_s"]) == (5.0, "environment DRIVETRAIN_TIMEOUT_S")
    assert settings.max_waiting == 8
    assert settings.engine_options == {"device": "cpu", "dtype": "float16", "pooling": "last"}
    assert origins["max_waiting"].endswith("models.my-model.max_waiting")
    assert origins["drain_s"] == "default"
    assert "environment DRIVETRAIN_TIMEOUT_S" in resolved.explain()


async def test_start_and_stop_and_a_second_stop(worker: EngineWorker) -> None:
    fake = faked(Script())
    with pytest.raises(NotReady):
        fake.metadata  # noqa: B018 - reading it is the test
    await fake.start()
    assert state_of(fake) is State.READY
    with pytest.raises(NotReady):
        await fake.start()
    await fake.stop()
    await fake.stop()
    assert state_of(fake) is State.STOPPED


async def test_metadata_names_context_roles_and_separator(worker: EngineWorker) -> None:
    metadata = worker.metadata
    assert metadata.name == "llama"
    assert metadata.context_length == worker.capabilities.context_length > 0
    assert set(metadata.roles) == {"system", "user", "assistant"}
    assert metadata.separator


async def test_context_and_trace_can_be_given_per_request(checkpoint: Callable[[str], Path]) -> None:
    tracer, here = RecordingTracer(), {"traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}
    async with drivetrain.Worker.open(checkpoint("gpt2"), engine="transformers", tracer=tracer) as opened:
        result = await opened.generate(
            prompt="Once upon a time", context_length=32, ignore_eos=True, trace_context=here
        )
        assert result.usage.total_tokens == 32
    request_span = tracer.spans[-1]
    assert request_span.parent == here
    assert tracer.spans[0].name == "drivetrain.load"
    assert tracer.spans[0].attributes["drivetrain.engine"] == "transformers"


async def test_a_prompt_form_can_be_set_for_a_model(checkpoint: Callable[[str], Path]) -> None:
    async with drivetrain.Worker.open(checkpoint("llama"), engine="transformers", family="vicuna") as opened:
        assert opened.metadata.family == "vicuna"
        result = await opened.generate(messages=[{"role": "user", "content": "Hi"}], max_tokens=1)
        tokenizer = opened.info.tokenizer
        assert "USER: Hi" in tokenizer.decode(result.prompt_token_ids or ())
    with pytest.raises(InvalidSetting) as caught:
        async with drivetrain.Worker.open(checkpoint("llama"), engine="transformers", family="vicunna"):
            pass
    assert "vicuna" in caught.value.message


def test_the_blocking_face_has_the_same_verbs(checkpoint: Callable[[str], Path]) -> None:
    with drivetrain.sync.Worker.open(checkpoint("llama"), engine="transformers") as blocking:
        result = blocking.generate(**ASK)
        texts = [event.text for event in blocking.stream(**ASK) if isinstance(event, Delta)]
        assert "".join(texts) == result.text
        assert blocking.count_tokens("Once upon a time") == result.usage.prompt_tokens
        assert len(blocking.embed(["x"]).vectors) == 1
        assert blocking.metadata.name == "llama"
        for event in blocking.stream(**{**ASK, "max_tokens": 200}):
            if isinstance(event, Delta):
                break
        with pytest.raises(InvalidRequest):
            blocking.generate(prompt="x", temperature=9)
    blocking.close()


# The old defects


async def test_an_async_stream_ends_well(worker: EngineWorker) -> None:
    """There, every async stream ended as an error: it read a variable before it was set."""
    events = [event async for event in worker.stream(**ASK)]
    assert isinstance(events[-1], Finished)


@pytest.mark.parametrize("ids_per_step", [1, 4])
async def test_first_token_time_is_told_also_when_the_first_output_holds_several(ids_per_step: int) -> None:
    async with faked(Script(repeat=True, ids_per_step=ids_per_step, first_delay_s=0.05, step_delay_s=0.01)) as fake:
        metrics = (await fake.generate(**ASK)).metrics
    assert metrics.first_token_s is not None
    assert 0.04 < metrics.first_token_s < metrics.total_s


async def test_the_configured_device_is_the_one_used(checkpoint: Callable[[str], Path]) -> None:
    async with drivetrain.Worker.open(checkpoint("gpt2"), engine="transformers", device="cpu") as opened:
        engine: Any = opened._engine
        assert opened.metadata.device == "cpu"
        assert {parameter.device.type for parameter in engine._loaded.model.parameters()} == {"cpu"}
    for missing in ("cuda", "cuda:3", "tpu"):
        with pytest.raises(InvalidSetting) as caught:
            async with drivetrain.Worker.open(checkpoint("gpt2"), engine="transformers", device=missing):
                pass
        assert caught.value.param == "device"


async def test_no_limit_of_a_tokenizer_is_not_a_context_length(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """This config names no positions and the tokenizer says 1e30: then the setting counts, and else 2048."""
    folder = _copy(checkpoint("bloom"), tmp_path / "bloom")
    _edit(folder / "tokenizer_config.json", model_max_length=1000000000000000019884624838656)
    _edit(folder / "config.json", seq_length=None)
    async with drivetrain.Worker.open(folder, engine="transformers") as opened:
        assert opened.metadata.context_length == 2048
    async with drivetrain.Worker.open(folder, engine="transformers", context_length=777) as opened:
        assert opened.metadata.context_length == 777


async def test_counting_counts_all_ids_and_its_errors_are_errors(worker: EngineWorker) -> None:
    """There, it was the length of the first id, async worked for proxies only, and errors became -1."""
    short, long = await worker.count_tokens("one"), await worker.count_tokens("one two three four five six")
    assert 0 < short < long
    result = await worker.generate(prompt="one two three four five six", max_tokens=1)
    assert result.usage.prompt_tokens == long
    with pytest.raises(InvalidRequest):
        await worker.count_tokens(messages=[{"role": "nobody", "content": "x"}])
    with pytest.raises(InvalidRequest):
        await worker.count_tokens()


async def test_out_of_memory_is_an_error_of_its_class(worker: EngineWorker) -> None:
    import torch

    engine: Any = engine_of(worker)

    def fail(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    handle = engine._loaded.model.register_forward_pre_hook(fail)
    try:
        with pytest.raises(OutOfMemory):
            await worker.generate(**ASK)
    finally:
        handle.remove()
    assert (await worker.generate(**ASK)).usage.completion_tokens == 12


async def test_every_span_is_closed_once_whatever_the_ending() -> None:
    tracer = RecordingTracer()
    async with faked(Script(repeat=True, step_delay_s=0.005), tracer) as fake:
        await fake.generate(**ASK)
        async for event in fake.stream(**{**ASK, "max_tokens": 500}):
            if isinstance(event, Delta):
                break
        engine: Any = fake._engine
        engine.script = Script(fault=RuntimeError("broken"), fault_at_step=1)
        with pytest.raises(EngineFailed):
            await fake.generate(**ASK)
        await asyncio.sleep(0.05)
    assert [span.name for span in tracer.requests] == ["text_completion fake"] * 3
    assert all(len(span.ends) == 1 for span in tracer.spans)
    assert [span.ends[0] for span in tracer.requests] == [None, "cancelled", "engine_error"]


async def test_a_failed_load_closes_its_span_and_leaves_a_stopped_worker() -> None:
    tracer = RecordingTracer()
    fake = faked(Script(load_error=RuntimeError("no")), tracer)
    with pytest.raises(drivetrain.errors.LoadFailed):
        await fake.start()
    assert fake.state is State.STOPPED
    assert len(tracer.spans) == 1
    assert tracer.spans[0].ends == ["load_failed"]


async def test_speed_counts_completion_tokens_and_never_divides_by_zero() -> None:
    async with faked(Script(repeat=True, step_delay_s=0.01)) as fake:
        slow = (await fake.generate(**{**ASK, "prompt": "word " * 500, "max_tokens": 11})).metrics
        one = (await fake.generate(**{**ASK, "max_tokens": 1})).metrics
    assert slow.tokens_per_s is not None
    assert slow.tokens_per_s <= 100 * 1.05  # ten more tokens at one every 10 ms, whatever the prompt
    assert one.tokens_per_s is None
    async with faked(Script(repeat=True, ids_per_step=12)) as fake:
        assert (await fake.generate(**ASK)).metrics.tokens_per_s is None  # all at once: no time passed between


async def test_totals_are_the_sum_of_what_was_counted(worker: EngineWorker) -> None:
    usage = (await worker.generate(**ASK, n=2)).usage
    assert usage.completion_tokens == 24
    assert usage.total_tokens == usage.prompt_tokens + 24


async def test_embeddings_are_there(worker: EngineWorker) -> None:
    vectors = (await worker.embed(["a cat", "a cat", "quantum chromodynamics"])).vectors
    assert vectors[0] == vectors[1] != vectors[2]


async def test_nothing_of_prompts_or_outputs_is_printed_or_logged(
    worker: EngineWorker, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    result = await worker.generate(**{**ASK, "prompt": "the secret word is xyzzy"})
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""
    assert "xyzzy" not in caplog.text
    assert result.text not in caplog.text


async def test_an_empty_stream_of_the_engine_is_an_error_not_nothing() -> None:
    async with faked(Script(no_output=True)) as fake:
        with pytest.raises(EngineFailed):
            await fake.generate(**ASK)
        assert fake.status.running == 0


async def test_a_failure_after_partial_text_keeps_the_text() -> None:
    """There, a banner replaced what was already said."""
    async with faked(Script(text="Hello world", repeat=True, fault=RuntimeError("broken"), fault_at_step=5)) as fake:
        seen = []
        with pytest.raises(EngineFailed) as caught:
            async for event in fake.stream(**ASK):
                seen.append(event)
    assert isinstance(seen[0], Started)
    text = "".join(event.text for event in seen if isinstance(event, Delta))
    partial = caught.value.partial
    assert partial is not None
    assert partial.choices[0].text == text == "Hello"
    assert partial.usage.completion_tokens == 5


async def test_memory_is_told_now_and_on_average(worker: EngineWorker) -> None:
    metrics = (await worker.generate(**ASK)).metrics
    (now,), (average,) = metrics.memory, metrics.average_memory
    assert 0 < now.allocated_bytes < now.total_bytes
    assert 0 < average.allocated_bytes < average.total_bytes
    assert average.available_bytes > 0


def _copy(source: Path, target: Path) -> Path:
    import shutil

    shutil.copytree(source, target)
    return target


def _edit(path: Path, **changes: Any) -> None:
    data = json.loads(path.read_text())
    for name, value in changes.items():
        if value is None:
            data.pop(name, None)
        else:
            data[name] = value
    path.write_text(json.dumps(data))
