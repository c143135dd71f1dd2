"""What is read of a folder's files before it is loaded, a full disk while one is made, and what the library may say."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import drivetrain
from drivetrain.core.errors import LoadFailed, NotStored, UnfitEngine
from drivetrain.engines.checkpoint import errors, gguf
from drivetrain.engines.checkpoint.quantized import METHODS, Quantization, of_folder
from drivetrain.engines.checkpoint.quiet import quiet_library
from drivetrain.engines.native.model import loading as native_loading
from drivetrain.safetensors_header import stored_types
from drivetrain.store.layout import disk_errors
from tiny import causal, fp8

NO_SPACE = "Error while serializing: I/O error: No space left on device (os error 28)"


@pytest.fixture
def folder(checkpoint: Callable[[str], Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(checkpoint("llama"), tmp_path / "copy"))


def configured(folder: Path, **more: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | more))


def test_the_methods_are_those_of_the_library() -> None:
    from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING

    theirs = {name.removesuffix("_4bit").removesuffix("_8bit") for name in AUTO_QUANTIZER_MAPPING}
    assert theirs == set(METHODS)


@pytest.mark.parametrize("method", [name for name, known in METHODS.items() if known.packages])
def test_the_packages_are_those_that_the_library_asks_for(method: str) -> None:
    """By the text of its quantizer, which asks for what it misses by pip's name or in the name of a function."""
    import inspect

    from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING

    names = (method, f"{method}_4bit")
    source = inspect.getsource(next(AUTO_QUANTIZER_MAPPING[name] for name in names if name in AUTO_QUANTIZER_MAPPING))
    for package, module in METHODS[method].packages.items():
        asked = (package, f"is_{module.replace('.', '_')}_available", f"is_{module.split('.')[0]}_available")
        assert any(name in source for name in asked), (method, package)


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        ({"quant_method": "compressed-tensors", "config_groups": {"a": 1}}, "compressed-tensors"),
        ({"quant_method": "gptq", "bits": "four", "group_size": -1}, "GPTQ"),
        ({"quant_method": "x" * 100}, "x" * 39 + "…"),
        ({"load_in_8bit": True}, "bitsandbytes, 8 bits"),
        ({}, "by a method that quant_method does not name"),
    ],
)
def test_odd_values_of_a_quantization_are_no_fault(folder: Path, stated: dict[str, Any], words: str) -> None:
    configured(folder, quantization_config=stated)
    found = of_folder(folder)
    assert isinstance(found, Quantization)
    assert found.in_words == words


def test_a_nested_quantization_is_found(folder: Path) -> None:
    configured(folder, text_config={"quantization_config": {"quant_method": "mxfp4"}})
    found = of_folder(folder)
    assert found is not None
    assert (found.method, found.over_floats) == ("mxfp4", True)


# What native cannot do with quantized weights


@pytest.fixture
def quantized(folder: Path) -> Path:
    """Real fp8, which the library makes floats of where there is no GPU."""
    fp8.quantize(folder)
    configured(folder, quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]})
    return folder


@pytest.mark.parametrize(
    "raised", [AttributeError("'Linear' object has no attribute 'weight'"), AssertionError("N"), ImportError("kernels")]
)
async def test_what_fails_in_native_runs_on_transformers(
    quantized: Path, monkeypatch: pytest.MonkeyPatch, raised: Exception
) -> None:
    """As with int4 of compressed-tensors, whose layers have no weight before they are run for the first time."""

    def fail(*_: Any, **__: Any) -> Any:
        raise raised

    monkeypatch.setattr(native_loading, "fuse_projections", fail)
    said: list[str] = []
    async with drivetrain.Worker.open(quantized, progress=lambda what, share: said.append(what)) as worker:
        assert worker.metadata.engine == "transformers"
        assert (await worker.generate(prompt="x", max_tokens=2, ignore_eos=True)).usage.completion_tokens == 2
        (note,) = worker.metadata.notes
    assert note == (
        "native cannot run this model: its weights are quantized (fp8, in blocks of 128×128), and its class fails in a"
        f" batch ({type(raised).__name__}: {raised}); transformers runs it"
    )
    assert said.count(note) == 1
    with pytest.raises(UnfitEngine, match="use `--engine transformers` for it"):
        async with drivetrain.Worker.open(quantized, engine="native"):
            pass


