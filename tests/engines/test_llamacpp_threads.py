"""Fewer threads for llama.cpp while it runs: the limit holds, changes no answer, and is left out where it cannot be."""

from __future__ import annotations

import ctypes
import itertools
import os
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

xllamacpp = pytest.importorskip("xllamacpp")

from contract.rigs import started  # noqa: E402 - it needs the library
from drivetrain.core.engine import ModelSpec, WeightsFormat  # noqa: E402
from drivetrain.core.results import ComputeThreads  # noqa: E402
from drivetrain.engines.base.thread_limit import ThreadLimit  # noqa: E402
from drivetrain.engines.llamacpp.child import openmp  # noqa: E402
from drivetrain.engines.llamacpp.child.openmp import NotAdjustable  # noqa: E402
from drivetrain.engines.llamacpp.engine import LlamaCppEngine  # noqa: E402
from drivetrain.store.store import Store  # noqa: E402
from drivetrain.worker.worker import EngineWorker  # noqa: E402
from probe import engine_of, process_of  # noqa: E402

LIBRARY = str(xllamacpp.xllamacpp.__file__)

tried_here = pytest.mark.skipif(not openmp.possible(), reason="the way is known for Linux on x86-64")

PARALLEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)


@tried_here
def test_the_instructions_lower_the_number_of_threads_and_nothing_else() -> None:
    heard = []
    real = PARALLEL(lambda *given: heard.append(given))
    address = ctypes.cast(real, ctypes.c_void_p).value
    assert address is not None
    limit = ctypes.c_uint32(3)
    code = openmp._executable(openmp.trampoline(ctypes.addressof(limit), address))
    called = PARALLEL(ctypes.addressof(code))
    for wanted in (1, 3, 4, 2**32 - 1, 0):
        called(7, 8, wanted, 9)
    limit.value = 1
    called(2**40, 2**41, 5, 2**31)
    assert heard == [(7, 8, threads, 9) for threads in (1, 3, 3, 3, 3)] + [(2**40, 2**41, 1, 2**31)]


@tried_here
def test_the_slot_is_found_where_the_library_is_loaded() -> None:
    mapped = openmp.mapped_at(LIBRARY)
    assert mapped.bias + openmp.slot_of(LIBRARY, openmp.FUNCTION) in mapped


@tried_here
@pytest.mark.parametrize(
    "wrong", ["no such function", "not a library", "empty", "cut off", "not loaded", "no shared file"]
)
def test_what_is_not_as_expected_is_left_alone(tmp_path: Path, wrong: str) -> None:
    slot = ctypes.c_uint64.from_address(openmp.mapped_at(LIBRARY).bias + openmp.slot_of(LIBRARY, openmp.FUNCTION))
    before, other, shared = slot.value, tmp_path / "other.so", os.memfd_create("limit")
    os.ftruncate(shared, os.sysconf("SC_PAGE_SIZE"))
    with open(LIBRARY, "rb") as library:
        head = library.read(4096)
    other.write_bytes({"not a library": b"words", "empty": b"", "cut off": head}.get(wrong, b""))
    with pytest.raises(NotAdjustable) as told:
        match wrong:
            case "no such function":
                openmp.slot_of(LIBRARY, b"GOMP_nothing")
            case "no shared file":
                os.close(shared)
                openmp.limit_threads(LIBRARY, shared)
            case _:
                openmp.limit_threads(str(other), shared)
    assert str(told.value)
    assert slot.value == before


@asynccontextmanager
async def opened(**options: object) -> AsyncIterator[EngineWorker]:
    path = Store().pull("smollm2-135m").path
    settings = {"context_length": 512, "slots": 2, "threads": 2, **options}
    spec = ModelSpec(name="m", path=path, format=WeightsFormat.GGUF, options=settings)
    async with started(LlamaCppEngine(), spec, {}) as worker:
        yield worker


def looks(monkeypatch: pytest.MonkeyPatch, *threads: int) -> None:
    """What each look says, in turn."""
    numbers: Iterator[int] = itertools.cycle(threads)
    monkeypatch.setattr(ThreadLimit, "look", lambda self: next(numbers))


async def scores(worker: EngineWorker, words: int = 60) -> list[tuple[int, float]]:
    prompt = " ".join(f"word {number}" for number in range(words))
    result = await worker.generate(prompt=prompt, temperature=0, max_tokens=24, ignore_eos=True, logprobs=1)
    assert result.choices[0].logprobs is not None
    return [(one.token_id, one.logprob or 0.0) for one in result.choices[0].logprobs]


def ran_ns(worker: EngineWorker) -> Counter[str]:
    """How long each thread of llama.cpp's process has run."""
    process = process_of(engine_of(worker))
    found = Path(f"/proc/{process.pid}/task").iterdir()
    return Counter({task.name: int((task / "schedstat").read_text().split()[0]) for task in found})


async def share_of_the_second(worker: EngineWorker, words: int) -> float:
    """How much of what the busiest thread computes the next one does."""
    before = ran_ns(worker)
    await scores(worker, words)
    (_, first), (_, second), *_ = (ran_ns(worker) - before).most_common()
    return second / first


@tried_here
@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_the_limit_holds_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other threads of the process only take requests and send answers."""
    async with opened() as worker:
        looks(monkeypatch, 1)
        assert await share_of_the_second(worker, 60) < 0.2
        looks(monkeypatch, 2)
        assert await share_of_the_second(worker, 61) > 0.5
        looks(monkeypatch, 1)
        assert await share_of_the_second(worker, 62) < 0.2


@tried_here
@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_the_same_scores_whatever_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    for threads in ((2,), (1,), (2, 1)):
        looks(monkeypatch, *threads)
        async with opened() as worker:
            told.append(await scores(worker))
    assert told[1] == told[0]
    assert told[2] == told[0]


@tried_here
@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_the_status_has_the_threads_unless_it_is_switched_off() -> None:
    async with opened() as worker:
        assert worker.status.threads in (ComputeThreads(2, 2), ComputeThreads(1, 2))
        assert not worker.metadata.notes
    async with opened(yield_cores=False) as worker:
        await scores(worker)
        assert worker.status.threads is None
        assert not worker.metadata.notes


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_where_it_cannot_be_a_note_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openmp, "possible", lambda: False)
    async with opened() as worker:
        assert len(await scores(worker)) == 24
        assert worker.status.threads is None
        (note,) = worker.metadata.notes
        assert note.startswith("llama.cpp keeps its number of threads")
