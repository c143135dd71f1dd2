"""`compile`: the same ids and logprobs as without it, for any number of sequences and lengths of prompts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from contract.native_rig import NativeRig, engine_of  # noqa: E402 - it needs torch
from drivetrain.core.errors import InvalidSetting  # noqa: E402
from drivetrain.core.results import Choice  # noqa: E402
from drivetrain.engines.native.compilation import Compilation  # noqa: E402
from drivetrain.engines.native.cpu.float32 import OneDnnProduct, PanelProduct  # noqa: E402
from drivetrain.engines.native.cpu.weight_layout import packed_layers, takes_panels  # noqa: E402
from drivetrain.engines.native.model import compiler, compiling  # noqa: E402
from drivetrain.engines.native.model.recipe import Recipe  # noqa: E402
from drivetrain.worker.worker import EngineWorker  # noqa: E402
from probe import stepper_of  # noqa: E402 - it needs torch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # a compiler that shares its cores takes minutes

KINDS = ("llama", "gemma2", "gemma3_text", "gpt_neox")
"""Plain; soft caps and windows; a window a layer; layers with a bias, norms of the other kind, two branches."""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What others compiled must not be what is tested; but one test may find what another compiled."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def a_compiler(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))


@pytest.fixture
async def compiled(
    checkpoint: Callable[[str], Path], cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Programs of the test's own, which it may damage, where the next start looks for them."""
    async with opened(checkpoint):
        pass
    shutil.copytree(cache, tmp_path / "cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "drivetrain" / "compiled"


@pytest.fixture
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("nothing is left to compile")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse)


@asynccontextmanager
async def opened(
    checkpoint: Callable[[str], Path], model: str = "llama", compile_: str = "on", **options: Any
) -> AsyncIterator[EngineWorker]:
    given = {"device": "cpu", "prefix_cache": False, "compile": compile_, **options}
    async with NativeRig(checkpoint, model).open(options=given) as worker:
        yield worker


def is_compiled(worker: EngineWorker) -> bool:
    runner = stepper_of(worker).runner
    compiled = isinstance(runner.compute, compiling.Compiled)
    assert not (compiled and takes_panels(runner.model))
    return compiled


async def ask(worker: EngineWorker, chance: random.Random, number: int) -> Choice:
    length = chance.choice((1, 1, 2, 3, 9, 40, 150))
    ids = [chance.randrange(3, 200) for _ in range(length)]
    more: dict[str, Any] = {"temperature": 0, "max_tokens": 1 + number % 9, "logprobs": 1, "ignore_eos": True}
    await asyncio.sleep(chance.random() * 0.5)
    return (await worker.generate(prompt_token_ids=ids, **more)).choices[0]


async def said(worker: EngineWorker) -> list[Choice]:
    """What thirty requests get that come one by one or together."""
    chance = random.Random(3)
    alone = [await ask(worker, chance, number) for number in range(4)]
    together = await asyncio.gather(*[ask(worker, chance, number) for number in range(26)])
    return [*alone, *together]


def compare(plain: list[Choice], compiled: list[Choice], near: float = 1e-4) -> None:
    for one, other in zip(plain, compiled, strict=True):
        assert one.logprobs is not None
        assert other.logprobs is not None
        pairs = zip(one.token_ids, other.token_ids, strict=True)
        same = next((at for at, (mine, its) in enumerate(pairs) if mine != its), len(one.token_ids))
        upto = same + 1  # the batch decides the rounding: of two likeliest ids, equal within it, either may come
        found = [entry.logprob for entry in other.logprobs[:upto]]
        assert found == pytest.approx([entry.logprob for entry in one.logprobs[:upto]], abs=near)
    assert sum(one.token_ids != other.token_ids for one, other in zip(plain, compiled, strict=True)) <= 1


async def both_said(checkpoint: Callable[[str], Path], model: str, **options: Any) -> tuple[list[Choice], list[Choice]]:
    async with opened(checkpoint, model, "off", **options) as worker:
        assert not is_compiled(worker)
        plain = await said(worker)
    async with opened(checkpoint, model, **options) as worker:
        assert is_compiled(worker)
        return plain, await said(worker)


@pytest.mark.in_turn
@pytest.mark.parametrize("model", KINDS)
async def test_a_compiled_model_says_the_same(checkpoint: Callable[[str], Path], model: str) -> None:
    compare(*await both_said(checkpoint, model))


