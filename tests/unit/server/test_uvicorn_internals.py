"""What our connection leans on in uvicorn and h11 without a promise of theirs: an upgrade that moves it fails here."""

from __future__ import annotations

import asyncio
import inspect
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h11
import pytest
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol, RequestResponseCycle
from uvicorn.server import Server, ServerState


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        (H11Protocol.__init__, ["self", "config", "server_state", "app_state", "_loop"]),
        (H11Protocol.connection_made, ["self", "transport"]),
        (H11Protocol.connection_lost, ["self", "exc"]),
        (H11Protocol.data_received, ["self", "data"]),
        (H11Protocol.eof_received, ["self"]),
        (H11Protocol.handle_events, ["self"]),
        (H11Protocol.pause_writing, ["self"]),
        (H11Protocol.resume_writing, ["self"]),
        (H11Protocol.on_response_complete, ["self"]),
        (H11Protocol.shutdown, ["self"]),
        (H11Protocol.send_400_response, ["self", "msg"]),
        (H11Protocol._should_upgrade, ["self"]),
        (H11Protocol._unset_keepalive_if_required, ["self"]),
        (FlowControl.resume_reading, ["self"]),
        (FlowControl.resume_writing, ["self"]),
        (Server.startup, ["self", "sockets"]),
        (Server.shutdown, ["self", "sockets"]),
    ],
)
def test_methods_that_are_replaced_or_called(method: Callable[..., Any], parameters: list[str]) -> None:
    assert list(inspect.signature(method).parameters) == parameters


async def test_what_a_connection_of_uvicorn_holds() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None: ...

    protocol = H11Protocol(Config(app, log_config=None), ServerState(), {}, asyncio.get_running_loop())
    assert isinstance(protocol.conn, h11.Connection)
    assert protocol.connections == set()
    for name in ("loop", "transport", "flow", "scope", "cycle"):
        assert hasattr(protocol, name)
    assert FlowControl(asyncio.Transport()).write_paused is False
    assert HIGH_WATER_LIMIT > 0
    assert STATUS_PHRASES[408] == b"Request Timeout"


async def test_a_server_of_uvicorn_that_is_given_no_socket_listens_on_none() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None: ...

    server = Server(Config(app, log_config=None, lifespan="off"))
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)
    await server.startup([])
    assert server.started
    assert server.servers == []
    assert server.lifespan.state == {}


def test_what_a_cycle_of_uvicorn_holds() -> None:
    written = inspect.getsource(RequestResponseCycle.__init__)
    for name in ("disconnected", "message_event", "response_complete", "keep_alive"):
        assert f"self.{name}" in written


def test_what_is_read_of_h11() -> None:
    connection = h11.Connection(h11.SERVER)
    assert (connection.their_state, connection.our_state) == (h11.IDLE, h11.IDLE)
    connection.receive_data(b"\r\nGET")
    assert connection.trailing_data[0] == b"\r\nGET"
    connection._receive_buffer.maybe_extract_at_most(2)
    assert connection.trailing_data[0] == b"GET"
    assert "error_status_hint" in inspect.signature(h11.RemoteProtocolError.__init__).parameters


@pytest.mark.parametrize("name", ["uvicorn", "h11"])
def test_both_are_declared_and_bounded(name: str) -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    (declared,) = [line for line in project["optional-dependencies"]["server"] if re.match(rf"{name}\b", line)]
    assert re.fullmatch(rf"{name}>=[\d.]+,<[\d.]+", declared)
