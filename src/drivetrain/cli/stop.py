"""`drivetrain stop`: ends a server that this user runs on this machine."""

from __future__ import annotations

import argparse
import os
import signal
import time

from drivetrain.cli.flags import options
from drivetrain.cli.terminal import output
from drivetrain.core.errors import DrivetrainError, InvalidSetting

POLL_S = 0.1
SAY_AFTER_S = 2.0

_EPILOG = """examples:
  drivetrain stop
  drivetrain stop 9000
  drivetrain stop http://127.0.0.1:9000 --now

The server's process gets SIGTERM, which lets running requests finish (see
--drain-s of serve). No key is needed, but only who started it can end it.
"""


def add(commands: options.Commands) -> None:
    parser = commands.add_parser(
        "stop",
        help="end a server that runs here",
        description="End a server that you run on this machine, and wait until it has ended.",
        usage="%(prog)s [URL|PORT] [option ...]",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "server", metavar="URL|PORT", nargs="?", help="which server (default: the one that serve starts here)"
    )
    parser.add_argument("--now", action="store_true", help="do not let running requests finish")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from drivetrain.cli.serve.running import process_on

    port = _port(args.server)
    pid = process_on(port)
    if pid is None:
        raise DrivetrainError(_unknown(port))
    try:
        os.kill(pid, signal.SIGTERM)
        if not _ended(pid, port, POLL_S if args.now else None):
            os.kill(pid, signal.SIGTERM)
            _ended(pid, port, None)
    except ProcessLookupError:  # it has ended meanwhile
        pass
    except PermissionError as exc:
        raise DrivetrainError(f"the server on port {port} belongs to another user: only they can end it") from exc
    output.line(f"the server on port {port} has ended")
    return 0


def _port(text: str | None) -> int:
    from drivetrain.cli.flags.server_options import read_server
    from drivetrain.http.address import Address, is_loopback

    if text is None:
        return int(read_server(argparse.Namespace(config=None)).value("port"))
    if text.isascii() and text.isdigit() and len(text) <= 5:
        return int(text)
    address = Address.parse(text, param="server")
    if not is_loopback(address.host):
        raise InvalidSetting(
            f"{text} is another machine: end its server there, or give a port of this one", param="server"
        )
    return address.port


def _unknown(port: int) -> str:
    from drivetrain.cli.serve.running import ports

    others = ", ".join(map(str, ports()))
    hint = f"there is one on {others}" if others else "drivetrain ps says whether anything answers there"
    return f"no server of yours is known on port {port}, with this DRIVETRAIN_HOME; {hint}"


def _ended(pid: int, port: int, limit_s: float | None) -> bool:
    """Wait for the end of the process. False if it still runs after so many seconds."""
    from drivetrain.cli.serve.running import process_on

    began, said = time.monotonic(), False
    while process_on(port) == pid:
        waited_s = time.monotonic() - began
        if limit_s is not None and waited_s >= limit_s:
            return False
        if not said and waited_s >= SAY_AFTER_S:
            output.note("waiting for its requests to finish (Ctrl-C: wait no longer; --now ends them)")
            said = True
        time.sleep(POLL_S)
    return True
