"""`drivetrain ps`: the models of a running server, and their load."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from drivetrain.cli.doctor.command import add_access
from drivetrain.cli.flags import options
from drivetrain.cli.flags.server_options import own_url
from drivetrain.cli.terminal import output
from drivetrain.cli.terminal.values import plain
from drivetrain.core.errors import DrivetrainError, InvalidSetting

if TYPE_CHECKING:
    from drivetrain.tools.doctor.report import ModelReport, ServerReport

_EPILOG = """examples:
  drivetrain ps
  drivetrain ps http://127.0.0.1:9000
  drivetrain ps https://llm.example --api-key-file keys.txt --json

The memory is that of the server's process and of the devices that it uses.
`drivetrain doctor URL` says more, and what is wrong.
"""


def add(commands: options.Commands) -> None:
    parser = commands.add_parser(
        "ps",
        help="list the models of a running server, and their load",
        description="List the models of a running server: state, engine, requests, tokens, memory.",
        usage="%(prog)s [URL] [option ...]",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "url", metavar="URL", nargs="?", help="a running server (default: the one that serve starts here)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_access(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from drivetrain.tools.doctor.report import ServerKind

    report = _report(args)
    if report.kind is ServerKind.LOCKED:
        raise DrivetrainError(f"{report.url} tells its models only with a key: give --api-key-file")
    if report.kind is ServerKind.UNKNOWN:
        raise DrivetrainError(f"{report.url} answers, but it lists no models: it is not a server of this kind")
    if args.json:
        output.document({"url": report.url, "models": plain(report.models), "memory": plain(report.memory)})
    else:
        output.line("\n".join(_lines(report)))
    return 0


def _report(args: argparse.Namespace) -> ServerReport:
    from drivetrain.cli.doctor.server import reader
    from drivetrain.cli.terminal.event_loop import run_cancellable
    from drivetrain.tools.doctor.gather import gather

    options.check_range(args, "timeout", 0.1, 3600, " seconds")
    given, args.url = args.url, args.url or own_url()
    server = reader(args)
    try:
        return gather(run_cancellable(server.read))
    except InvalidSetting as exc:  # the URL is fine, or it would have been refused above
        hint = "; give the URL of a server, or start one: drivetrain serve MODEL" if given is None else ""
        raise DrivetrainError(exc.message + hint) from exc


def _lines(report: ServerReport) -> list[str]:
    from drivetrain.tools.doctor.text import memory_lines

    if not report.models:
        return [f"{report.url} has no models"]
    head = ("NAME", "STATE", "ENGINE", "DEVICE", "RUNNING", "WAITING", "TOKENS")
    return [output.table(head, map(_row, report.models)), *memory_lines(report)]


def _row(model: ModelReport) -> tuple[str, ...]:
    counts: tuple[Any, ...] = (model.running, model.waiting, model.completion_tokens)
    return (
        model.name,
        model.state,
        model.engine or "-",
        model.device or "-",
        *("-" if count is None else f"{count:,}" for count in counts),
    )
