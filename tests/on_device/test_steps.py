"""Captured steps compute what the same steps compute by themselves, and nothing else is touched."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from drivetrain.core.engine import EngineRequest  # noqa: E402 - these need torch
from drivetrain.core.sampling import Sampling  # noqa: E402
from drivetrain.engines.native.assembling import Assembled  # noqa: E402
from drivetrain.engines.native.attention.batch import pack  # noqa: E402
from drivetrain.engines.native.attention.flex import FlexAttention  # noqa: E402
from drivetrain.engines.native.kv.blocks import BLOCK_TOKENS  # noqa: E402
from drivetrain.engines.native.model.graphs import GraphRunner, sizes  # noqa: E402
from drivetrain.engines.native.model.runner import Runner  # noqa: E402
from drivetrain.engines.native.schedule.sequence import Job  # noqa: E402
from on_device.devices import MODELS, Device, assembled, folder  # noqa: E402

pytestmark = pytest.mark.slow

MOST = 5
"""Sequences at once: the largest of the sizes is 8."""

CAPTURED = [name for name in MODELS if name != "sinks"]


@pytest.fixture(params=MODELS)
def loaded(request: pytest.FixtureRequest, device: Device, models: Path) -> Assembled:
    made = assembled(device, folder(models, request.param), max_batch=MOST)
    runner = made.stepper.runner
    assert isinstance(runner, GraphRunner)
    assert isinstance(runner.attention, FlexAttention)
    return made


def job(number: int, length: int, *, max_tokens: int = 200, **more: Any) -> Job:
    chance = random.Random(number)
    request = EngineRequest(
        request_id=str(number),
        prompt_ids=tuple(chance.randrange(3, 200) for _ in range(length)),
        context_length=512,
        max_tokens=max_tokens,
        seeds=(number,),
        sampling=Sampling(**more),
    )
    return Job.of(request, number)


def graph_runner(made: Assembled) -> GraphRunner:
    assert isinstance(made.stepper.runner, GraphRunner)
    return made.stepper.runner


def captured(made: Assembled) -> bool:
    """A mixture of experts asks the host for what its router says, which cannot be captured on a device."""
    return sorted(graph_runner(made)._captured) == sizes(MOST)


def tensors(runner: Runner) -> list[Any]:
    return [*runner.cache.keys.values(), *runner.cache.values.values()]


def groups(runner: Runner) -> range:
    return range(len(runner.cache.windows))


def num_places(runner: Runner, group: int) -> int:
    """How many places its tensors have."""
    layer = next(layer for layer, one in runner.cache.group_of.items() if one == group)
    return int(runner.cache.keys[layer].shape[1])


def test_all_sizes_are_captured(device: Device, models: Path) -> None:
    for name in CAPTURED:
        assert captured(assembled(device, folder(models, name), max_batch=MOST))


def test_captured_and_computed_steps_are_the_same(loaded: Assembled) -> None:
    """Step by step with the same cache, while sequences come and go."""
    stepper, runner = loaded.stepper, graph_runner(loaded)
    again: list[tuple[int, float]] = []

    def forward(works: Any) -> Any:
        replayed = GraphRunner.forward(runner, works).clone()
        after = [tensor.clone() for tensor in tensors(runner)]
        computed = Runner.forward(runner, works)
        again.append((len(works), float((replayed - computed).abs().max() / computed.abs().max())))
        for one, other in zip(tensors(runner), after, strict=True):
            torch.testing.assert_close(one[:, :-BLOCK_TOKENS], other[:, :-BLOCK_TOKENS], atol=1e-4, rtol=1e-4)
        return computed

    runner.forward = forward  # type: ignore[method-assign]
    jobs = [job(number, 1 + 13 * number % 50, max_tokens=14 + 2 * number) for number in range(MOST)]
    for one in jobs:
        stepper.add(one)
        stepper.step()
    while not stepper.idle:
        stepper.step()
    assert {count for count, _ in again} >= set(range(1, MOST + 1))
    assert max(off for _, off in again) < 1e-4


def test_a_padded_step_leaves_the_rest_of_the_cache_as_it_was(loaded: Assembled) -> None:
    """And reads nothing of it: what nobody holds is NaN."""
    stepper, runner = loaded.stepper, graph_runner(loaded)
    for tensor in tensors(runner):
        tensor.fill_(torch.nan)
    jobs = [job(number, length) for number, length in enumerate((5, 31, 64))]
    for one in jobs:
        stepper.add(one)
    while any(one.sequences[0].num_sampled < 3 for one in jobs):
        stepper.step()
    for _ in range(17):
        before = [tensor.clone() for tensor in tensors(runner)]
        written = {one: len(one.sequences[0].ids) - 1 for one in jobs}
        stepper.step()
        may_change = [torch.zeros(num_places(runner, group), dtype=torch.bool) for group in groups(runner)]
        for group, mine in enumerate(may_change):
            mine[-BLOCK_TOKENS:] = True
            for one in jobs:
                table = one.sequences[0].table
                assert table is not None
                block, token = divmod(written[one], BLOCK_TOKENS)
                place = table.rows[group].numbers[block] * BLOCK_TOKENS
                mine[place + token : place + (BLOCK_TOKENS if token == 0 else token + 1)] = True
        group_of = [*runner.cache.group_of.values()] * 2
        for one, other, group in zip(tensors(runner), before, group_of, strict=True):
            rest = ~may_change[group].to(one.device)
            torch.testing.assert_close(one[:, rest], other[:, rest], atol=0, rtol=0, equal_nan=True)
    assert all(len(one.sequences[0].ids) > 20 for one in jobs)
    assert not any(one.ended for one in jobs)


def test_a_step_with_a_prompt_is_computed(loaded: Assembled) -> None:
    stepper, runner = loaded.stepper, graph_runner(loaded)
    replays: list[int] = []
    for size, step in list(runner._captured.items()):
        runner._captured[size] = _noted(step, replays)
    stepper.add(job(0, 5))
    stepper.step()
    assert replays == []
    stepper.step()
    stepper.add(job(1, 4))
    counted = len(replays)
    assert counted == captured(loaded)
    stepper.step()
    assert len(replays) == counted
    stepper.step()
    assert len(replays) == 2 * counted


def _noted(step: Any, replays: list[int]) -> Any:
    def replay() -> None:
        replays.append(step.size)
        step.replay()

    return dataclasses.replace(step, replay=replay)


def test_a_fixed_step_reads_the_same_tensors_each_time(loaded: Assembled) -> None:
    runner = graph_runner(loaded)
    attention = runner.attention
    assert isinstance(attention, FlexAttention)

    def addresses() -> set[int]:
        read: list[Any] = []
        for group in attention._groups:
            (rows,) = group.step.rows
            read += [group.step.written, group.step.begun, rows.positions, group._position_of]
            read += [rows.lists.counts, rows.lists.listed, rows.lists.lowest]
            read += [rows.mask.kv_num_blocks, rows.mask.kv_indices]
        return {tensor.data_ptr() for tensor in read}

    found = []
    with torch.inference_mode():
        for _ in range(2):
            attention.prepare_fixed(_pieces(runner, 4))
            found.append(addresses())
            attention.prepare(_pieces(runner, 3))
    assert found[0] == found[1]


def _pieces(runner: GraphRunner, count: int) -> Any:
    return pack([runner._spare] * count, "cpu").pieces


def test_what_cannot_be_captured_is_computed(
    device: Device, models: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = assembled(device, folder(models, "plain"), max_batch=MOST)
    runner = graph_runner(made)

    def refuse(compute: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(runner, "_capture", refuse)
    runner.capture()
    assert runner._captured == {}
    assert [record.message for record in caplog.records if "not captured" in record.message] == [
        "decode steps are not captured: RuntimeError: operation not permitted when stream is capturing"
    ]
    one = job(0, 5, max_tokens=4)
    made.stepper.add(one)
    while not made.stepper.idle:
        made.stepper.step()
    assert one.sequences[0].num_sampled == 4
