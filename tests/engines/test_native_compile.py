"""`compile`: the same ids and logprobs as without it, for any number of sequences and lengths of prompts."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from contract.native_rig import NativeRig  # noqa: E402 - it needs torch
from drivetrain.core.errors import InvalidSetting  # noqa: E402
from drivetrain.core.results import Choice  # noqa: E402
from drivetrain.engines.native.model import compiling  # noqa: E402

pytestmark = pytest.mark.slow

KINDS = ("llama", "gemma2", "gemma3_text", "gpt_neox")
"""Plain; soft caps and windows; a window a layer; layers with a bias, norms of the other kind, two branches."""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What others compiled must not be what is tested."""
    monkeypatch.setenv(compiling.CACHE, str(tmp_path / "compiled"))


async def said(checkpoint: Callable[[str], Path], model: str, **options: Any) -> list[Choice]:
    """What thirty requests get that come one by one or together."""
    chance = random.Random(3)
    async with NativeRig(checkpoint, model).open(options={"device": "cpu", "prefix_cache": False, **options}) as worker:
        forward = worker._engine._stepper.runner._forward  # type: ignore[attr-defined]  # the native engine
        assert isinstance(forward, compiling.Compiled) == options.get("compile", False)

        async def ask(number: int) -> Choice:
            await asyncio.sleep(chance.random() * 0.5)
            length = chance.choice((1, 1, 2, 3, 9, 40, 150))
            ids = [chance.randrange(3, 200) for _ in range(length)]
            more = {"temperature": 0, "max_tokens": 1 + number % 9, "logprobs": 1, "ignore_eos": True}
            return (await worker.generate(prompt_token_ids=ids, **more)).choices[0]

        alone = [await ask(number) for number in range(4)]
        together = await asyncio.gather(*[ask(number) for number in range(26)])
        return [*alone, *together]


@pytest.mark.parametrize("model", KINDS)
async def test_a_compiled_model_says_the_same(checkpoint: Callable[[str], Path], model: str) -> None:
    plain = await said(checkpoint, model)
    compiled = await said(checkpoint, model, compile=True)
    for one, other in zip(plain, compiled, strict=True):
        assert one.logprobs is not None
        assert other.logprobs is not None
        pairs = zip(one.token_ids, other.token_ids, strict=True)
        same = next((at for at, (mine, its) in enumerate(pairs) if mine != its), len(one.token_ids))
        upto = same + 1  # the batch decides the rounding: of two likeliest ids, equal within it, either may come
        found = [entry.logprob for entry in other.logprobs[:upto]]
        assert found == pytest.approx([entry.logprob for entry in one.logprobs[:upto]], abs=1e-4)
    assert sum(one.token_ids != other.token_ids for one, other in zip(plain, compiled, strict=True)) <= 1


async def test_weights_of_8_bits_are_compiled_too(checkpoint: Callable[[str], Path]) -> None:
    plain = await said(checkpoint, "llama", quantize="int8")
    compiled = await said(checkpoint, "llama", quantize="int8", compile=True)
    assert [choice.token_ids for choice in compiled] == [choice.token_ids for choice in plain]


async def test_vectors_are_the_same(checkpoint: Callable[[str], Path]) -> None:
    """They are not compiled, but attend as the steps do."""
    texts = ["one", "two words", "a longer text than that, " * 12]
    vectors = []
    for compile_ in (False, True):
        async with NativeRig(checkpoint, "llama").open(options={"device": "cpu", "compile": compile_}) as worker:
            vectors.append([value for vector in (await worker.embed(texts)).vectors for value in vector])
    assert vectors[1] == pytest.approx(vectors[0], abs=1e-5)


async def test_a_class_that_cannot_be_traced_is_refused(checkpoint: Callable[[str], Path]) -> None:
    with pytest.raises(InvalidSetting, match=r"cannot be compiled .*leave compile out") as refused:
        async with NativeRig(checkpoint, "mixtral").open(options={"device": "cpu", "compile": True}):
            pass
    assert refused.value.param == "compile"


async def test_without_a_compiler_it_says_so(
    checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert shutil.which("no-such-compiler") is None
    with pytest.raises(InvalidSetting, match="no no-such-compiler"):
        async with NativeRig(checkpoint).open(options={"device": "cpu", "compile": True}):
            pass


def test_only_a_cpu_is_compiled_for() -> None:
    with pytest.raises(InvalidSetting, match="CPUs so far") as refused:
        compiling.check_machine(torch.device("cuda"))
    assert refused.value.param == "compile"