async def test_weights_of_8_bits_are_compiled_too(checkpoint: Callable[[str], Path]) -> None:
    """The products before are fbgemm's, which rounds inputs to 13 to 15 bits."""
    compare(*await both_said(checkpoint, "llama", quantize="int8"), near=1e-2)


async def test_weights_of_8_bits_find_the_programs_of_float32(checkpoint: Callable[[str], Path], request: Any) -> None:
    async with opened(checkpoint) as worker:
        assert is_compiled(worker)
    request.getfixturevalue("no_process")
    async with opened(checkpoint, compile_="auto", quantize="int8") as worker:
        assert is_compiled(worker)


async def test_vectors_are_the_same(checkpoint: Callable[[str], Path]) -> None:
    """They are not compiled, but attend as the steps do."""
    texts = ["one", "two words", "a longer text than that, " * 12]
    vectors = []
    for compile_ in ("off", "on"):
        async with opened(checkpoint, compile_=compile_) as worker:
            vectors.append([value for vector in (await worker.embed(texts)).vectors for value in vector])
    assert vectors[1] == pytest.approx(vectors[0], abs=1e-5)


async def test_a_later_start_finds_the_programs(checkpoint: Callable[[str], Path], request: Any) -> None:
    async with opened(checkpoint) as worker:
        assert is_compiled(worker)
    request.getfixturevalue("no_process")
    async with opened(checkpoint, compile_="auto") as worker:
        assert is_compiled(worker)
        assert "the steps are compiled" in worker.metadata.notes


