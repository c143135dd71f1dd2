"""Constraints that mean harm: every process stays small, everybody else is answered, and no engine is started anew.

    python tests/bounds/test_bombs.py smollm2-135m '{"engine": "llamacpp"}'

has two clients throw a new one each time beside an honest one, then throws all of them at the model (not with
`--fair`), and prints what was seen.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from bounds.attack import Victim, eventually, victim
from bounds.bombs import BOMBS, fresh
from drivetrain.text.grammar.trial_process import MAX_BYTES

SLACK_BYTES = 256 * 2**20
"""For what is kept of grammars, and what an engine has for the slots in use."""

FATAL_BYTES = 4 * 2**30
"""The machine must live: a process that takes as much is ended, and the test fails."""

WATCH_S = 0.05
EVERY_FIFTH = dict(itertools.islice(BOMBS.items(), 0, None, 5))

TRIALS = b"drivetrain.text.grammar.trial_process"


class Watch:
    """The most that each process of a server has held so far, and the trial processes that there were."""

    def __init__(self, server: Victim) -> None:
        self._server = server
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.first: dict[int, int] = {}
        self.most: dict[int, int] = {}
        self.trials: set[int] = set()

    def __enter__(self) -> Watch:
        self._look()
        self.first = dict(self.most)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def growth(self) -> dict[int, int]:
        """In bytes, of all processes that there were."""
        return {pid: most - self.first.get(pid, 0) for pid, most in self.most.items()}

    @property
    def engines(self) -> set[int]:
        return set(self.most) - self.trials

    def _watch(self) -> None:
        while not self._over.wait(WATCH_S):
            self._look()

    def _look(self) -> None:
        for pid in _tree(self._server.process.pid):
            with contextlib.suppress(OSError, ValueError, IndexError):
                if TRIALS in Path(f"/proc/{pid}/cmdline").read_bytes():
                    self.trials.add(pid)
                held = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
                self.most[pid] = max(self.most.get(pid, 0), held)
                if held > FATAL_BYTES:
                    self._server.process.kill()


def _tree(pid: int) -> Iterator[int]:
    yield pid
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from _tree(int(child))


def throw(server: Victim, model: str, fields: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    return server.post("/v1/completions", {"model": model, "prompt": "x", "max_tokens": 2, **fields})


@pytest.fixture
def fake() -> Iterator[Victim]:
    with victim(script={"repeat": True, "context_length": 8192}) as server:
        yield server


@pytest.mark.parametrize("kind", ["schema", "json in lark", "regex", "pattern", "lark", "gbnf"])
def test_a_few_of_each_kind(fake: Victim, kind: str) -> None:
    """More of them are thrown by slow tests, and all by this file as a script."""
    names = [name for name in BOMBS if name.startswith(f"{kind}: ") and ("1000000000" in name or "undefined" in name)]
    assert names
    with Watch(fake) as watch:
        for name in names:
            status, answer = throw(fake, "fake", BOMBS[name])
            assert status in {200, 400}, (name, answer)
            assert status == 200 or answer["error"]["param"] == next(iter(BOMBS[name])), (name, answer)
        fake.works()
    assert max(watch.growth().values()) < MAX_BYTES + SLACK_BYTES


def test_a_bomb_that_was_refused_takes_no_process_again(fake: Victim) -> None:
    assert throw(fake, "fake", fresh(0))[0] == 400
    with Watch(fake) as watch:
        before = set(watch.trials)
        for _ in range(5):
            status, answer = throw(fake, "fake", fresh(0))
            assert status == 400
            assert "to compile" in answer["error"]["message"]
        eventually(lambda: watch.trials >= before)
    assert watch.trials == before


def test_an_honest_schema_beside_two_who_throw_bombs(fake: Victim) -> None:
    """It has a place at once, whatever the clock says: each bomb still has its process when the honest one is done."""
    with Watch(fake) as watch, throwing(fake, "fake", 2) as thrown:
        eventually(lambda: len(watch.trials) >= 2)
        for number in range(3):
            status, answer = throw(fake, "fake", honest(number))
            assert status == 200, answer
    assert {status for status, _ in thrown} == {400}
    assert all("to compile" in answer["error"]["message"] for _, answer in thrown)
    assert max(watch.growth().values()) < MAX_BYTES + SLACK_BYTES


def test_who_leaves_ends_the_trial(fake: Victim) -> None:
    with Watch(fake) as watch:
        before = set(watch.trials)
        body = json.dumps({"model": "fake", "prompt": "x", **fresh(1)}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
        with fake.raw() as sock:
            sock.sendall(head.encode() + b"content-type: application/json\r\n\r\n" + body)
            eventually(lambda: any(_computes(pid) for pid in watch.trials))
            busy = next(pid for pid in watch.trials if _computes(pid))
        eventually(lambda: not Path(f"/proc/{busy}").exists())
        fake.works()
    assert before <= watch.trials


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_one_in_five_at_llamacpp(smollm2: str) -> None:
    with victim(smollm2, worker={"engine": "llamacpp", "context_length": 8192, "slots": 4}) as server:
        check(server, _name(server), EVERY_FIFTH)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_one_in_five_at_native(checkpoint: Callable[[str], Path]) -> None:
    with victim(str(checkpoint("llama")), worker={"engine": "native", "dtype": "float32"}) as server:
        check(server, _name(server), EVERY_FIFTH)


def check(server: Victim, model: str, bombs: dict[str, dict[str, Any]]) -> tuple[dict[int, int], float]:
    """Throws them all, with a plain request after each. Gives the growth of each process, and the slowest plain one."""
    plain, next_s = {"temperature": 0}, 0.0
    assert throw(server, model, plain)[0] == 200
    with Watch(server) as watch:
        engines = watch.engines
        for name, fields in bombs.items():
            status, answer = throw(server, model, fields)
            assert status in {200, 400}, (name, answer)
            assert server.request("GET", "/health")[0] == 200, name
            began = time.monotonic()
            assert throw(server, model, plain)[0] == 200, name
            next_s = max(next_s, time.monotonic() - began)
    assert watch.engines == engines, "an engine was started anew"
    growth = watch.growth()
    assert all(growth[pid] < MAX_BYTES + (0 if pid in watch.trials else SLACK_BYTES) + SLACK_BYTES for pid in growth)
    return growth, next_s


def honest(number: int) -> dict[str, Any]:
    return {"json_schema": {"type": "object", "properties": {f"p{number}": {"enum": [0]}}, "required": [f"p{number}"]}}


@contextlib.contextmanager
def throwing(server: Victim, model: str, clients: int) -> Iterator[list[tuple[int, dict[str, Any]]]]:
    """So many clients throw bombs meanwhile, each time another one. Gives what they are answered."""
    over, answers, numbers = threading.Event(), list[tuple[int, dict[str, Any]]](), itertools.count(1000)

    def loop() -> None:
        while not over.is_set():
            answers.append(throw(server, model, fresh(next(numbers))))

    threads = [threading.Thread(target=loop) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield answers
    finally:
        over.set()
        for thread in threads:
            thread.join()


def _computes(pid: int) -> bool:
    """Whether it has done more than starting."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] == "R" and int(fields[11]) > 80


def _name(server: Victim) -> str:
    return str(json.loads(server.request("GET", "/v1/models")[1])["data"][0]["id"])


def main(model: str, settings: dict[str, Any]) -> None:
    with victim(model, worker=settings) as server:
        name = _name(server)
        numbers = itertools.count()

        def one() -> float:
            began = time.monotonic()
            status, answer = throw(server, name, honest(next(numbers)))
            assert status == 200, answer
            took_s = time.monotonic() - began
            time.sleep(0.25)
            return took_s

        alone = sorted(one() for _ in range(20))
        print(f"an honest schema alone: {alone[10]:.3f} s, at most {alone[-1]:.3f} s")
        with throwing(server, name, 2) as thrown:
            time.sleep(5)
            beside = sorted(one() for _ in range(40))
        print(f"beside two who throw bombs: {beside[20]:.3f} s, at most {beside[-1]:.3f} s ({len(thrown)} thrown)")
        if "--fair" in sys.argv:
            return
        growth, next_s = check(server, name, BOMBS)
        print(f"{len(BOMBS)} bombs, and the next request took at most {next_s:.3f} s")
        print(f"growth in MiB: {sorted(grown // 2**20 for grown in growth.values())[-8:]}")


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]) if len(sys.argv) > 2 else {})
