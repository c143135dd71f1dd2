"""The self-test at load: in half precision, it finds faults that are within bfloat16's rounding. Sound classes pass."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import transformers  # noqa: E402 - as torch

import tiny  # noqa: E402 - as above
from contract.native_rig import one_thread  # noqa: E402 - it needs torch
from drivetrain.core.engine import ModelSpec, WeightsFormat  # noqa: E402 - as above
from drivetrain.core.errors import LoadFailed, UnfitEngine  # noqa: E402 - as above
from drivetrain.engines.native.attention import batch, layers  # noqa: E402 - as above
from drivetrain.engines.native.attention.reference import ReferenceAttention  # noqa: E402 - as above
from drivetrain.engines.native.model import loading, runner, selftest  # noqa: E402 - as above
from drivetrain.engines.native.model.widening import in_float32  # noqa: E402 - as above
from drivetrain.engines.native.settings import NativeSettings  # noqa: E402 - as above

HALVES = ("bfloat16", "float16")
SOUND = [name for name in tiny.CAUSAL if name not in ("falcon", "bloom")]  # they do their attention by themselves


@pytest.fixture
def load(checkpoint: Callable[[str], Path]) -> Iterator[Callable[[str, str], Any]]:
    def make(name: str, dtype: str) -> loading.NativeModel:
        options = {"dtype": dtype, "device": "cpu"}
        spec = ModelSpec(name=name, path=checkpoint(name), format=WeightsFormat.SAFETENSORS, options=options)
        return loading.load(spec, NativeSettings.of(options), lambda *_: None)

    with one_thread():
        yield make


def check(loaded: loading.NativeModel) -> None:
    selftest.check(loaded, runner.Pass(runner.plain_pass(loaded.model), ReferenceAttention))


@contextmanager
def attending(change: Callable[..., Any]) -> Iterator[None]:
    """Our attention, with `change` in between: it gets the attention and all that the model's class hands it."""

    def changed(module: Any, *given: Any, **named: Any) -> Any:
        if getattr(module, layers._STAGE)._backend is None:
            return layers.attention(module, *given, **named)
        return change(layers.attention, module, *given, **named)

    transformers.AttentionInterface.register(layers.NAME, changed)
    try:
        yield
    finally:
        transformers.AttentionInterface.register(layers.NAME, layers.attention)


def scaled(attend: Any, module: Any, query: Any, *rest: Any, **named: Any) -> Any:
    return attend(module, query * 1.02, *rest, **named)


def mask_off_by_one(attend: Any, module: Any, query: Any, key: Any, value: Any, mask: Any, **named: Any) -> Any:
    """Each id sees the next one."""
    return attend(module, query, key.roll(-1, 2), value.roll(-1, 2), mask, **named)


