"""The connection between a replica and a caller: each item reaches its request, in order, or the request ends."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack

import pytest

from drivetrain.scale.ray import event_link
from drivetrain.scale.ray.event_link import EventClient, EventServer, Route
from drivetrain.scale.ray.protocol import ReplyTo

HERE = "127.0.0.1"


class Kept:
    """A request that keeps what it is told."""

    def __init__(self) -> None:
        self.items: list[bytes] = []
        self.num_lost = 0

    def take(self, item: bytes) -> None:
        self.items.append(item)

    def disconnected(self) -> None:
        self.num_lost += 1


class Ends:
    """A caller and a replica."""

    def __init__(self) -> None:
        self.server = EventServer(HERE)
        self.client = EventClient()
        self.calls = ExitStack()

    async def begin(self) -> tuple[Kept, Route]:
        run = Kept()
        route = await self.client.route(self.calls.enter_context(self.server.expect(run)))
        assert route is not None
        return run, route


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    made = Ends()
    await made.server.open()
    with made.calls:
        yield made
    made.client.close()
    made.server.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


async def test_each_request_gets_its_items_in_order_over_one_connection(ends: Ends) -> None:
    begun = await asyncio.gather(*(ends.begin() for _ in range(16)))
    for number in range(50):
        for index, (_, route) in enumerate(begun):
            assert route.send(b"%d of %d" % (number, index))
        if number % 7 == 0:
            await asyncio.sleep(0)
    await until(lambda: all(len(run.items) == 50 for run, _ in begun))
    for index, (run, _) in enumerate(begun):
        assert run.items == [b"%d of %d" % (number, index) for number in range(50)]
    assert len(ends.server._connections) == 1


async def test_what_one_turn_of_the_loop_sends_is_one_piece(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = [await ends.begin() for _ in range(4)]
    begun[0][1].send(b"first")
    await until(lambda: bool(begun[0][0].items))
    received: list[bytes] = []
    (connection,) = ends.server._connections
    monkeypatch.setattr(connection, "data_received", received.append)
    for _, route in begun:
        route.send(b"x")
    await until(lambda: bool(received))
    assert received[0].count(b"\n") == 4


@pytest.mark.parametrize("item", [b"", b"[]", b"x" * 5_000_000, "Ünïcödé 🚲 ".encode() * 1000], ids=len)
async def test_an_item_of_any_size_arrives_whole(ends: Ends, item: bytes) -> None:
    run, route = await ends.begin()
    route.send(item)
    route.send(b"after it")
    await until(lambda: len(run.items) == 2)
    assert run.items == [item, b"after it"]


async def test_what_comes_after_the_end_is_nobodys(ends: Ends) -> None:
    ended, route = await ends.begin()
    ends.calls.close()
    running, other = await ends.begin()
    route.send(b"late")
    other.send(b"in time")
    await until(lambda: bool(running.items))
    assert not ended.items
    assert not ended.num_lost


async def test_a_connection_that_is_lost_ends_what_began_on_it_once(ends: Ends) -> None:
    begun = [await ends.begin() for _ in range(3)]
    waiting, _ = await ends.begin()
    for _, route in begun:
        route.send(b"x")
    await until(lambda: all(run.items for run, _ in begun))
    (connection,) = ends.server._connections
    connection.transport.abort()
    await until(lambda: not ends.server._connections)
    assert [run.num_lost for run, _ in begun] == [1, 1, 1]
    assert waiting.num_lost == 0
    await until(lambda: not begun[0][1].send(b"y"))
    again, route = await ends.begin()
    route.send(b"z")
    await until(lambda: again.items == [b"z"])


async def test_a_replica_that_goes_is_heard_of(ends: Ends) -> None:
    run, route = await ends.begin()
    route.send(b"x")
    await until(lambda: bool(run.items))
    ends.client.close()
    await until(lambda: run.num_lost == 1)


async def test_nothing_is_kept_of_requests_that_ended(ends: Ends) -> None:
    for _ in range(100):
        with ends.server.expect(run := Kept()) as reply_to:
            route = await ends.client.route(reply_to)
            assert route is not None
            route.send(b"x")
            await until(lambda run=run: bool(run.items))  # type: ignore[misc] # bound early on purpose
        route.send(b"late")
    await asyncio.sleep(0.05)
    (connection,) = ends.server._connections
    assert not connection.numbers
    assert not ends.server._receivers


def caller(server: EventServer) -> tuple[str, int]:
    with server.expect(Kept()) as reply_to:
        assert reply_to is not None
        return reply_to.host, reply_to.port


@pytest.mark.parametrize("sent", [b"0 []\n", b"wrong\n0 []\n", b"\n", b"x" * 10_000, b"\xff\x00\n0 x\n"])
async def test_who_does_not_know_the_key_is_not_heard(ends: Ends, sent: bytes) -> None:
    run = Kept()
    with ends.server.expect(run):
        reader, writer = await asyncio.open_connection(*caller(ends.server))
        writer.write(sent)
        async with asyncio.timeout(5):
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)
        writer.close()
    assert not run.items
    assert not run.num_lost


async def test_who_says_nothing_is_let_go(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_link, "KEY_TIMEOUT_S", 0.05)
    reader, writer = await asyncio.open_connection(*caller(ends.server))
    async with asyncio.timeout(5):
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
    writer.close()


async def test_a_caller_that_cannot_be_reached_is_not_tried_for_each_request(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(event_link, "RECONNECT_S", 0.2)
    with socket.socket() as sock:
        sock.bind((HERE, 0))
        port = sock.getsockname()[1]
    client, reply_to = EventClient(), ReplyTo(HERE, port, "key", 0)
    with caplog.at_level(logging.WARNING):
        assert await asyncio.gather(*(client.route(reply_to) for _ in range(3))) == [None] * 3
        assert await client.route(reply_to) is None
    assert len(caplog.records) == 1
    assert "through Ray instead" in caplog.text
    await asyncio.sleep(0.25)
    assert await client.route(reply_to) is None
    await until(lambda: len(caplog.records) == 2)
    assert not client._connections


async def test_a_caller_that_says_nothing_of_it_has_no_way() -> None:
    assert await EventClient().route(None) is None
    server = EventServer("")
    await server.open()
    with server.expect(Kept()) as reply_to:
        assert reply_to is None


async def test_where_nobody_can_listen_items_come_by_the_calls(caplog: pytest.LogCaptureFixture) -> None:
    server = EventServer("203.0.113.1")
    await server.open()
    assert "through Ray instead" in caplog.text
    with server.expect(Kept()) as reply_to:
        assert reply_to is None


async def test_one_that_comes_back_is_found_while_requests_go_the_longer_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_link, "RECONNECT_S", 0.05)
    monkeypatch.setattr(event_link, "CONNECT_TIMEOUT_S", 0.3)
    let_go, left = asyncio.Event(), 0

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal left
        left += 1
        await let_go.wait()
        writer.close()
        left -= 1

    hangs = await asyncio.start_server(hang, HERE, 0)
    client, reply_to = EventClient(), ReplyTo(HERE, hangs.sockets[0].getsockname()[1], "key", 0)
    assert await client.route(reply_to) is None
    await asyncio.sleep(0.06)
    async with asyncio.timeout(0.2):
        assert await client.route(reply_to) is None
    assert client._connections, "it is tried again, and nobody waits for that"
    client.close()
    let_go.set()
    await until(lambda: not left)
    hangs.close()


@pytest.mark.parametrize("after", [0, 3])
async def test_who_takes_the_connection_and_not_the_key_is_no_way(after: int, caplog: pytest.LogCaptureFixture) -> None:
    """As the proxies of some networks do, which accept for whoever is behind them."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(after)
        writer.close()

    proxy = await asyncio.start_server(accept, HERE, 0)
    client = EventClient()
    assert await client.route(ReplyTo(HERE, proxy.sockets[0].getsockname()[1], "key", 0)) is None
    assert "through Ray instead" in caplog.text
    assert not client._connections
    proxy.close()


