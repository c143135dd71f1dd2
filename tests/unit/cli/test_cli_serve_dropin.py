"""Flags for FastChat and DB-GPT: what they mean together, and what cannot be."""

from __future__ import annotations

import argparse
import socket

import pytest

from drivetrain.cli.serve.dropin import Dropin, add_dropin_flags
from drivetrain.core.engine import Progress
from drivetrain.core.errors import InvalidSetting
from drivetrain.scale.fleet.fleet import Fleet
from drivetrain.scale.fleet.offer import Offer, Opened
from drivetrain.server.dropin import dbgpt, fastchat
from drivetrain.server.settings import ServerSettings


def read(*flags: str, settings: ServerSettings | None = None) -> Dropin:
    parser = argparse.ArgumentParser()
    add_dropin_flags(parser)
    return Dropin.read(parser.parse_args(flags), settings or ServerSettings())


def test_nothing_unless_asked_for() -> None:
    assert read().routes == ()


def test_protocols_without_a_controller() -> None:
    assert read("--worker-protocols", "fastchat").routes == fastchat.ROUTES
    assert read("--worker-protocols", "dbgpt,fastchat").routes == (*fastchat.ROUTES, *dbgpt.ROUTES)


def test_a_controller_brings_its_protocol() -> None:
    assert read("--dbgpt-controller", "http://127.0.0.1:8000").routes == dbgpt.ROUTES


REMOTE = ("--fastchat-controller", "http://10.0.0.1:21001")
LOCAL = ("--fastchat-controller", "http://127.0.0.1:21001")


@pytest.mark.parametrize(
    ("flags", "settings", "named"),
    [
        (("--worker-protocols", "vicuna"), ServerSettings(), "vicuna"),
        (LOCAL, ServerSettings(api_keys=("k",)), "API key"),
        (("--worker-protocols", "dbgpt"), ServerSettings(api_keys=("k",)), "API key"),
        (REMOTE, ServerSettings(), "--worker-address"),
        (LOCAL, ServerSettings(host="0.0.0.0", insecure_no_key=True), "--worker-address"),
        (("--worker-address", "http://10.0.0.7:8000"), ServerSettings(), "controller"),
        ((*REMOTE, "--worker-address", "http://gpu1:8000"), ServerSettings(), "--worker-address names gpu1"),
        ((*REMOTE, "--worker-address", "http://gpu1:8000"), ServerSettings(allowed_hosts=("gpu2",)), "--host"),
        (("--fastchat-controller", "10.0.0.1:21001"), ServerSettings(), "URL"),
        (("--dbgpt-controller", "http://a:1", "--worker-address", "https://b"), ServerSettings(), "https://b"),
        (("--dbgpt-controller", "http://a:1", "--worker-address", "http://b/c"), ServerSettings(), "http://b/c"),
    ],
)
def test_what_cannot_be_is_told_before_a_model_is_loaded(
    flags: tuple[str, ...], settings: ServerSettings, named: str
) -> None:
    with pytest.raises(InvalidSetting) as caught:
        read(*flags, settings=settings)
    assert named in caught.value.message


@pytest.mark.parametrize(
    ("address", "settings"),
    [
        ("http://gpu1:8000", ServerSettings(host="0.0.0.0", insecure_no_key=True)),
        ("http://gpu1:8000", ServerSettings(allowed_hosts=("GPU1",))),
        ("http://127.0.0.1:8000", ServerSettings()),
    ],
)
def test_an_address_that_can_be_reached(address: str, settings: ServerSettings) -> None:
    assert str(read(*REMOTE, "--worker-address", address, settings=settings).worker) == f"{address}/v1"


async def never(report: Progress) -> Opened:
    raise AssertionError


async def test_dbgpt_takes_no_at_in_a_name() -> None:
    dropin = read("--dbgpt-controller", "http://127.0.0.1:8000")
    with socket.create_server(("127.0.0.1", 0)) as sock, pytest.raises(InvalidSetting, match="@"):
        dropin.registration(Fleet([Offer(name="a@b", open=never)]), sock)
