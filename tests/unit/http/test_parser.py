"""Answers and events taken apart: the same however they arrive, and bounded whatever they hold."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.http.address import Address
from drivetrain.http.events import EventParser
from drivetrain.http.parser import MAX_HEAD_BYTES, AnswerParser, CutOff, NotHttp, TooLong, spelled

_BODY = b"hello\r\n\r\nworld" * 3
_CHUNKED = b"".join(b"%x;e=1\r\n%b\r\n" % (len(part), part) for part in (_BODY[:7], _BODY[7:8], _BODY[8:]))
_ANSWERS = {
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + _CHUNKED + b"0\r\n\r\n": True,
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\ntransfer-encoding: CHUNKED\n\n"
    + _CHUNKED
    + b"0\r\nx: y\r\n\r\n": True,
    b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(_BODY), _BODY): True,
    b"HTTP/1.0 200 OK\r\nServer: x\r\n\r\n" + _BODY: False,
}


@given(st.sampled_from(sorted(_ANSWERS)), st.lists(st.integers(0, 300)))
def test_an_answer_is_the_same_however_it_arrives(data: bytes, cuts: list[int]) -> None:
    answer, body = AnswerParser(), b""
    ends = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    for start, end in itertools.pairwise(ends):
        body += b"".join(answer.feed(data[start:end]))
    assert (answer.status, body, answer.over) == (200, _BODY, _ANSWERS[data])
    answer.end()
    assert answer.over


def begun(head: bytes, method: str = "GET") -> AnswerParser:
    answer = AnswerParser(method)
    assert answer.head(head + b"\r\n\r\n") == b""
    return answer


CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked"


def test_a_chunk_is_given_while_it_comes() -> None:
    answer = begun(CHUNKED)
    assert list(answer.feed(b"ffffffffff\r\nab")) == [b"ab"]
    assert list(answer.feed(b"cd")) == [b"cd"]
    with pytest.raises(CutOff, match="in the middle"):
        answer.end()


def test_what_is_good_comes_before_what_is_not() -> None:
    parts = iter(begun(CHUNKED).feed(b"2\r\nab\r\nxyz\r\n"))
    assert next(parts) == b"ab"
    with pytest.raises(NotHttp):
        next(parts)


@pytest.mark.parametrize("size", [b"", b"xyz", b"-5", b"\xff", b";", b"5 5", b"1" * MAX_HEAD_BYTES * 2])
def test_sizes_that_are_none(size: bytes) -> None:
    with pytest.raises(NotHttp):
        list(begun(CHUNKED).feed(size + b"\r\n"))


def test_a_size_that_does_not_end() -> None:
    answer = begun(CHUNKED)
    with pytest.raises(NotHttp):
        for _ in range(3):
            list(answer.feed(b"1" * (MAX_HEAD_BYTES // 2)))


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-x\r\n",
        b"\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 20\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * MAX_HEAD_BYTES,
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * MAX_HEAD_BYTES + b"\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: some\r\n\r\n",
    ],
)
def test_heads_that_are_none(data: bytes) -> None:
    with pytest.raises(NotHttp):
        AnswerParser().head(data)


@pytest.mark.parametrize(
    ("head", "method"),
    [
        (b"HTTP/1.1 204 No Content", "POST"),
        (b"HTTP/1.1 304 Not Modified\r\ncontent-length: 5", "GET"),
        (CHUNKED, "HEAD"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0", "GET"),
    ],
)
def test_answers_without_a_body(head: bytes, method: str) -> None:
    answer = begun(head, method)
    assert answer.over
    assert list(answer.feed(b"5\r\nabcde\r\n")) == []


def test_an_end_before_the_head() -> None:
    answer = AnswerParser()
    assert list(answer.feed(b"HTTP/1.1 200 OK\r\nx:")) == []
    with pytest.raises(CutOff):
        answer.end()


def test_a_request() -> None:
    address = Address.parse("http://[::1]:81/v1")
    lines = b"POST /x HTTP/1.1\r\nhost: [::1]:81\r\nconnection: close\r\ncontent-length: %b\r\n%b\r\nab"
    assert spelled(address, "POST", "/x", {}, b"ab") == lines % (b"2", b"")
    assert spelled(address, "POST", "/x", {"a": "\xe9", "content-length": "9"}, b"ab") == lines % (b"9", b"a: \xe9\r\n")


_EVENTS = b': hello\r\n\r\ndata: {"a": 1}\r\n\r\ndata:{"b": "\xc3\xa4"}\n\nevent: x\ndata:\nerror: no\n\ndata: {"c": 3}'


@given(st.lists(st.integers(0, len(_EVENTS))))
def test_events_are_the_same_however_they_come(cuts: list[int]) -> None:
    parser, ends = EventParser(100), [0, *sorted(cuts), len(_EVENTS)]
    found = [event for start, end in itertools.pairwise(ends) for event in parser.feed(_EVENTS[start:end])]
    found += parser.end()
    data = (b'{"a": 1}', '{"b": "ä"}'.encode(), b"no", b'{"c": 3}')
    assert found == list(zip((b"data", b"data", b"error", b"data"), data, strict=True))


@pytest.mark.parametrize("part", [b'data: {"a"}\n\n', b'data: {"a"}\n\ndata: {"b"}\n\n', b'data: {"a"}\n'])
def test_events_that_come_whole(part: bytes) -> None:
    parser = EventParser(100)
    found = [event for _ in range(2) for event in parser.feed(part)]
    assert found == [(b"data", line[6:]) for line in part.split(b"\n") if line] * 2
    assert list(parser.end()) == []


def test_an_event_that_does_not_end() -> None:
    parser = EventParser(100)
    events = iter(parser.feed(b"data: 1\ndata: " + b"x" * 100))
    assert next(events) == (b"data", b"1")
    with pytest.raises(TooLong):
        next(events)
