"""`drivetrain doctor URL` at work: examine a running server, print the report, and choose the exit code."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path

from drivetrain.cli.flags.keys import key_in_environment, read_keys, sendable
from drivetrain.cli.terminal import origin, output
from drivetrain.cli.terminal.boundary import FAILED, USAGE_ERROR
from drivetrain.cli.terminal.event_loop import run_cancellable
from drivetrain.cli.terminal.report_files import write_text
from drivetrain.cli.terminal.values import plain
from drivetrain.engines.remote.address import Key
from drivetrain.http.address import Address
from drivetrain.tools.doctor import html_page, text
from drivetrain.tools.doctor.examine import examine
from drivetrain.tools.doctor.reading import ServerReader
from drivetrain.tools.doctor.report import ServerKind


def run(args: argparse.Namespace) -> int:
    """Raises `InvalidSetting`."""
    server = reader(args)
    began = datetime.now(UTC).isoformat(timespec="seconds")
    report = run_cancellable(lambda: examine(server))
    if args.json:
        output.document(plain(report))
    else:
        output.line("\n".join(text.lines(report)))
    if args.report is not None:
        write_text(args.report, html_page.page(report, began, origin.facts(), plain(report)))
    if report.kind is not ServerKind.OURS:
        return USAGE_ERROR
    return FAILED if report.needs_action else 0


def reader(args: argparse.Namespace) -> ServerReader:
    """Of the server at `args.url`. Raises `InvalidSetting`."""
    address = Address.parse(args.url, param="url", key_goes="with --api-key-file")
    key = access_key(args)
    admin_file = getattr(args, "admin_key_file", None)
    admin_key = _key_in(admin_file, "--admin-key-file") if admin_file else key
    return ServerReader(address, key, admin_key, args.timeout)


def access_key(args: argparse.Namespace) -> Key:
    """As the flags say, or the environment."""
    if args.api_key_file is not None:
        return _key_in(args.api_key_file, "--api-key-file")
    return Key(sendable(*key_in_environment(args.api_key_env)))


def _key_in(file: Path, flag: str) -> Key:
    return Key(sendable(read_keys(file)[0], flag))
