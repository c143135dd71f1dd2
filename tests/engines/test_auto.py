"""What `auto` does with real folders: native where it can, transformers where that refuses, and nothing hidden."""

from __future__ import annotations

import dataclasses
import gc
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import drivetrain
from drivetrain import assembly
from drivetrain.core.errors import DrivetrainError, InvalidSetting, LoadFailed, OutOfMemory, UnfitEngine
from drivetrain.engines.base.kind import EntryPoints
from drivetrain.engines.checkpoint.quiet import quiet_library
from drivetrain.store.store import Store
from tiny import causal


@pytest.fixture
def refused_late(tmp_path: Path) -> Path:
    """A model of which only the self-test finds out that native cannot run it."""
    folder = tmp_path / "diffllama"
    with quiet_library():
        causal.build(folder, "DiffLlama", causal._byte_level, **causal.GROUPED)
    return folder


@pytest.fixture
def broken(checkpoint: Callable[[str], Path], tmp_path: Path) -> Path:
    """A copy of a good model, for a test to break."""
    folder = tmp_path / "broken"
    shutil.copytree(checkpoint("llama"), folder)
    return folder


@pytest.fixture
def no_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody may turn to transformers."""

    def refuse() -> Any:
        raise AssertionError("it fell back")

    kind = dataclasses.replace(assembly.ENGINES["transformers"], enter=lambda: EntryPoints(make=refuse))
    monkeypatch.setitem(assembly.ENGINES, "transformers", kind)


async def failing(folder: Path, **settings: Any) -> DrivetrainError:
    with pytest.raises(DrivetrainError) as caught:
        async with drivetrain.Worker.open(folder, **settings):
            pass
    return caught.value


@pytest.mark.parametrize(
    ("name", "engine", "words"),
    [
        ("llama", "native", ""),
        ("gpt2", "native", ""),
        ("bloom", "transformers", "the class BloomForCausalLM does its attention by itself"),
        ("t5", "transformers", ""),
        ("bert", "transformers", ""),
        ("llava", "transformers", ""),
    ],
)
async def test_the_engine_and_what_is_said_of_it(
    checkpoint: Callable[[str], Path], name: str, engine: str, words: str
) -> None:
    async with drivetrain.Worker.open(checkpoint(name)) as worker:
        assert worker.metadata.engine == engine
        notes = [note for note in worker.metadata.notes if "cannot run" in note]
        assert notes == ([f"native cannot run this model: {words}; transformers runs it"] if words else [])
        if worker.capabilities.generation:
            result = await worker.generate(prompt="Once", max_tokens=3, ignore_eos=True)
            assert result.usage.completion_tokens == 3


async def test_a_late_refusal_is_said_and_leaves_nothing_of_the_first_engine(
    refused_late: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from drivetrain.engines.transformers import loading

    alive: list[int] = []
    load = loading.load

    def counted(*arguments: Any) -> Any:
        alive.append(sum(type(found).__name__ == "DiffLlamaForCausalLM" for found in gc.get_objects()))
        return load(*arguments)

    monkeypatch.setattr(loading, "load", counted)
    said: list[str] = []
    async with drivetrain.Worker.open(refused_late, progress=lambda what, share: said.append(what)) as worker:
        assert worker.metadata.engine == "transformers"
        note = worker.metadata.notes[0]
        assert note.startswith("native cannot run this model: in a batch its logits are off by ")
        assert note.endswith("; transformers runs it")
        assert [said.count("loading the weights"), said.count(note)] == [2, 1]  # twice, and the user saw why
        assert (await worker.generate(prompt="x", max_tokens=2, ignore_eos=True)).usage.completion_tokens == 2
    assert alive == [0]


async def test_a_class_that_does_not_fit_is_refused_before_its_weights_are_read(
    checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers

    def read(*_: Any, **__: Any) -> Any:
        raise AssertionError("the weights were read")

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", read)
    error = await failing(checkpoint("falcon"), engine="native")
    assert isinstance(error, UnfitEngine)
    assert "--engine transformers" in error.message


async def test_a_setting_of_native_alone_is_refused_with_the_reason(checkpoint: Callable[[str], Path]) -> None:
    error = await failing(checkpoint("bloom"), kv_cache_gb=1.0)
    assert isinstance(error, InvalidSetting)
    assert error.param == "kv_cache_gb"
    assert "attention by itself" in error.message
    assert "and transformers has no setting kv_cache_gb" in error.message


def _other_shape(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": config["intermediate_size"] * 2}))


def _no_numbers(folder: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if name.endswith("norm.weight"))
    save_file({**weights, name: weights[name] * torch.nan}, folder / "model.safetensors", {"format": "pt"})


def _without_tokenizer(folder: Path) -> None:
    for file in folder.glob("tokenizer*"):
        file.unlink()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_other_shape, "do not fit the configuration"),
        (_no_numbers, "not numbers"),
        (_without_tokenizer, "the model folder has no tokenizer"),
    ],
)
async def test_damage_is_no_reason_to_try_the_next_engine(
    broken: Path, no_second: None, damage: Callable[[Path], None], words: str
) -> None:
    damage(broken)
    error = await failing(broken)
    assert isinstance(error, LoadFailed)
    assert words in error.message


async def test_neither_is_a_lack_of_memory(
    checkpoint: Callable[[str], Path], no_second: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from drivetrain.engines.native.model import selftest

    def exhausted(*_: Any) -> Any:
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(selftest, "_packed", exhausted)
    assert isinstance(await failing(checkpoint("llama")), OutOfMemory)


@pytest.mark.slow
async def test_smollm2_as_a_folder_runs_on_native(smollm2: str) -> None:
    store = Store()
    async with drivetrain.Worker.open(smollm2, engine="native"):
        pass  # makes the folder of the GGUF file, if it is not there
    folder = store.derived_path(store.resolve(smollm2), "safetensors")
    async with drivetrain.Worker.open(folder) as worker:
        assert worker.metadata.engine == "native"
        assert [note for note in worker.metadata.notes if "compile" not in note] == []
        messages = [{"role": "user", "content": "What is the capital of France?"}]
        assert "Paris" in (await worker.generate(messages=messages, temperature=0)).text
