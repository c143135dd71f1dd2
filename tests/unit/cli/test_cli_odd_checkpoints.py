"""Broken and odd checkpoints, each in a row: what `inspect` says of it, and what `serve` does."""

from __future__ import annotations

import asyncio
import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_rigs import run_here, without_settings

import drivetrain
from drivetrain.engines.checkpoint import quantized
from tiny import fp8

Make = Callable[[Path], object]
LFS = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'a' * 64}\nsize 4976698672\n"
POINTER = "is a Git LFS pointer in place of a file of 4,976,698,672 bytes; run `git lfs pull` in the folder, or "
FETCH = "; fetch it again (drivetrain pull, or copy the whole file)"


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_settings(monkeypatch, tmp_path / "home")


@pytest.fixture
def folder(checkpoint: Callable[[str], Path], tmp_path: Path) -> Path:
    """A copy of a good model, for a test to spoil."""
    return Path(shutil.copytree(checkpoint("llama"), tmp_path / "odd"))


def configured(**more: Any) -> Make:
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | more))

    return change


def nameless(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    del config["model_type"], config["architectures"]
    (folder / "config.json").write_text(json.dumps(config))


def written(name: str, text: str) -> Make:
    return lambda folder: (folder / name).write_text(text)


def adapter(folder: Path) -> None:
    """As peft saves one, in a folder that somebody copied the base model's configuration into."""
    import torch
    from safetensors.torch import save_file

    (folder / "model.safetensors").unlink()
    weights = {"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": torch.zeros(8, 48)}
    save_file(weights, folder / "adapter_model.safetensors")
    stated = {"peft_type": "LORA", "base_model_name_or_path": "meta-llama/Llama-3.1-8B", "r": 8}
    (folder / "adapter_config.json").write_text(json.dumps(stated))


def adapter_of_a_path(folder: Path) -> None:
    adapter(folder)
    (folder / "config.json").unlink()
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "/home/someone/llama-8b/"}))


def without_tokenizer(folder: Path) -> None:
    for file in folder.glob("*token*"):
        file.unlink()


def truncated(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])


def without_shard(folder: Path) -> None:
    first, second = (f"model-0000{number}-of-00002.safetensors" for number in (1, 2))
    (folder / "model.safetensors").rename(folder / first)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": first, "b": second}}))


def emptied(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()


def gguf(content: bytes) -> Make:
    def replace(folder: Path) -> None:
        emptied(folder)
        (folder / "tiny.gguf").write_bytes(content)

    return replace


REFUSED: dict[str, tuple[Make, str]] = {
    "a LoRA adapter": (adapter, "the model folder holds only a LoRA adapter of meta-llama/Llama-3.1-8B, which is no"),
    "an adapter of a path": (
        adapter_of_a_path,
        "the model folder holds only an adapter of llama-8b, which is no model",
    ),
    "an LFS pointer": (written("model.safetensors", LFS), f"model.safetensors {POINTER}"),
    "an LFS pointer for config": (written("config.json", LFS), f"config.json {POINTER}"),
    "an LFS pointer for tokenizer": (written("tokenizer.json", LFS), f"tokenizer.json {POINTER}"),
    "no tokenizer": (
        without_tokenizer,
        "the model folder has no tokenizer (such as tokenizer.json or tokenizer.model)",
    ),
    "half a tokenizer": (written("tokenizer.json", '{"added'), "tokenizer.json is not readable JSON; copy it again"),
    "an empty tokenizer": (written("tokenizer.json", "{}"), "the tokenizer cannot be loaded (KeyError"),
    "truncated weights": (truncated, "model.safetensors is truncated: it has 475192 bytes of 476192" + FETCH),
    "a missing shard": (
        without_shard,
        "model-00002-of-00002.safetensors of model.safetensors.index.json is missing" + FETCH,
    ),
    "an unknown architecture": (
        configured(model_type="zaphod", architectures=["ZaphodForCausalLM"]),
        "config.json names the model type 'zaphod', which transformers ",
    ),
    "no architecture": (nameless, "config.json names no model_type"),
    "an empty folder": (emptied, "the model folder is empty; give one with safetensors weights, or a .gguf file"),
    "no JSON": (written("config.json", "{not"), "config.json is not valid JSON (Expecting property name"),
    "an odd value": (configured(hidden_size="many"), "config.json has a value that its model type cannot have ("),
    "an odd quantization": (configured(quantization_config=[4]), "quantization_config in config.json is not a JSON"),
    "GGUF: first bytes": (gguf(b"NOPE" + bytes(99)), "tiny.gguf is not a GGUF file (its first bytes are wrong)"),
    "GGUF: truncated": (
        gguf(b"GGUF" + struct.pack("<IQQ", 3, 5, 5) + bytes(10)),
        "tiny.gguf is truncated: its 34 bytes end within the header" + FETCH,
    ),
    "GGUF: an LFS pointer": (gguf(LFS.encode()), f"tiny.gguf {POINTER}"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_both_say_the_same_line(capsys: pytest.CaptureFixture[str], folder: Path, what: str) -> None:
    make, words = REFUSED[what]
    make(folder)
    inspected = run_here(capsys, "inspect", str(folder), "--quiet")
    served = run_here(capsys, "serve", str(folder), "--port", "0", "--quiet")
    assert (inspected.code, served.code) == (1, 1)
    assert inspected.error.startswith(words)
    assert served.error == inspected.error
    assert "drivetrain inspect" not in inspected.error
    assert "/home" not in inspected.error
    assert str(folder.parent) not in inspected.error


def integers(name: str, new: str) -> Callable[[Path], None]:
    """Weights of whole numbers, in place of those of the linear layers."""

    def change(folder: Path) -> None:
        import torch
        from safetensors.torch import load_file, save_file

        weights = load_file(folder / "model.safetensors")
        linear = [key for key in weights if key.endswith("_proj.weight")]
        kept = {key: weight for key, weight in weights.items() if key not in linear}
        dtype = getattr(torch, name)
        made = {key.replace("weight", new): torch.ones(6, 6, dtype=dtype) for key in linear}
        save_file({**kept, **made}, folder / "model.safetensors", {"format": "pt"})

    return change


def int8(folder: Path) -> None:
    """As llm-compressor writes W8A8: whole weights, and a scale for each channel."""
    import torch
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    for name in [key for key in weights if key.endswith("_proj.weight")]:
        scale = weights[name].abs().amax(1, keepdim=True) / 127
        weights[f"{name}_scale"] = scale
        weights[name] = (weights[name] / scale).round().to(torch.int8)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"}
BNB = {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False, "bnb_4bit_quant_type": "nf4"}
_SCHEME = {"num_bits": 8, "type": "int", "symmetric": True}
INT8 = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {**_SCHEME, "strategy": "channel"},
            "input_activations": {**_SCHEME, "strategy": "token", "dynamic": True},
        }
    },
    "ignore": ["lm_head"],
}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
MXFP4 = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}

