"""Splitting text into ids takes a time that grows with its length, whatever it says; what cannot fit is not split at
all, and who has left is not worked for."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from drivetrain.core.engine import ModelSpec, WeightsFormat
from drivetrain.core.errors import Cancelled, ContextOverflow
from drivetrain.core.messages import Message, TextPart
from drivetrain.core.prompt import Prompt, Segment
from drivetrain.core.tokenizer import Wanted
from drivetrain.engines.fake import FakeEngine, Script
from drivetrain.engines.llamacpp.child.host import SPLITS
from drivetrain.engines.llamacpp.tokenizer import LlamaCppTokenizer, ServerSplit
from drivetrain.engines.llamacpp.vocabulary import Vocabulary
from drivetrain.text.byte_tokenizer import ByteTokenizer
from drivetrain.text.hf_tokenizer import HfTokenizer
from drivetrain.text.templates import ChatTemplate
from drivetrain.worker.settings import Settings
from drivetrain.worker.worker import EngineWorker
from tiny import tokenizers as made

CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"

SAYINGS: dict[str, Callable[[int], str]] = {
    "specials": lambda n: "<|im_start|>a" * (n // 13),
    "specials end to end": lambda n: "<|im_end|>" * (n // 10),
    "half specials": lambda n: "<|im_" * (n // 5),
    "brackets": lambda n: "<|" * (n // 2),
    "one letter": lambda n: "a" * n,
    "one long word": lambda n: "".join(random.Random(1).choices("abcdefghij", k=n)),
    "spaces": lambda n: " " * n,
    "lines": lambda n: "\n" * n,
    "emoji": lambda n: "🙂" * n,
    "NULs": lambda n: "\0" * n,
    "words": lambda n: "hello there my friend " * (n // 22),
}


def said(text: str) -> Prompt:
    return Prompt((Segment("<|im_start|>user\n"), Segment(text, literal=True), Segment("<|im_end|>\n")))


class CountingSplit:
    """A byte a token; special tokens as such only where they are asked for."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.questions = 0
        self.asked = 0
        self._vocabulary = vocabulary

    def __call__(self, content: str | Sequence[str | int], *, specials: bool, add_special: bool = False) -> list[int]:
        self.questions += 1
        ids: list[int] = []
        for part in [content] if isinstance(content, str) else content:
            if isinstance(part, int):
                ids.append(part)
                continue
            self.asked += len(part)
            while specials and "<|im_start|>" in part:
                before, _, part = part.partition("<|im_start|>")
                ids += [*before.encode(), 256]
            ids += part.encode()
        return ids


@pytest.fixture
def counting() -> tuple[LlamaCppTokenizer, CountingSplit]:
    metadata = {
        "tokenizer.ggml.model": b"gpt2",
        "tokenizer.ggml.tokens": [*(f"{i}".encode() for i in range(256)), b"<|im_start|>", b"<|im_end|>"],
        "tokenizer.ggml.token_type": (*[1] * 256, 3, 3),
    }
    vocabulary = Vocabulary(metadata)
    split = CountingSplit(vocabulary)
    return LlamaCppTokenizer(vocabulary, split, chat_template=None), split


@pytest.mark.parametrize("saying", SAYINGS)
def test_llamacpp_is_asked_a_few_times_whatever_the_text_says(
    saying: str, counting: tuple[LlamaCppTokenizer, CountingSplit]
) -> None:
    tokenizer, split = counting
    text = SAYINGS[saying](20_000)
    for prompt in (said(text), Prompt.raw(text, add_bos=False)):
        split.questions = split.asked = 0
        tokenizer.encode(prompt)
        assert split.questions <= 4
        assert split.asked <= 3 * len(text) + 100