def cache_shifted(attend: Any, module: Any, query: Any, key: Any, value: Any, mask: Any, **named: Any) -> Any:
    """The last row of a batch writes its keys one place too late."""
    key, last = key.clone(), max(key.shape[2] // 2, 1)
    key[:, :, -last:] = key[:, :, -last:].roll(1, 2) if last > 1 else key[:, :, :1]
    return attend(module, query, key, value, mask, **named)


def heads_swapped(attend: Any, module: Any, query: Any, key: Any, value: Any, mask: Any, **named: Any) -> Any:
    """In the last layer, of the values only."""
    last = module.layer_idx == module.config.num_hidden_layers - 1
    return attend(module, query, key, value.flip(1) if last else value, mask, **named)


def coarse(attend: Any, module: Any, query: Any, *rest: Any, **named: Any) -> Any:
    """Rounds to the three bits behind the point that an 8-bit float has."""
    found, nothing = attend(module, query, *rest, **named)
    return found.to(torch.float8_e4m3fn).to(found.dtype), nothing


FAULTS = [
    ("llama", scaled),
    ("llama", mask_off_by_one),
    ("llama", cache_shifted),
    ("llama", heads_swapped),
    ("mixtral", scaled),
]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", SOUND)
def test_a_sound_class_passes(name: str, dtype: str, load: Any) -> None:
    check(load(name, dtype))


@pytest.mark.parametrize("dtype", ["float32", *HALVES])
@pytest.mark.parametrize(("name", "fault"), FAULTS)
def test_a_fault_is_found(name: str, fault: Any, dtype: str, load: Any) -> None:
    loaded = load(name, dtype)
    with attending(fault), pytest.raises(UnfitEngine, match="off by"):
        check(loaded)


@pytest.mark.parametrize("dtype", ["float32", *HALVES])
def test_a_window_that_is_off_by_one_is_found(dtype: str, load: Any) -> None:
    loaded = load("mistral", dtype)
    for number, layer in loaded.layers.items():
        spec = dataclasses.replace(layer.spec, window=layer.spec.window + 1)
        loaded.layers[number] = dataclasses.replace(layer, spec=spec)
    with pytest.raises(UnfitEngine, match="off by"):
        check(loaded)


@pytest.mark.parametrize(
    ("dtype", "fault"),
    [
        *((dtype, fault) for dtype in HALVES for fault in (mask_off_by_one, cache_shifted, heads_swapped)),
        ("float16", coarse),  # bfloat16 itself is nearly as coarse
    ],
)
def test_a_fault_that_only_half_precision_has_is_found(fault: Any, dtype: str, load: Any) -> None:
    def in_half(attend: Any, module: Any, query: Any, *rest: Any, **named: Any) -> Any:
        if query.dtype is torch.float32:
            return attend(module, query, *rest, **named)
        return fault(attend, module, query, *rest, **named)

    loaded = load("llama", dtype)
    with attending(in_half), pytest.raises(UnfitEngine, match="from those in float32, and alone only"):
        check(loaded)


def test_a_wrong_position_of_one_row_is_found(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pack = batch.pack

    def packed(*given: Any, **named: Any) -> Any:
        made = pack(*given, **named)
        if made.pieces[-1].count == 1:
            made.position_ids[:, -1] += 1
        return made

    monkeypatch.setattr(runner, "pack", packed)
    with pytest.raises(UnfitEngine, match="off by"):
        check(load("llama", "bfloat16"))


def test_logits_beyond_the_range_of_float16_are_not_the_engines_fault(load: Any) -> None:
    loaded = load("llama", "float16")
    loaded.model.get_output_embeddings().weight.mul_(60_000).clamp_(-65_000, 65_000)
    with pytest.raises(LoadFailed, match="need a wider dtype"):
        check(loaded)


@pytest.mark.parametrize("name", ["llama", "qwen2", "mixtral"])  # qwen2: the head is the embeddings
def test_in_float32_only_the_running_modules_have_wide_weights(name: str, load: Any) -> None:
    loaded = load(name, "bfloat16")
    model = loaded.model
    before = {name: (id(weight), weight.dtype) for name, weight in model.named_parameters()}
    assert {dtype for _, dtype in before.values()} == {torch.bfloat16}
    most = 0

    def look(*_: Any) -> None:
        nonlocal most
        wide = {name for name, weight in model.named_parameters() if any(weight.stride())}
        most = max(most, len(wide))

    ids = torch.arange(5)[None]
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        with in_float32(model):
            assert model.dtype is torch.float32
            looks = [module.register_forward_pre_hook(look) for module in model.modules()]
            found = model(input_ids=ids, use_cache=False).logits
            assert found.dtype is torch.float32
        for hook in looks:
            hook.remove()
        assert 0 < most <= 3 < len(before)
        assert {name: (id(weight), weight.dtype) for name, weight in model.named_parameters()} == before
        half = model(input_ids=ids, use_cache=False).logits
        assert half.dtype is torch.bfloat16
        assert not torch.equal(half.float(), found)
        assert torch.allclose(model.float()(input_ids=ids, use_cache=False).logits, found, rtol=1e-5, atol=1e-4)


def test_after_an_error_the_weights_are_what_they_were(load: Any) -> None:
    model = load("llama", "bfloat16").model
    before = {name: id(weight) for name, weight in model.named_parameters()}
    with pytest.raises(IndexError), in_float32(model):
        model(input_ids=torch.tensor([[10**6]]))
    assert {name: id(weight) for name, weight in model.named_parameters()} == before
