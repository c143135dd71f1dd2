"""Bodies that are made to cost: each is refused by name, the event loop keeps its other work and memory its bounds."""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from bounds.attack import MAX_STALL_S, Victim, eventually, victim

ROOM_BYTES = 100 * 2**20
"""What one hostile body of 3 MB may take, in the highest of memory."""

CHAT, COMPLETION, DETOKENIZE = "/v1/chat/completions", "/v1/completions", "/detokenize"


@pytest.fixture(scope="module")
def server() -> Iterator[Victim]:
    with victim(script={"context_length": 200_000}) as made:
        made.works()
        yield made
        made.works()


def many(item: bytes, size: int = 3_000_000) -> bytes:
    return b"[" + b",".join([item] * (size // (len(item) + 1))) + b"]"


def body(**fields: bytes) -> bytes:
    given = {"model": b'"fake"', **fields}
    return b"{" + b",".join(b'"%s":%s' % (name.encode(), value) for name, value in given.items()) + b"}"


MESSAGE = b'{"role":"user","content":"x"}'

ATTACKS: list[tuple[str, bytes, str]] = [
    (COMPLETION, body(prompt=many(b"{}", 2_400_000)), "objects"),
    (COMPLETION, body(prompt=many(b"[]")), "lists"),
    (COMPLETION, body(prompt=many(b'""')), "strings"),
    (COMPLETION, body(prompt=many(b"null")), "prompt"),
    (COMPLETION, body(prompt=b'"x"', stop=many(b"{}")), "objects"),
    (COMPLETION, body(prompt=b'"x"', stop=many(b"1")), "values"),
    (
        COMPLETION,
        body(prompt=b'"x"', logit_bias=b"{" + b",".join(b'"%d":1' % i for i in range(300_000)) + b"}"),
        "strings",
    ),
    (COMPLETION, body(prompt=b'"x"', temperature=b"1" * 3_000_000), "digits"),
    (COMPLETION, body(prompt=b'"x"', bad_words_ids=many(b"[1]")), "lists"),
    (COMPLETION, b"{" + b",".join(b'"a%d":1' % i for i in range(200_000)) + b"}", "keys"),
    (COMPLETION, b"{" + b",".join(b'"a%d":1' % i for i in range(60_000)) + b"}", "a0"),
    (COMPLETION, b"[" * 3_000_000, "lists"),
    (COMPLETION, b"[" * 60_000, "nested"),
    (COMPLETION, b'{"a":' * 15_000, "nested"),
    (COMPLETION, b"]" * 11_900_000, "match"),
    (COMPLETION, body(prompt=b"[" + many(b"[" * 30 + b"]" * 30, 60_000) + b"]"), "prompt"),
    (COMPLETION, b'{"a\\' * 600_000, "strings"),
    (COMPLETION, body(prompt=many(b"1.2345678901234567")), "fraction"),
    (CHAT, body(messages=many(MESSAGE)), "strings"),
    (CHAT, body(messages=many(MESSAGE, 600_000)), "objects"),
    (CHAT, body(messages=many(b"{}", 40_000)), "messages"),
    (DETOKENIZE, body(tokens=many(b"-1")), "values"),
    (DETOKENIZE, body(tokens=many(b"-1", 2_900_000)), "tokens"),
    (DETOKENIZE, body(tokens=many(b'"x"')), "strings"),
    (DETOKENIZE, body(tokens=b"[" + b",".join([b"1"] * 500_000) + b",-1]"), "tokens[500000]"),
]


@pytest.mark.parametrize(("path", "data", "named"), ATTACKS, ids=[f"{n}-{a[2]}" for n, a in enumerate(ATTACKS)])
def test_a_body_that_is_made_to_cost(server: Victim, path: str, data: bytes, named: str) -> None:
    before = server.reset()
    status, answer = server.post(path, data)
    after = server.figures()
    assert status == 400
    assert named in answer["error"]["message"]
    assert len(json.dumps(answer)) < 4096
    assert after.stall_cpu_s < MAX_STALL_S
    assert after.peak_bytes - before.rss_bytes < ROOM_BYTES


@pytest.mark.parametrize(
    ("path", "data"),
    [
        (COMPLETION, body(prompt_token_ids=many(b"77", 300_000), max_tokens=b"1")),
        (CHAT, body(messages=many(MESSAGE, 30_000), max_tokens=b"1")),
        (COMPLETION, body(prompt=b'"' + b"\\u4e2d" * 20_000 + b'"', max_tokens=b"1")),
    ],
)
def test_a_large_good_body_is_answered(server: Victim, path: str, data: bytes) -> None:
    server.post(path, data)  # what is made once is made
    server.reset()
    status, answer = server.post(path, data)
    assert status == 200, answer
    assert server.figures().stall_cpu_s < MAX_STALL_S


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b'{"temperature": NaN}', "NaN"),
        (b'{"temperature": -Infinity}', "-Infinity"),
        (b'{"temperature": 1e999, "model": "fake", "prompt": "x"}', "temperature is inf"),
        (b'{"repetition_penalty": 1e-40, "model": "fake", "prompt": "x"}', "it must be from 0.01 to 10"),
        (b'{"max_tokens": 1%s, "model": "fake", "prompt": "x"}' % (b"0" * 400), "more than 30 digits"),
        (b'{"model": "fake", "prompt": "\\ud800"}', "lone surrogate"),
        (b'{"model": "fake", "prompt": "x", "stop": ["\\ud800"]}', "lone surrogate"),
        (b'{"model": "\\ud800", "prompt": "x"}', "lone surrogate"),
        (b'{"model": "fake", "prompt": "a", "prompt": "b"}', "'prompt' twice"),
        (b'{"model": "fake", "logit_bias": {"1": 1, "1": 2}, "prompt": "b"}', "'1' twice"),
        (b'\xef\xbb\xbf{"model": "fake"}', "byte order mark"),
        (b'{"model": "\xff"}', "not UTF-8"),
        ('{"model": "fake"}'.encode("utf-16"), "not UTF-8"),
        (b"", "expecting value"),
        (b"{}}", "do not match"),
        (b'{"model": "fake"} x', "extra data at line 1, column 19"),
        (b'"' * 200_000, "JSON"),
        (b"\x00" * 100_000, "JSON"),
        (b'{"\\ud800": 1}', "not a parameter"),
    ],
)
def test_what_is_not_quite_json(server: Victim, data: bytes, told: str) -> None:
    for path in (COMPLETION, CHAT):
        status, answer = server.post(path, data)
        assert status == 400, answer
        if path == COMPLETION:
            assert told in answer["error"]["message"]


