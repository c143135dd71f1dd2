"""What `drivetrain doctor URL` does: read a running server, tell what was found, and exit with what that means."""

from __future__ import annotations

import argparse
import asyncio
import os

from drivetrain.cli.serve.command import read_keys
from drivetrain.cli.terminal import output
from drivetrain.cli.terminal.boundary import ASKED_WRONGLY, FAILED
from drivetrain.cli.terminal.values import plain
from drivetrain.core.errors import InvalidSetting
from drivetrain.engines.remote.address import Key
from drivetrain.http.address import Address
from drivetrain.tools.doctor import text
from drivetrain.tools.doctor.examine import examine
from drivetrain.tools.doctor.reading import Reader
from drivetrain.tools.doctor.report import ServerKind


def run(args: argparse.Namespace) -> int:
    """Raises `InvalidSetting`."""
    address = Address.parse(args.url, param="url", key_goes="with --api-key-file")
    key = _key(args)
    admin_key = _sendable(read_keys(args.admin_key_file)[0], "--admin-key-file") if args.admin_key_file else key
    report = asyncio.run(examine(Reader(address, key, admin_key, args.timeout)))
    if args.json:
        output.document(plain(report))
    else:
        output.line("\n".join(text.lines(report)))
    if report.kind is not ServerKind.OURS:
        return ASKED_WRONGLY
    return FAILED if report.needs_action else 0


def _key(args: argparse.Namespace) -> Key:
    """The first one of the file, else what the environment has."""
    if args.api_key_file is not None:
        return _sendable(read_keys(args.api_key_file)[0], "--api-key-file")
    return _sendable(os.environ.get(args.api_key_env, "").strip(), args.api_key_env)


def _sendable(secret: str, origin: str) -> Key:
    if not all("!" <= c <= "~" for c in secret):
        raise InvalidSetting(
            f"the key from {origin} contains characters that cannot be sent in a header", param="api_key"
        )
    return Key(secret)