def cpu_of(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


@pytest.fixture(scope="module", params=["byte_level", "byte_fallback", "unigram", "wordpiece"])
def ours(request: pytest.FixtureRequest) -> HfTokenizer:
    tokenizer = HfTokenizer(getattr(made, request.param)())
    for special in tokenizer.special_strings:
        tokenizer.encode(Prompt((Segment(special, literal=True),)))  # makes what it needs for that
    return tokenizer


@pytest.mark.parametrize("saying", [*SAYINGS, "its own specials"])
def test_ten_times_the_text_takes_about_ten_times_the_work(saying: str, ours: HfTokenizer) -> None:
    """Three times that is allowed for: a square would be ten times."""
    every = "".join(sorted(ours.special_strings))

    def text(n: int) -> str:
        return SAYINGS[saying](n) if saying in SAYINGS else every * (n // len(every))

    short, long = (cpu_of(partial(ours.encode, said(text(n)))) for n in (20_000, 200_000))
    assert long < 30 * max(short, 0.01)


@pytest.mark.parametrize("saying", SAYINGS)
def test_rendering_and_looking_for_tokens_too(saying: str) -> None:
    template = ChatTemplate(CHATML, special_tokens={}, special_strings=ByteTokenizer.special_strings)
    text = SAYINGS[saying]

    def work(n: int) -> None:
        ByteTokenizer().encode(template.render([Message("user", (TextPart(text(n)),))]))

    short, long = (cpu_of(partial(work, n)) for n in (20_000, 200_000))
    assert long < 30 * max(short, 0.01)


@pytest.fixture
async def small(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[EngineWorker, list[int]]]:
    """A worker with a short context, and the lengths of the texts that it has split."""
    lengths: list[int] = []
    encode = ByteTokenizer.encode

    def noted(self: ByteTokenizer, prompt: Prompt) -> list[int]:
        lengths.append(len(prompt.text))
        return encode(self, prompt)

    monkeypatch.setattr(ByteTokenizer, "encode", noted)
    spec = ModelSpec(name="fake", path=Path(), format=WeightsFormat.NONE)
    worker = EngineWorker(FakeEngine(Script(context_length=1000)), spec, Settings())
    await worker.start()
    yield worker, lengths
    await worker.stop()


async def test_a_text_that_cannot_fit_by_its_length_is_not_split(small: tuple[EngineWorker, list[int]]) -> None:
    worker, lengths = small
    too_long = "<s>" * (1000 * ByteTokenizer.longest_piece // 3 + 1)
    for asked in ({"prompt": too_long}, {"messages": [{"role": "user", "content": too_long}]}):
        with pytest.raises(ContextOverflow) as caught:
            await worker.generate(**asked)
        assert caught.value.param == next(iter(asked))
    with pytest.raises(ContextOverflow):
        await worker.embed([too_long])
    assert lengths == []
    assert (await worker.generate(prompt=too_long, overflow="truncate_left", max_tokens=1)).usage.prompt_tokens < 1000


@contextmanager
def silent_server() -> Iterator[tuple[int, list[socket.socket], threading.Event]]:
    """Takes questions. Answers those that it has when the event is set."""
    connections: list[socket.socket] = []
    answering = threading.Event()
    body = b'{"tokens": [1, 2]}'

    def serve(connection: socket.socket) -> None:
        connection.recv(2**16)
        answering.wait(60)
        with connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    def accept() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            connections.append(connection)
            threading.Thread(target=serve, args=(connection,)).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield listening.getsockname()[1], connections, answering
        finally:
            answering.set()
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(10)


def _for(wanted: Wanted, work: Callable[[], Any]) -> Any:
    with wanted.here():
        return work()


def test_who_has_left_leaves_the_thread_and_no_more_is_asked_at_a_time() -> None:
    """The server goes on with what it has, so its place is taken until it has answered."""
    with silent_server() as (port, connections, answering), ThreadPoolExecutor(2 * SPLITS) as threads:
        split = ServerSplit("127.0.0.1", port, "key")

        def ask(wanted: Wanted) -> Any:
            return threads.submit(_for, wanted, lambda: split("text", specials=True))

        left = [Wanted() for _ in range(SPLITS + 2)]
        asked = [ask(one) for one in left]
        while len(connections) < SPLITS:
            time.sleep(0.01)
        for one in left:
            one.over = True
        for one in asked:
            assert isinstance(one.exception(20), Cancelled)
        later = ask(Wanted())
        time.sleep(0.3)
        assert len(connections) == SPLITS
        answering.set()
        assert later.result(20) == [1, 2]
        assert [ask(Wanted()).result(20) for _ in range(2 * SPLITS)] == [[1, 2]] * (2 * SPLITS)
        assert len(connections) == 3 * SPLITS + 1


async def test_a_request_that_is_interrupted_frees_its_preparing_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    with silent_server() as (port, connections, _):
        split = ServerSplit("127.0.0.1", port, "key")
        ended = threading.Event()

        def encode(self: ByteTokenizer, prompt: Prompt) -> list[int]:
            try:
                return split(prompt.text, specials=True)
            finally:
                ended.set()

        monkeypatch.setattr(ByteTokenizer, "encode", encode)
        spec = ModelSpec(name="fake", path=Path(), format=WeightsFormat.NONE)
        worker = EngineWorker(FakeEngine(Script()), spec, Settings())
        await worker.start()
        asking = asyncio.create_task(worker.generate(prompt="x"))
        while not connections:
            await asyncio.sleep(0.01)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert await asyncio.to_thread(ended.wait, 20)
        await worker.stop()


def test_a_template_stops_too() -> None:
    template = ChatTemplate(
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        special_tokens={},
        special_strings=frozenset(),
        max_seconds=60,
    )
    wanted = Wanted()
    with ThreadPoolExecutor(1) as threads:
        work = threads.submit(_for, wanted, lambda: template.render([Message("user", (TextPart("x"),))]))
        wanted.over = True
        assert isinstance(work.exception(20), Cancelled)


@pytest.mark.slow
def test_the_real_server_of_llamacpp_takes_a_time_that_grows_with_the_length(smollm2: str) -> None:
    """In seconds of its own processor time. 100,000 characters took 5 to 8 once, and 800,000 took 134."""
    from drivetrain.engines.llamacpp.describe import of_file
    from drivetrain.store.store import Store

    path = Store().pull(smollm2).path
    spec = ModelSpec(name="smollm2", path=path, format=WeightsFormat.GGUF)
    tokenizer = of_file(spec, lambda what, share: None).tokenizer
    tokenizer.encode(said("<|im_end|>"))
    process = _children()[-1]
    for saying in ("specials", "specials end to end", "one long word", "NULs"):
        for prompt in (said, lambda text: Prompt.raw(text, add_bos=False)):
            spent = []
            for n in (40_000, 400_000):
                before = _cpu(process)
                tokenizer.encode(prompt(SAYINGS[saying](n)))
                spent.append(_cpu(process) - before)
            assert spent[1] < 30 * max(spent[0], 0.05), (saying, spent)


def _children() -> list[int]:
    return [
        int(child) for task in Path("/proc/self/task").iterdir() for child in (task / "children").read_text().split()
    ]


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100