async def test_quantized_weights_that_cannot_compute_are_no_worker(
    quantized: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As bitsandbytes on a CPU with a shape that its kernel does not know: each request failed."""
    from transformers.models.llama import modeling_llama

    def fail(*_: Any, **__: Any) -> Any:
        raise AssertionError("N must be divisible by block_n")

    monkeypatch.setattr(modeling_llama.LlamaMLP, "forward", fail)
    with pytest.raises(LoadFailed) as caught:
        async with drivetrain.Worker.open(quantized, engine="transformers"):
            pass
    assert caught.value.message == (
        "the weights are quantized (fp8, in blocks of 128×128), and cannot be computed with on cpu (AssertionError: N"
        " must be divisible by block_n); try another device, or the model in another form"
    )


# A full disk


@pytest.mark.parametrize("raised", ["the weights", "the tokenizer", "the system"])
def test_a_full_disk_is_no_damage(
    checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: str
) -> None:
    """Both libraries say in an error of their own what the system said."""
    import transformers as hf
    from safetensors import SafetensorError

    error: Exception = {
        "the weights": SafetensorError(NO_SPACE),
        "the tokenizer": Exception("No space left on device (os error 28)"),
        "the system": OSError(errno.ENOSPC, "No space left on device"),
    }[raised]

    def full(*_: Any, **__: Any) -> None:
        raise error

    given = _instead_of_a_gguf_file(checkpoint("llama"), monkeypatch)
    owner = hf.PreTrainedTokenizerBase if raised == "the tokenizer" else hf.PreTrainedModel
    monkeypatch.setattr(owner, "save_pretrained", full)
    with (
        pytest.raises(NotStored, match="the disk is full") as caught,
        disk_errors("x", only_full=True, raises=NotStored),
    ):
        gguf.convert(given, tmp_path, lambda what, share: None)
    assert "damaged" not in caught.value.message
    assert "the disk is full" in errors.while_loading(error, engine="native").message


def _instead_of_a_gguf_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    import transformers as hf

    for cls in (hf.AutoModelForCausalLM, hf.AutoTokenizer):
        made = cls.from_pretrained(folder)
        monkeypatch.setattr(cls, "from_pretrained", lambda *_, made=made, **__: made)
    return folder / "config.json"


FULL = """
import sys
from pathlib import Path
import pytest, test_checkpoint_files as tests
from drivetrain.engines.checkpoint import gguf
from drivetrain.store.store import Store
from drivetrain.store.models import LocalModel
from drivetrain.core.engine import WeightsFormat
model, disk = map(Path, sys.argv[1:])
source = tests._instead_of_a_gguf_file(model, pytest.MonkeyPatch())
found = LocalModel(name="m", path=source, format=WeightsFormat.GGUF, reference="m", digest="a" * 64, source="local")
try:
    Store(disk).derive(found, "safetensors", lambda target: gguf.convert(source, target, lambda what, share: None))
except Exception as exc:
    print(type(exc).__name__, exc)
print("left:", [path.name for path in disk.rglob("*.safetensors")])
"""

_MOUNTS = shutil.which("unshare") and subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(not _MOUNTS, reason="a disk of 300 kB needs a name space for mounts")
def test_a_disk_that_is_really_full(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    mount = f'mount -t tmpfs -o size=300k tmpfs {tmp_path} && exec "$@"'
    command = [sys.executable, "-c", FULL, str(checkpoint("llama")), str(tmp_path)]
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", mount, "sh", *command],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *map(os.path.abspath, sys.path)]),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    said, left = done.stdout.splitlines() or [done.stderr, ""]
    assert said.startswith("NotStored cannot prepare m: the disk is full; free some space")
    assert left == "left: []"


# What the library says


async def test_nothing_of_the_library_stands_in_streamed_text(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It says of each kernel that it does not have, in the first pass through the model."""
    ours = logging.getLogger("drivetrain")
    monkeypatch.setattr(ours, "handlers", [])  # a command that ran in this process has left its own
    monkeypatch.setattr(ours, "propagate", True)
    folder = tmp_path / "mamba2"
    sizes = {"num_heads": 8, "head_dim": 12, "state_size": 8, "n_groups": 1, "chunk_size": 16}
    with quiet_library():
        causal.build(folder, "Mamba2", causal._byte_level, hidden_size=48, num_hidden_layers=2, **sizes)
    capfd.readouterr()
    caplog.set_level(logging.INFO, "drivetrain")
    async with drivetrain.Worker.open(folder, engine="transformers") as worker:
        assert (await worker.generate(prompt="Once", max_tokens=3, ignore_eos=True)).text
    assert capfd.readouterr() == ("", "")
    ours_said = [record.message for record in caplog.records if record.name.startswith("drivetrain")]
    said = [message for message in ours_said if "falling back" in message]
    assert said
    assert all(line.startswith("transformers: ") for line in said)


def test_what_the_application_itself_does_with_the_library_is_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    from tqdm import tqdm  # type: ignore[import-untyped] # it has no types
    from transformers.utils import logging as library

    with quiet_library():
        pass
    library.get_logger("transformers.mine").warning("said by the application")
    assert list(tqdm([1])) == [1]
    _, err = capfd.readouterr()
    assert "1/1" in err
    handlers = logging.getLogger("transformers").handlers
    record = logging.LogRecord("transformers.mine", logging.WARNING, "x.py", 1, "mine", None, None)
    assert all(handler.filter(record) for handler in handlers)


async def test_loads_side_by_side_leave_the_library_as_it_was(capfd: pytest.CaptureFixture[str]) -> None:
    """The first that begins is not the last that ends."""
    from tqdm import tqdm
    from transformers.utils import logging as library

    before, drawn = library.get_verbosity(), tqdm.__init__
    first, second = contextlib.ExitStack(), contextlib.ExitStack()
    await asyncio.to_thread(first.enter_context, quiet_library())
    await asyncio.to_thread(second.enter_context, quiet_library())
    await asyncio.to_thread(first.close)
    assert library.get_verbosity() == logging.ERROR
    threads = ThreadPoolExecutor(1, thread_name_prefix="drivetrain-load")
    assert threads.submit(lambda: list(tqdm([1], disable=False))).result() == [1]
    threads.shutdown()
    assert capfd.readouterr() == ("", "")
    assert list(tqdm([1], disable=False)) == [1]
    assert "1/1" in capfd.readouterr().err, "the application's own is drawn"
    second.close()
    assert (library.get_verbosity(), tqdm.__init__) == (before, drawn)


@pytest.mark.parametrize(
    "stray",
    [b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4976698672\n", b"", b"\x02" + bytes(7) + b"[]"],
)
def test_files_that_no_weights_are_loaded_from_say_nothing(
    checkpoint: Callable[[str], Path], tmp_path: Path, stray: bytes
) -> None:
    folder = shutil.copytree(checkpoint("llama"), tmp_path / "m")
    stated = stored_types(folder)
    (folder / "consolidated.safetensors").write_bytes(stray)
    assert stored_types(folder) == stated == frozenset({"F32"})
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    index = {"weight_map": {"a": "model-00001-of-00001.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert stored_types(folder) == stated


@pytest.mark.parametrize("method", ["from_the_future", "modelopt"])
def test_a_method_that_nobody_knows_may_store_floats(
    checkpoint: Callable[[str], Path], tmp_path: Path, method: str
) -> None:
    """Its weights may be floats of another meaning: as they are they would answer wrongly."""
    folder = shutil.copytree(checkpoint("llama"), tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": method}}))
    found = of_folder(folder)
    assert found is not None
    assert not found.over_floats
    with pytest.raises(LoadFailed, match=f"quantized \\({method}\\), which transformers .* does not load"):
        found.refuse_unless_ready()