async def test_streams_go_on_while_the_programs_are_taken_up(
    checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(checkpoint, compile_="off") as worker:
        plain = await said(worker)
    monkeypatch.setattr(Compilation, "found", lambda self: None)  # as if it had not been compiled
    async with opened(checkpoint, compile_="auto") as worker:
        assert not is_compiled(worker)
        assert any("being compiled" in note for note in worker.metadata.notes)
        before: list[Choice] = []
        while not is_compiled(worker):
            before = await said(worker)
        compare(plain, before)
        compare(plain, await said(worker))


async def test_two_models_of_one_class_do_not_share_weights(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    shutil.copytree(checkpoint("llama"), tmp_path / "other")
    weights = {name: tensor.flip(-1) for name, tensor in load_file(tmp_path / "other" / "model.safetensors").items()}
    save_file(weights, tmp_path / "other" / "model.safetensors", {"format": "pt"})
    wanted = []
    for folder in (checkpoint, lambda _: tmp_path / "other"):
        async with opened(folder, compile_="off") as worker:
            wanted.append(await said(worker))
    assert [choice.token_ids for choice in wanted[0]] != [choice.token_ids for choice in wanted[1]]
    async with opened(checkpoint) as one, opened(lambda _: tmp_path / "other", compile_="auto") as other:
        assert is_compiled(other), "the programs are of the class, not of the weights"
        found = await asyncio.gather(said(one), said(other))
    for mine, its in zip(wanted, found, strict=True):
        compare(mine, its)


async def test_programs_that_do_not_pass_leave_the_products_as_they_were(
    checkpoint: Callable[[str], Path], compiled: Path, monkeypatch: pytest.MonkeyPatch, request: Any
) -> None:
    request.getfixturevalue("no_process")

    def check(compilation: Compilation, programs: Any) -> None:
        assert not takes_panels(compilation._loaded.model)
        raise compiling.CannotCompile("they do not pass")

    monkeypatch.setattr(Compilation, "_check", check)
    async with opened(checkpoint, compile_="auto") as worker:
        assert not is_compiled(worker)
        assert takes_panels(stepper_of(worker).runner.model)
        await ask(worker, random.Random(0), 0)


async def test_products_that_are_not_right_leave_the_programs_as_they_are(
    checkpoint: Callable[[str], Path], compiled: Path, monkeypatch: pytest.MonkeyPatch, request: Any, caplog: Any
) -> None:
    async with opened(checkpoint) as worker:
        wanted = await said(worker)
    request.getfixturevalue("no_process")
    monkeypatch.setattr(PanelProduct, "__call__", lambda self, x: x.new_zeros(*x.shape[:-1], self._outputs))
    async with opened(checkpoint, compile_="auto") as worker:
        runner = stepper_of(worker).runner
        assert isinstance(runner.compute, compiling.Compiled)
        assert all(isinstance(layer.product, OneDnnProduct) for layer in packed_layers(runner.model))
        compare(wanted, await said(worker))
    assert "torch's are used" in caplog.text


def named(compiled: Path, name: str) -> list[Path]:
    return list(compiled.glob(f"*/{name}"))


@pytest.mark.parametrize("name", ["made.json", "one.so", "several.json", "float32.so"])
async def test_damaged_programs_are_made_anew(checkpoint: Callable[[str], Path], compiled: Path, name: str) -> None:
    for file in named(compiled, name):
        file.write_bytes(file.read_bytes()[:-100])
    async with opened(checkpoint, compile_="auto") as worker:
        assert not is_compiled(worker)
        assert engine_of(worker)._compiling is not None


async def test_programs_that_compute_something_else_are_made_anew(
    checkpoint: Callable[[str], Path], compiled: Path
) -> None:
    """The self-test is what decides; a digest only tells damage."""
    for made in named(compiled, "made.json"):
        told = json.loads(made.read_text())
        norms = [i for i, (tensor, _) in enumerate(told["inputs"]["several"]) if tensor.endswith("layernorm.weight")]
        inputs = told["inputs"]["several"]
        inputs[norms[0]], inputs[norms[1]] = ["", "torch.int64 []"], inputs[norms[0]]
        made.write_text(json.dumps(told))
    async with opened(checkpoint, compile_="auto") as worker:
        assert not is_compiled(worker)
        assert engine_of(worker)._compiling is not None


async def test_closing_ends_what_compiles(
    checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    started = asyncio.create_subprocess_exec
    processes: list[asyncio.subprocess.Process] = []

    async def start(*args: Any, **more: Any) -> asyncio.subprocess.Process:
        processes.append(await started(*args, **more))
        return processes[-1]

    def begun() -> bool:
        return any(tmp_path.glob("drivetrain/compiled/*.part"))

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    async with opened(checkpoint, compile_="auto") as worker:
        while not begun():
            await asyncio.sleep(0.05)
        assert not is_compiled(worker)
    [process] = processes
    await process.wait()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, 0)
        pytest.fail("something of its group is still there")


async def test_a_class_that_cannot_be_traced_is_refused_or_stays_as_it_is(
    checkpoint: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(InvalidSetting, match=r"cannot be compiled .*leave compile out") as refused:
        async with opened(checkpoint, "mixtral"):
            pass
    assert refused.value.param == "compile"
    with caplog.at_level(logging.WARNING):
        async with opened(checkpoint, "mixtral", "auto") as worker:
            compiling = engine_of(worker)._compiling
            assert compiling is not None
            await compiling
            assert not is_compiled(worker)
            assert len(await said(worker)) == 30
    assert [record.message for record in caplog.records if "cannot be compiled" in record.message]


async def test_without_a_compiler_it_says_so(
    checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert shutil.which("no-such-compiler") is None
    with pytest.raises(InvalidSetting, match="no no-such-compiler"):
        async with opened(checkpoint):
            pass
    async with opened(checkpoint, compile_="auto") as worker:
        assert not is_compiled(worker)
        assert any("apt-get install g++" in note for note in worker.metadata.notes)


async def test_without_a_place_to_keep_them_it_goes_on(
    checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    async with opened(checkpoint, compile_="auto") as worker:
        assert not is_compiled(worker)
        assert any("no place to keep" in note for note in worker.metadata.notes)
        await ask(worker, random.Random(0), 0)


async def test_what_compiles_beside_a_worker_stands_back_and_ends_with_it(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """Its input ends when the worker is killed."""
    folder = tmp_path / "drivetrain" / "compiled" / "some"
    folder.parent.mkdir(parents=True)
    recipe = Recipe(
        path=str(checkpoint("llama")),
        trust_remote_code=False,
        dtype="float32",
        num_threads=1,
        with_attention=False,
        with_products=False,
    )
    told = {"recipe": asdict(recipe), "folder": str(folder), "beside": True}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", compiler.__name__, json.dumps(told), stdin=subprocess.PIPE, start_new_session=True
    )
    assert process.stdin is not None
    if sys.platform == "linux":
        while os.sched_getscheduler(process.pid) != os.SCHED_IDLE:
            await asyncio.sleep(0.01)
    process.stdin.close()
    assert await process.wait() == -signal.SIGKILL
    assert not folder.exists()


def test_only_a_cpu_is_compiled_for() -> None:
    assert "CPUs so far" in compiling.obstacle(torch.device("cuda"))
    assert compiling.obstacle(torch.device("cpu")) == ""