async def test_what_was_sent_before_the_end_arrives(ends: Ends) -> None:
    run, route = await ends.begin()
    route.send(b"the last word")
    ends.client.close()
    await until(lambda: run.num_lost == 1)
    assert run.items == [b"the last word"]


async def test_an_end_while_it_connects_leaves_nothing(ends: Ends) -> None:
    with ends.server.expect(Kept()) as reply_to:
        waiting = asyncio.create_task(ends.client.route(reply_to))
        await asyncio.sleep(0)
        ends.client.close()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not ends.client._connections
        ends.client.close()


async def test_guesses_are_not_many_to_a_piece(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    guesses: list[bytes] = []
    monkeypatch.setattr(ends.server, "is_key", guesses.append)
    reader, writer = await asyncio.open_connection(*caller(ends.server))
    writer.write(b"\n" * 10_000)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await reader.readexactly(1)
    writer.close()
    assert len(guesses) == 1


async def test_strangers_are_bounded_and_keep_no_replica_out(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_link, "MAX_UNAUTHENTICATED", 4)
    known, route = await ends.begin()
    strangers = [await asyncio.open_connection(*caller(ends.server)) for _ in range(12)]
    await until(lambda: len(ends.server._connections) == 5)
    route.send(b"x")
    await until(lambda: bool(known.items))
    for _, writer in strangers:
        writer.close()


async def test_a_network_that_carries_nothing_is_noticed(ends: Ends) -> None:
    _, route = await ends.begin()
    (connection,) = ends.server._connections
    for transport in (connection.transport, route._connection.transport):
        sock = transport.get_extra_info("socket")
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 1000 * event_link.ACK_TIMEOUT_S


async def test_a_caller_that_does_not_read_is_given_up(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_link, "MAX_UNSENT_BYTES", 100_000)
    run, route = await ends.begin()
    route.send(b"x")
    await until(lambda: bool(run.items))
    (connection,) = ends.server._connections
    connection.transport.pause_reading()
    async with asyncio.timeout(20):
        while route.send(b"x" * 1_000_000):
            await asyncio.sleep(0.001)
    assert not ends.client._connections