def test_a_value_is_never_spelled_whole_for_an_error(server: Victim) -> None:
    for value in ([1] * 200_000, {str(n): 1 for n in range(1000)}, "x" * 500_000, [[1] * 100] * 100):
        for name in ("temperature", "n", "overflow", "stream", "model", "user", "seed", "metadata"):
            if name == "metadata" and isinstance(value, dict):
                continue
            data: dict[str, Any] = {"model": "fake", "prompt": "x", "max_tokens": 1, name: value}
            status, answer = server.post(COMPLETION, data)
            if (name, type(value)) == ("model", str):
                assert status == 404
                continue
            if (name, type(value)) == ("user", str):
                continue
            assert status == 400
            assert answer["error"]["param"] == name
            assert len(answer["error"]["message"]) < 200


def test_all_bodies_together_are_bounded() -> None:
    """What is announced takes nothing; what has come takes room until it is parsed; more is refused for the moment."""
    with victim(server={"max_bodies_bytes": 300_000, "receipt_timeout_s": 60}) as server:
        idle = [server.raw() for _ in range(20)]
        for sock in idle:
            sock.sendall(head(10_000_000) + b"{")
        server.works()
        big = body(prompt=b'"x"', max_tokens=b"1", metadata=b'{"a":"' + b"x" * 150_000 + b'"}')
        held = filled(server, big)
        status, answer = server.post(COMPLETION, big)
        assert (status, answer["error"]["code"]) == (503, "overloaded")
        assert "300000 bytes" in answer["error"]["message"]
        server.works()
        held.sendall(b" " * 49_900 + b'{"model":"fake","prompt":"x","max_tokens":1}'.ljust(100))
        assert b" 200 " in held.recv(65_536)[:20]
        held.close()
        assert server.request("POST", COMPLETION, big)[0] == 200
        answers = []
        threads = [
            threading.Thread(target=lambda: answers.append(server.request("POST", COMPLETION, big)[0]))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert set(answers) <= {200, 503}
        for sock in idle:
            sock.close()
        assert server.request("POST", COMPLETION, big)[0] == 200


def filled(server: Victim, big: bytes) -> socket.socket:
    """A request that has sent 200,000 bytes and not its last. Until all are there, `big` may take their place."""
    for attempt in range(6):
        held = server.raw()
        held.sendall(head(250_000) + b" " * 200_000)
        time.sleep(0.2 * 2**attempt)
        refused = server.request("POST", COMPLETION, big)[0] == 503
        if refused and not select.select([held], [], [], 0.1)[0]:
            return held
        held.close()
    raise AssertionError("the bytes never came")


def head(length: int) -> bytes:
    return b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % length


@pytest.fixture(scope="module")
def lenient() -> Iterator[Victim]:
    with victim(server={"unknown_fields": "warn"}) as made:
        yield made


@pytest.mark.parametrize(
    "names", [["x "], [" "], [f"k{i}" for i in range(300)], [f"max_tokens_{i}" for i in range(2500)]]
)
def test_unknown_names_of_any_kind_are_left_out_at_no_cost(lenient: Victim, names: list[str]) -> None:
    lenient.reset()
    given = {"model": "fake", "prompt": "x", "max_tokens": 2, **dict.fromkeys(names, 1)}
    assert lenient.post(COMPLETION, given)[0] == 200
    assert lenient.figures().stall_cpu_s < MAX_STALL_S


def test_a_long_list_of_ids_is_spelled_beside_other_work(server: Victim) -> None:
    server.reset()
    status, answer = server.post("/tokenize", {"model": "fake", "prompt": "a" * 3_000_000})
    assert (status, answer["count"]) == (200, 3_000_001)  # with the one that begins a text
    assert server.figures().stall_cpu_s < MAX_STALL_S


def test_what_waits_counts_as_what_it_still_holds() -> None:
    """A long prompt is in memory until its request has ended: others with one are told to come back."""
    script = {"hang_at_step": 0, "context_length": 8_000_000}
    with victim(script=script, worker={"max_running": 1}, server={"max_bodies_bytes": 8 * 2**20}) as one:
        data = json.dumps({"model": "fake", "prompt": "x" * 3_000_000, "max_tokens": 2}).encode()
        head = f"POST {COMPLETION} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n".encode()

        def busy() -> int:
            status = json.loads(one.request("GET", "/status")[1])
            return int(status["running"] + status["waiting"])

        with one.raw() as first, one.raw() as second:
            for sock in (first, second):
                sock.sendall(head + data)
            eventually(lambda: busy() == 2)
            assert one.request("POST", COMPLETION, data)[0] == 503
        eventually(lambda: busy() == 0)