QUANTIZED: dict[str, tuple[Make, dict[str, Any], str, str]] = {
    "GPTQ": (integers("int32", "qweight"), GPTQ, "GPTQ, 4 bits, in groups of 32", "optimum gptqmodel"),
    "AWQ": (integers("int32", "qweight"), AWQ, "AWQ, 4 bits, in groups of 64", "gptqmodel"),
    "bitsandbytes": (integers("uint8", "weight"), BNB, "bitsandbytes, 4 bits", "bitsandbytes"),
    "int8": (int8, INT8, "compressed-tensors, weights int8, activations int8", "compressed-tensors"),
}


@pytest.mark.parametrize("what", QUANTIZED)
def test_what_is_quantized_and_which_package_that_needs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, folder: Path, what: str
) -> None:
    """Also where these packages are installed, it is as if they were not."""
    monkeypatch.setattr(quantized, "_installed", lambda module: False)
    make, stated, words, packages = QUANTIZED[what]
    make(folder)
    configured(quantization_config=stated)(folder)
    inspected = run_here(capsys, "inspect", str(folder), "--quiet")
    assert inspected.code == 0, inspected.err
    assert f"\nweights       quantized: {words}; stored as F32, " in inspected.out
    named = packages.replace(" ", " and ")
    assert (
        f"\n              native and transformers need {named} for them; run: pip install {packages}\n" in inspected.out
    )
    found = run_here(capsys, "inspect", str(folder), "--json").json
    assert found["quantization"]["in_words"] == words
    assert found["quantization"]["needs"] == found["quantization"]["missing"] == packages.split()
    assert not found["quantization"]["over_floats"]
    served = run_here(capsys, "serve", str(folder), "--port", "0", "--quiet")
    assert served.code == 1
    assert served.error == f"the weights are quantized ({words}); to load them, run: pip install {packages}"


def test_a_method_that_nobody_knows(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    int8(folder)
    configured(quantization_config={"quant_method": "zippy"})(folder)
    assert "\nweights       quantized: zippy; stored as F32, I8\n" in run_here(capsys, "inspect", str(folder)).out
    served = run_here(capsys, "serve", str(folder), "--port", "0", "--quiet")
    assert served.error.startswith("the weights are quantized (zippy), which transformers ")


async def answered(folder: Path) -> tuple[str, tuple[str, ...], str]:
    """The engine, its notes, which `serve` prints, and what it says."""
    async with drivetrain.Worker.open(folder) as worker:
        result = await worker.generate(prompt="Once", max_tokens=8, temperature=0, ignore_eos=True)
        notes = tuple(note for note in worker.metadata.notes if "compile" not in note)
        return worker.metadata.engine, notes, result.text


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        (FP8, "fp8, in blocks of 128×128"),
        (MXFP4, "mxfp4"),
        (BNB, "bitsandbytes, 4 bits"),
        ({"bits": 4}, "by a method that quant_method does not name, 4 bits"),
    ],
    ids=["fp8", "mxfp4", "bitsandbytes", "nameless"],
)
async def test_a_configuration_over_float_weights_is_said_and_not_followed(
    capsys: pytest.CaptureFixture[str],
    checkpoint: Callable[[str], Path],
    folder: Path,
    stated: dict[str, Any],
    words: str,
) -> None:
    configured(quantization_config=stated)(folder)
    found = await asyncio.to_thread(run_here, capsys, "inspect", str(folder))
    assert f"\nweights       F32, not quantized, though config.json says {words}\n" in found.out
    note = f"config.json says that the weights are quantized ({words}), but they are floats: used as they are"
    *_, text = await answered(checkpoint("llama"))
    assert await answered(folder) == ("native", (note,), text)


async def test_real_fp8_weights_are_served(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    fp8.quantize(folder)
    configured(quantization_config=FP8)(folder)
    found = await asyncio.to_thread(run_here, capsys, "inspect", str(folder))
    assert "\nweights       quantized: fp8, in blocks of 128×128; stored as F32, F8_E4M3\n" in found.out
    engine, notes, _ = await answered(folder)
    assert (engine, notes) == ("native", ())
