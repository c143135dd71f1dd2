"""The client, the readers and the reports, where servers answer in every wrong way."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from drivetrain.core.errors import InvalidSetting
from drivetrain.http import address
from drivetrain.http.address import Address
from drivetrain.tools.conform.answers import CHAT, read_events, read_stream, read_whole
from drivetrain.tools.conform.case import ALWAYS, Area, Case
from drivetrain.tools.conform.cases import ALL
from drivetrain.tools.conform.cases.cancel import _gauge
from drivetrain.tools.conform.cases.stops import cut_at
from drivetrain.tools.conform.client import Broken, Client, Unreachable
from drivetrain.tools.conform.exchange import RecordedExchange, Shown, show
from drivetrain.tools.conform.reading import error_of, honoured, names, param_names, refused, take
from drivetrain.tools.conform.report import CaseResult, ConformReport, area_table, detail_lines, document
from drivetrain.tools.conform.runner import GONE, STRANGE, find_model, run
from drivetrain.tools.conform.survey import Sample
from drivetrain.tools.conform.trial import Trial
from drivetrain.tools.conform.verdict import Failed, NotOffered, NotRun, Outcome

CERTIFICATE = Path(__file__).parent.parent / "bench" / "localhost.pem"

# The client


@pytest.mark.parametrize(
    ("url", "shown", "root"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000/v1", ""),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000/v1", ""),
        ("https://host/v1/", "https://host/v1", ""),
        ("https://host:443/api/v1", "https://host/api/v1", "/api"),
        ("http://[::1]:9/other", "http://[::1]:9/other", "/other"),
    ],
)
def test_addresses(url: str, shown: str, root: str) -> None:
    address = Address.parse(url)
    assert (str(address), address.root) == (shown, root)


@pytest.mark.parametrize(
    "url",
    ["", "localhost:8000", "ftp://x", "http://", "http://a:b@host", "http://h/v1?x=1", "http://h:99999", "http://h/ü"],
)
def test_no_addresses(url: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        Address.parse(url)
    assert "a:b" not in caught.value.message


@contextlib.asynccontextmanager
async def raw(*parts: bytes, tls: bool = False, hold: bool = False) -> AsyncIterator[tuple[Client, list[bytes]]]:
    """A server that answers each connection with these bytes; with `hold` it never closes."""
    heard: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            heard.append(await reader.readuntil(b"\r\n\r\n"))
            for part in parts:
                writer.write(part)
                await writer.drain()
            if hold:
                await reader.read()
        writer.close()

    context = None
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATE)
    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    async with server:
        yield Client(Address.parse(f"http{'s' if tls else ''}://localhost:{port}"), "k1", 0.5), heard


OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    "parts",
    [
        (OK + b"Content-Length: 2\r\n\r\n", b"{}"),
        (OK + b"\r\n", b"{", b"}"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1;x=y\r\n}\r\n0\r\n\r\n",),
        (b"HTTP/1.1 100 Continue\r\n\r\n", OK + b"content-length: 2\r\n\r\n{}"),
    ],
)
async def test_good_answers(parts: tuple[bytes, ...]) -> None:
    exchange = RecordedExchange(method="POST", path="/v1/x", body=b"[]", headers={"x-a": "b", "content-length": "2"})
    async with raw(*parts) as (client, heard):
        await client.send(exchange)
    assert (exchange.status, exchange.json(), exchange.whole) == (200, {}, True)
    assert exchange.reply_headers["content-type"] == "application/json"
    lines = heard[0].decode().split("\r\n")
    assert lines[0] == "POST /v1/x HTTP/1.1"
    assert "x-a: b" in lines
    assert sum(line.startswith("content-length") for line in lines) == 1


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ((b"SSH-2.0-x\r\n",), "not HTTP"),
        ((b"",), "not HTTP"),
        ((OK + b"Content-Length: 5\r\n\r\n", b"{}"), "in the middle"),
        ((OK + b"Content-Length: x\r\n\r\n", b"{}"), "not HTTP"),
        ((OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{",), "in the middle"),
        ((OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",), "not HTTP"),
        ((OK + b"x: " + b"y" * 2**21,), "not HTTP"),
    ],
)
async def test_broken_answers(parts: tuple[bytes, ...], words: str) -> None:
    exchange = RecordedExchange(method="GET", path="/")
    async with raw(*parts) as (client, _):
        with pytest.raises(Broken, match=words):
            await client.send(exchange)
    assert not exchange.whole


async def test_an_answer_that_does_not_come() -> None:
    async with raw(OK, hold=True) as (client, _):
        with pytest.raises(Broken, match=r"within 0\.5 s"):
            await client.send(RecordedExchange(method="GET", path="/"))


async def test_nobody_there() -> None:
    async with raw() as (client, _):
        pass
    with pytest.raises(Unreachable, match="cannot be reached"):
        await client.send(RecordedExchange(method="GET", path="/"))


async def test_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    context = ssl.create_default_context(cafile=str(CERTIFICATE))
    async with raw(OK + b"Content-Length: 2\r\n\r\n{}", tls=True) as (client, _):
        with pytest.raises(Unreachable, match="certificate"):
            await client.send(RecordedExchange(method="GET", path="/"))
        monkeypatch.setattr(address, "_trusted", lambda: context)
        exchange = RecordedExchange(method="GET", path="/")
        await client.send(exchange)
    assert exchange.status == 200


# Reading


def answered(status: int, document: Any, kind: str = "application/json") -> RecordedExchange:
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    return RecordedExchange(
        method="POST", path="/v1/x", status=status, reply=data, whole=True, reply_headers={"content-type": kind}
    )


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({}, "no a.0.b"),
        ({"a": []}, "no a.0.b"),
        ({"a": [{"b": None}]}, "must be a string"),
        ({"a": [{"b": True}]}, "must be a string"),
        ({"a": "x"}, "no a.0.b"),
        ([], "no a.0.b"),
        (None, "no a.0.b"),
    ],
)
def test_what_is_missing_is_named(document: Any, words: str) -> None:
    with pytest.raises(Failed, match=words):
        take(document, "a.0.b", str)


def test_what_no_float_can_hold_is_no_number() -> None:
    with pytest.raises(Failed, match="must be a number"):
        take({"a": -(10**400)}, "a", float)


def test_a_bool_is_no_number() -> None:
    assert take({"a": 1}, "a", float) == 1
    for kind in (int, float):
        with pytest.raises(Failed):
            take({"a": True}, "a", kind)


@pytest.mark.parametrize(
    ("error", "name", "by_param", "at_all"),
    [
        ({"message": "bad", "param": "top_p"}, "top_p", True, True),
        ({"message": "bad", "param": "messages[0].role"}, "messages", True, True),
        ({"message": "bad", "param": "top_p_x"}, "top_p", False, False),
        ({"message": "top_p is too big", "param": None}, "top_p", False, True),
        ({"message": "n must be 1"}, "n", False, True),
        ({"message": "in an hour: 'n'"}, "n", False, True),
        ({"message": "not an option"}, "n", False, False),
    ],
)
def test_names(error: dict[str, Any], name: str, by_param: bool, at_all: bool) -> None:
    exchange = answered(400, {"error": error})
    assert (param_names(exchange, name), names(exchange, name)) == (by_param, at_all)


def test_other_forms_of_errors_name_too() -> None:
    assert names(answered(422, {"detail": [{"loc": ["body", "top_p"], "msg": "bad"}]}), "top_p")
    assert names(answered(400, b"top_p is wrong"), "top_p")


def test_honoured() -> None:
    honoured(answered(200, {}), {"top_k": 1})
    with pytest.raises(NotOffered, match="top_k is refused by name"):
        honoured(answered(400, {"error": {"message": "no top_k here"}}), {"top_k": 1})
    for status in (400, 500):
        with pytest.raises(Failed, match=f"status {status}"):
            honoured(answered(status, {"error": {"message": "no"}}), {"top_k": 1})
    with pytest.raises(Failed, match="status 500"):
        honoured(answered(500, {"error": {"message": "top_k"}}), {"top_k": 1})


@pytest.mark.parametrize(
    ("status", "document", "words"),
    [
        (200, {}, "was accepted"),
        (500, {"error": {"message": "x"}}, "status 500"),
        (400, {"detail": "bad"}, "without naming x"),
        (400, {"error": {"message": "bad"}}, "without naming x"),
    ],
)
def test_refusals_that_are_none(status: int, document: Any, words: str) -> None:
    with pytest.raises(Failed, match=words):
        refused(answered(status, document), "x = 1", "x")


def test_a_refusal_of_any_form_that_names_the_field_is_one() -> None:
    for body in ({"error": {"message": "x is bad", "param": None}}, {"detail": "'x' is bad"}, b"x is bad"):
        refused(answered(422, body), "x = 1", "x")


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"detail": "x"}, "no error object"),
        ({"error": "x"}, "no error object"),
        ([], "no error object"),
        ({"error": {"message": ""}}, "is empty"),
        (b"<html>", "not JSON"),
    ],
)
def test_error_objects_that_are_none(document: Any, words: str) -> None:
    with pytest.raises(Failed, match=words):
        error_of(answered(400, document))


def stream(data: bytes) -> RecordedExchange:
    return answered(200, data, "text/event-stream")


def test_events() -> None:
    data = b": hello\r\nevent: x\r\ndata: a\r\ndata: b\r\n\r\n\r\ndata:c\n\nid: 1\n\ndata: [DONE]"
    assert read_events(stream(data)) == ["a\nb", "c", "[DONE]"]


@pytest.mark.parametrize("kind", ["Text/Event-Stream", "text/event-stream;charset=utf-8", "TEXT/EVENT-STREAM ; x=y"])
def test_the_name_of_a_content_type_has_no_case(kind: str) -> None:
    assert read_events(answered(200, b"data: a\n\n", kind)) == ["a"]


def test_a_content_type_that_only_begins_like_a_stream_is_none() -> None:
    with pytest.raises(Failed, match="content type"):
        read_events(answered(200, b"data: a\n\n", "text/event-streams"))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"data: {\n\n", "not JSON"),
        (b"data: 5\n\n", "not an object"),
        (b"hello\n\n", "not an event"),
        (b"data: \xff\n\n", "not UTF-8"),
        (b"data: [DONE]\n\n", "no events"),
        (b'data: {"error": {"message": "boom"}}\n\n', "an error came in the stream: .*boom"),
        (b'data: {"choices": []}\n\n', "has a choice"),
        (b'data: {"choices": [{"index": 0, "delta": {"content": 5}}]}\n\n', "delta.content is 5"),
        (b'data: {"choices": [5]}\n\n', "no index"),
    ],
)
def test_streams_that_are_none(data: bytes, words: str) -> None:
    with pytest.raises(Failed, match=words):
        read_stream(CHAT, stream(data))
    with pytest.raises(Failed, match="content type"):
        read_stream(CHAT, answered(200, data))


def test_a_stream_is_joined() -> None:
    pieces = [
        {"choices": [{"index": 1, "delta": {"role": "assistant"}}, {"index": 0, "delta": {"content": "a"}}]},
        {"choices": [{"index": 0, "delta": {"content": "b"}, "logprobs": {"content": [1]}, "finish_reason": "stop"}]},
        {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}},
    ]
    data = b"".join(f"data: {json.dumps(piece)}\n\n".encode() for piece in pieces)
    answer = read_stream(CHAT, stream(data))
    assert [(c.index, c.text, c.reason) for c in answer.choices] == [(0, "ab", "stop"), (1, "", None)]
    assert answer.first.logprobs == {"content": [1]}
    assert answer.counted.total == 3
    assert not answer.done


@pytest.mark.parametrize("document", [[], {}, {"choices": []}, {"choices": [{}]}, {"choices": [{"index": 0}]}, 5, None])
def test_answers_that_are_none(document: Any) -> None:
    with pytest.raises(Failed):
        read_whole(CHAT, answered(200, document))


# Stops, samples, gauges


@pytest.mark.parametrize(
    ("stops", "text"),
    [(["cd"], "ab"), (["ef", "cd"], "ab"), (["bcd", "c"], "ab"), (["cd", "bcd"], "a"), (["x"], None)],
)
def test_where_a_stop_cuts(stops: list[str], text: str | None) -> None:
    assert cut_at("abcdefgh", stops) == text


def test_samples_are_cut_where_characters_are_whole() -> None:
    sample = Sample(CHAT, {}, "\ufffdabcdefgh\ufffdxy")
    assert sample.clean == (1, 9)
    assert sample.cut(0.5, 2) == "ef"
    assert sample.cut(1.0, 20) == "abcdefgh"
    assert sample.cut_after("ab") == "fgh"
    with pytest.raises(NotRun, match="repeats itself"):
        Sample(CHAT, {}, "aaaaaaaaaa").cut_after("a")


@pytest.mark.parametrize(
    ("path", "reply", "running"),
    [
        ("/status", {"running": 2}, 2),
        ("/status", {"state": "ok"}, None),
        ("/metrics", b'# HELP\ndrivetrain_requests_running{model="m"} 3\n', 3),
        ("/metrics", b'vllm:num_requests_running{engine="0",model_name="m"} 1.0\n', 1),
        ("/metrics", b"llamacpp:requests_processing 4\n", 4),
        ("/metrics", b"up 1\n", None),
        ("/metrics", b"llamacpp:requests_processing 1.2.3\n", None),
        ("/metrics", b"llamacpp:requests_processing .\n", None),
        ("/metrics", b"llamacpp:requests_processing " + b"9" * 400, None),
        ("/slots", [{"is_processing": True}, {"is_processing": False}], 1),
        ("/slots", b"x", None),
    ],
)
def test_gauges(path: str, reply: Any, running: int | None) -> None:
    assert _gauge(path, answered(200, reply)) == running


# Reports


def made(outcome: Outcome, reason: str = "", *exchanges: Shown, case: Case = ALL[0]) -> CaseResult:
    return CaseResult(case=case, outcome=outcome, reason=reason, exchanges=exchanges)


def report(*results: CaseResult) -> ConformReport:
    return ConformReport(
        url="http://h/v1",
        model="m<1>",
        began="now",
        version="1",
        about={"version": "v9"},
        results=list(results),
        complete=True,
    )


def test_exchanges_are_cut_and_the_key_is_hidden() -> None:
    exchange = answered(401, b"the key s3cret is bad" + b"x" * 9000 + b"the end")
    exchange.headers = {"authorization": "Bearer s3cret", "x-long": "y" * 999}
    exchange.body = json.dumps({"key": "s3cret"}).encode()
    shown = show(exchange, "s3cret")
    assert "s3cret" not in shown.request + shown.reply
    assert "authorization: (hidden)" in shown.request
    assert "bytes left out" in shown.reply
    assert shown.reply.endswith("the end")
    assert len(shown.reply) < 4000
    exchange.whole = False
    assert "broke off" in show(exchange, "").reply


def test_the_table_and_the_lines() -> None:
    shown = Shown('POST /v1/x\nhost: h\n\n{"a": 1}', 200, "content-type: x\n\n" + "\n\n".join("abcdefghijkl"), 0.1)
    found = report(
        made(Outcome.PASS),
        made(Outcome.FAIL, "it is wrong", shown),
        made(Outcome.NOT_OFFERED, "no such thing"),
        made(Outcome.NOT_RUN, "too quick", case=ALL[-1]),
    )
    head, rows = area_table(found)
    assert head == ["area", "pass", "fail", "not offered", "not run"]
    assert rows == [
        ["models", "1", "1", "1", "-"],
        ["robustness", "-", "-", "-", "1"],
        ["all", "1", "1", "1", "1"],
    ]
    lines = "\n".join(detail_lines(found))
    assert "FAIL models.list: it is wrong" in lines
    assert '> POST /v1/x {"a": 1}' in lines
    assert "< status 200" in lines
    assert "…" in lines
    assert "Not offered:\n    models.list: no such thing" in lines
    assert f"Not run:\n    {ALL[-1].id}: too quick" in lines


def test_the_document() -> None:
    found = document(report(made(Outcome.FAIL, "x", Shown("a", 200, "b", 0.1))))
    assert found["counts"] == {"pass": 0, "fail": 1, "not offered": 0, "not run": 0}
    assert found["areas"] == {"models": {"pass": 0, "fail": 1, "not offered": 0, "not run": 0}}
    assert found["server"] == {"version": "v9"}
    (case,) = found["cases"]
    assert case["exchanges"] == [{"request": "a", "status": 200, "reply": "b", "took_s": 0.1}]
    assert json.loads(json.dumps(found)) == found


# The runner


async def test_a_server_that_goes_away_ends_the_run() -> None:
    async with raw() as (client, _):
        pass
    found = report()
    await run(client, "m", ALL[:3], found, lambda what, share: None)
    assert [r.outcome for r in found.results] == [Outcome.FAIL, Outcome.NOT_RUN, Outcome.NOT_RUN]
    assert GONE in found.results[0].reason
    assert found.results[-1].reason == GONE


async def test_a_check_that_meets_broken_http_fails_and_the_run_goes_on() -> None:
    async def check(trial: Trial) -> None:
        await trial.get("/models")

    cases = [Case(id=f"models.{i}", area=Area.MODELS, asks="a", holds="b", offered=ALWAYS, check=check) for i in "xy"]
    found = report()
    async with raw(b"nonsense\r\n") as (client, _):
        await run(client, "m", cases, found, lambda what, share: None)
    assert [(r.outcome, "not HTTP" in r.reason) for r in found.results] == [(Outcome.FAIL, True)] * 2


async def test_a_check_that_does_not_know_what_it_met_fails_and_the_run_goes_on() -> None:
    async def check(trial: Trial) -> None:
        found = (await trial.get("/models")).json()
        assert found["data"][7]

    cases = [Case(id=f"models.{i}", area=Area.MODELS, asks="a", holds="b", offered=ALWAYS, check=check) for i in "xy"]
    found = report()
    async with raw(listing("only one")) as (client, _):
        await run(client, "m", cases, found, lambda what, share: None)
    assert [r.outcome for r in found.results] == [Outcome.FAIL] * 2
    for result in found.results:
        assert result.reason == f"{STRANGE}: IndexError: list index out of range"
        assert "GET /v1/models" in result.exchanges[-1].request
        assert "only one" in result.exchanges[-1].reply


async def test_what_hangs_once_is_not_asked_again() -> None:
    """Else each case would wait its whole time for the same plain request."""
    found = report()
    cases = [case for case in ALL if case.area is Area.USAGE]
    async with raw(OK, hold=True) as (client, heard):
        await run(client, "m", cases, found, lambda what, share: None)
    assert {r.outcome for r in found.results} == {Outcome.NOT_RUN}
    assert "no complete answer" in found.results[0].reason
    assert sum(b"/completions" in head for head in heard) == 2


def listing(*ids: str, status: str = "200 OK") -> bytes:
    body = json.dumps({"object": "list", "data": [{"id": i} for i in ids]})
    return f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()


async def test_the_model_is_found() -> None:
    async with raw(listing("one")) as (client, _):
        assert await find_model(client, None, ["KEY"]) == "one"
        assert await find_model(client, "one", ["KEY"]) == "one"
        assert await find_model(client, "alias", ["KEY"]) == "alias"  # it is answered, so it is one


@pytest.mark.parametrize(
    ("reply", "given", "words"),
    [
        (listing("one", "two"), None, r"with --model: .*\['one', 'two'\]"),
        (listing(), None, "does not list any"),
        (listing(status="404 Not Found"), "x", "there is no model 'x'"),
        (listing(status="401 Unauthorized"), "x", "put its key into KEY"),
        (b"nonsense\r\n", "x", "not HTTP"),
    ],
)
async def test_no_model(reply: bytes, given: str | None, words: str) -> None:
    async with raw(reply) as (client, _):
        with pytest.raises(InvalidSetting, match=words):
            await find_model(client, given, ["KEY"])
