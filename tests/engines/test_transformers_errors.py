"""What torch and transformers raise, each mapped; and models that cannot be loaded, each with its remedy."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import drivetrain
from drivetrain.core.engine import Description, ModelSpec, WeightsFormat
from drivetrain.core.errors import (
    DeviceLost,
    DrivetrainError,
    EngineFailed,
    InvalidRequest,
    InvalidSetting,
    LoadFailed,
    MissingExtra,
    ModelNotFound,
    OutOfMemory,
)
from drivetrain.engines.checkpoint import errors
from drivetrain.engines.native import describe as native
from drivetrain.engines.transformers import describe as transformers
from probe import engine_of, model_of


def test_every_error_class_of_torch_is_mapped() -> None:
    """All exception classes that torch exports, those that it adds later included."""
    import torch

    classes = {
        value
        for module in (torch, torch.cuda, torch.accelerator)
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Exception)
    }
    assert torch.OutOfMemoryError in classes
    for cls in classes:
        raised = cls.__new__(cls, "boom")  # some want more than a message, or a driver, to be made
        mapped = errors.while_running(raised)
        wanted = OutOfMemory if "OutOfMemory" in cls.__name__ else EngineFailed
        assert type(mapped) is wanted, cls
        assert mapped.__cause__ is raised
        assert isinstance(errors.while_loading(raised, engine="transformers"), (LoadFailed, OutOfMemory))


@pytest.mark.parametrize(
    ("raised", "running", "loading"),
    [
        (MemoryError(), OutOfMemory, OutOfMemory),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), OutOfMemory, OutOfMemory),
        (RuntimeError("MPS backend out of memory"), OutOfMemory, OutOfMemory),
        (OSError(12, "Cannot allocate memory"), OutOfMemory, OutOfMemory),
        (RuntimeError("CUDA error: device-side assert triggered"), DeviceLost, DeviceLost),
        (ValueError("bad"), EngineFailed, LoadFailed),
        (IndexError("bad"), EngineFailed, LoadFailed),
        (KeyError("bad"), EngineFailed, LoadFailed),
        (NotImplementedError(), EngineFailed, LoadFailed),
        (OSError("no file"), EngineFailed, LoadFailed),
        (ModuleNotFoundError("No module named 'torch'", name="torch"), EngineFailed, MissingExtra),
        (ImportError("needs num2words", name="num2words"), EngineFailed, LoadFailed),
        (InvalidRequest("x", param="p"), InvalidRequest, InvalidRequest),
    ],
)
def test_what_the_library_raises(
    raised: Exception, running: type[DrivetrainError], loading: type[DrivetrainError]
) -> None:
    assert type(errors.while_running(raised)) is running
    assert type(errors.while_loading(raised, engine="transformers")) is loading


def test_messages_are_one_short_line_without_paths_and_addresses() -> None:
    exc = ValueError("cannot open\n/home/someone/models/x/config.json from 10.1.2.3:8080 " + "y" * 1000)
    text = errors.while_running(exc).message
    assert "\n" not in text
    assert "/home" not in text
    assert "10.1.2.3" not in text
    assert len(text) < 400


@pytest.fixture
def broken(checkpoint: Callable[[str], Path], tmp_path: Path) -> Path:
    """A copy of a good model, for a test to break."""
    folder = tmp_path / "broken"
    shutil.copytree(checkpoint("llama"), folder)
    return folder


async def failing(folder: object, engine: str = "transformers", **settings: Any) -> DrivetrainError:
    with pytest.raises(DrivetrainError) as caught:
        async with drivetrain.Worker.open(str(folder), engine, **settings):
            pass
    message = caught.value.message
    assert "\n" not in message
    assert len(message) < 500
    assert "above report" not in message  # what the library wrote to its log
    return caught.value


async def test_a_missing_folder(tmp_path: Path) -> None:
    assert isinstance(await failing(tmp_path / "nowhere"), ModelNotFound)


async def test_truncated_weights(broken: Path) -> None:
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    error = await failing(broken)
    assert isinstance(error, LoadFailed)
    assert "model.safetensors" in error.message


async def test_a_config_that_asks_for_code_of_its_own(broken: Path) -> None:
    trace = broken / "was-here"
    (broken / "evil.py").write_text(f"open({str(trace)!r}, 'w')\nclass Evil: pass\n")
    config = json.loads((broken / "config.json").read_text())
    config["model_type"] = "evil"
    config["auto_map"] = {"AutoConfig": "evil.Evil", "AutoModelForCausalLM": "evil.Evil"}
    (broken / "config.json").write_text(json.dumps(config))
    error = await failing(broken)
    assert isinstance(error, LoadFailed)
    assert "trust_remote_code" in error.message
    assert "was-here" not in os.listdir(broken)


async def test_a_broken_template(broken: Path) -> None:
    for name in ("chat_template.jinja", "chat_template.json"):
        (broken / name).unlink(missing_ok=True)
    (broken / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content ")
    error = await failing(broken)
    assert isinstance(error, LoadFailed)
    assert "template" in error.message
    assert "family" in error.message
    async with drivetrain.Worker.open(str(broken), engine="transformers", family="chatml") as worker:
        assert worker.metadata.family == "chatml"


@pytest.mark.parametrize("engine", ["native", "transformers"])
async def test_missing_and_misshapen_weights(broken: Path, engine: str) -> None:
    from safetensors.torch import load_file, save_file

    good = load_file(broken / "model.safetensors")
    some = next(name for name in good if "layers.0" in name)
    save_file({k: v for k, v in good.items() if k != some}, broken / "model.safetensors", {"format": "pt"})
    error = await failing(broken, engine=engine)
    assert isinstance(error, LoadFailed)
    assert "missing" in error.message
    save_file(
        {k: v[:1].contiguous() if k == some else v for k, v in good.items()},
        broken / "model.safetensors",
        {"format": "pt"},
    )
    error = await failing(broken, engine=engine)
    assert isinstance(error, LoadFailed)
    wanted = good[some].shape
    here = (1, *wanted[1:])
    assert f"{some} is {'×'.join(map(str, here))} and should be {'×'.join(map(str, wanted))}" in error.message


@pytest.mark.parametrize("engine", ["native", "transformers"])
async def test_weights_that_the_library_cannot_bring_together(
    checkpoint: Callable[[str], Path], tmp_path: Path, engine: str
) -> None:
    """The experts of a layer become one tensor when they are loaded; here they are of two sizes."""
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "broken"
    shutil.copytree(checkpoint("mixtral"), folder)
    weights = load_file(folder / "model.safetensors")
    some = next(name for name in weights if "experts" in name)
    save_file({**weights, some: weights[some][:3].contiguous()}, folder / "model.safetensors", {"format": "pt"})
    error = await failing(folder, engine=engine)
    assert isinstance(error, LoadFailed)
    assert error.message.startswith("the weights cannot be brought into the form of this model's class")


def add_weights(folder: Path, **more: Any) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    save_file({**weights, **more}, folder / "model.safetensors", {"format": "pt"})


def change_config(folder: Path, **more: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | more))


@pytest.mark.parametrize("engine", ["native", "transformers"])
async def test_a_configuration_with_fewer_layers_than_the_weights(broken: Path, engine: str) -> None:
    """The library would leave the last layers out without a word."""
    from safetensors.torch import load_file

    change_config(broken, num_hidden_layers=1)
    last = [name for name in load_file(broken / "model.safetensors") if name.startswith("model.layers.1.")]
    error = await failing(broken, engine=engine)
    assert isinstance(error, LoadFailed)
    assert f"no layer takes {len(last)} of the weights" in error.message
    assert sum(name in error.message for name in last) == 3
    assert "correct it, or pull or copy the model again" in error.message


@pytest.mark.parametrize("engine", ["native", "transformers"])
@pytest.mark.parametrize("name", ["model.layers.0.self_attn.q_norm.weight", "model.norm.bias", "lm_head.bias"])
async def test_weights_of_another_class(broken: Path, engine: str, name: str) -> None:
    import torch

    add_weights(broken, **{name: torch.ones(12)})
    error = await failing(broken, engine=engine)
    assert isinstance(error, LoadFailed)
    assert f"no layer takes 1 of the weights in the files, {name} among them" in error.message


UNUSED = {
    "tables that newer classes compute": (
        "llama",
        ["model.layers.0.self_attn.rotary_emb.inv_freq", "model.layers.1.self_attn.k_proj.k_scale"],
    ),
    "an image tower beside the text model": (
        "llama",
        ["model.visual.blocks.0.norm.weight", "vision_tower.layers.7.q.weight", "multi_modal_projector.bias"],
    ),
    "layers that guess ahead": (
        "llama",
        ["model.layers.2.eh_proj.weight", "model.mtp.layers.0.enorm.weight", "mtp.fc.weight"],
    ),
    "masks and tables of older classes": (
        "llama",
        [
            "model.layers.0.self_attn.bias",
            "model.layers.1.self_attn.causal_mask",
            "model.layers.0.self_attn.rotary_emb.cos_cached",
        ],
    ),
    "masks": ("gpt2", ["transformer.h.0.attn.bias", "transformer.h.1.attn.masked_bias"]),
}


def with_unused(source: Path, folder: Path, names: list[str]) -> str:
    import torch

    shutil.copytree(source, folder)
    add_weights(folder, **{name: torch.ones(3) for name in names})
    change_config(folder, num_nextn_predict_layers=1)
    return str(folder)


@pytest.mark.parametrize("engine", ["native", "transformers"])
@pytest.mark.parametrize("what", UNUSED)
async def test_weights_of_parts_that_are_not_used_do_no_harm(
    checkpoint: Callable[[str], Path], tmp_path: Path, engine: str, what: str
) -> None:
    tiny_model, names = UNUSED[what]
    more = with_unused(checkpoint(tiny_model), tmp_path / "more", names)
    asked: dict[str, Any] = {"prompt": "a", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    async with drivetrain.Worker.open(str(checkpoint(tiny_model)), engine, dtype="float32") as worker:
        text = (await worker.generate(**asked)).text
    async with drivetrain.Worker.open(more, engine, dtype="float32") as worker:
        assert (await worker.generate(**asked)).text == text


async def test_the_heads_of_an_encoder_are_not_used(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    names = ["cls.predictions.transform.dense.weight", "cls.predictions.bias", "embeddings.position_ids"]
    more = with_unused(checkpoint("bert"), tmp_path / "more", names)
    async with drivetrain.Worker.open(str(checkpoint("bert")), "transformers") as worker:
        vectors = (await worker.embed("a")).vectors
    async with drivetrain.Worker.open(more, "transformers") as worker:
        assert (await worker.embed("a")).vectors == vectors


async def test_pickles_are_not_read(broken: Path) -> None:
    import torch

    (broken / "model.safetensors").unlink()
    torch.save({}, broken / "pytorch_model.bin")
    error = await failing(broken)
    assert isinstance(error, LoadFailed)
    assert "safetensors" in error.message


async def test_broken_files_of_every_kind(broken: Path) -> None:
    for name, text in {"config.json": "{", "tokenizer.json": "{}", "generation_config.json": "{"}.items():
        good = (broken / name).read_bytes()
        (broken / name).write_text(text)
        assert isinstance(await failing(broken), LoadFailed), name
        (broken / name).write_bytes(good)


@pytest.mark.parametrize("engine", [native.of_files, transformers.of_files])
@pytest.mark.parametrize("text", ["{", "[1]"])
async def test_a_description_names_a_broken_file_as_loading_does(
    broken: Path, engine: Callable[..., Description], text: str
) -> None:
    (broken / "generation_config.json").write_text(text)
    with pytest.raises(LoadFailed) as caught:
        engine(ModelSpec(name="m", path=broken, format=WeightsFormat.SAFETENSORS), lambda what, share: None)
    assert caught.value.message == (await failing(broken)).message
    assert caught.value.message.startswith("generation_config.json is not readable JSON")


async def test_a_model_that_sees_needs_its_processor_to_be_described_and_to_be_loaded(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(checkpoint("llava"), tmp_path / "model", ignore=shutil.ignore_patterns("*processor*"))
    with pytest.raises(LoadFailed) as caught:
        transformers.of_files(
            ModelSpec(name="m", path=folder, format=WeightsFormat.SAFETENSORS), lambda what, share: None
        )
    assert caught.value.message == (await failing(folder)).message
    assert "its processor files are missing or broken" in caught.value.message


@pytest.mark.parametrize("stated", [{"top_k": -1}, {"repetition_penalty": 0.0}, {"temperature": 100.0}, {"top_p": 0.0}])
async def test_sampling_of_the_weights_is_held_to_the_same_ranges(broken: Path, stated: dict[str, Any]) -> None:
    path = broken / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"do_sample": True} | stated))
    error = await failing(broken)
    assert isinstance(error, LoadFailed)
    assert "generation_config.json" in error.message
    assert next(iter(stated)) in error.message


async def test_what_the_weights_ask_for_and_is_not_done_is_told(broken: Path) -> None:
    path = broken / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_beams": 4, "max_new_tokens": 3}))
    async with drivetrain.Worker.open(str(broken), engine="transformers") as worker:
        assert any("num_beams" in note for note in worker.metadata.notes)
        assert (await worker.generate(prompt="a", ignore_eos=True)).usage.completion_tokens == 3


async def test_a_tokenizer_with_more_ids_than_the_model(broken: Path) -> None:
    import transformers as hf

    tokenizer = hf.AutoTokenizer.from_pretrained(broken)
    tokenizer.add_tokens(["<zz>"] + [f"<z{i}>" for i in range(200)])
    tokenizer.save_pretrained(broken)
    async with drivetrain.Worker.open(str(broken), engine="transformers") as worker:
        with pytest.raises(InvalidRequest) as caught:
            await worker.generate(prompt="a <z199>", max_tokens=2)
        assert caught.value.param == "prompt"
        assert (await worker.generate(prompt="a", max_tokens=2, ignore_eos=True)).usage.completion_tokens == 2


async def test_settings_that_cannot_be(broken: Path) -> None:
    for settings, param in (
        ({"dtype": "int3"}, "dtype"),
        ({"device": "quantum"}, "device"),
        ({"context_length": 10**9}, "context_length"),
        ({"pooling": "max"}, "pooling"),
        ({"overflow": "explode"}, "overflow"),
        ({"family": "nothing-known"}, "family"),
    ):
        error = await failing(broken, **settings)
        assert isinstance(error, InvalidSetting), settings
        assert error.param == param


async def test_nan_logits_end_that_request_and_no_other(checkpoint: Callable[[str], Path]) -> None:
    import torch

    async with drivetrain.Worker.open(str(checkpoint("llama")), engine="transformers") as worker:
        model = model_of(engine_of(worker))
        bias = torch.zeros(1)

        def poison(module: object, args: object, output: Any) -> Any:
            return output + bias

        handle = model.lm_head.register_forward_hook(poison)
        bias[0] = float("nan")
        with pytest.raises(EngineFailed) as caught:
            await worker.generate(prompt="a", max_tokens=3)
        assert "NaN" in caught.value.message
        bias[0] = 0.0
        assert (await worker.generate(prompt="a", max_tokens=3, ignore_eos=True)).usage.completion_tokens == 3
        handle.remove()
