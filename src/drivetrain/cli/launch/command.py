"""`drivetrain launch CLIENT [MODEL]`: a coding agent with one of our models."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from drivetrain.cli.flags import options
from drivetrain.cli.flags.server_options import own_url
from drivetrain.cli.launch.clients import CLIENTS, CONFIG_HERE, Client, Endpoint, Invocation
from drivetrain.cli.terminal import output
from drivetrain.core.errors import InvalidSetting

_EPILOG = """examples:
  drivetrain launch claude                       with the server that runs here
  drivetrain launch codex org/name:Q4_K_M        starts one, which ends with Codex
  drivetrain launch opencode --url http://gpu-box:8000 --api-key-file keys.txt
  drivetrain launch claude --print               only what would be set and run
  drivetrain launch claude MODEL -- -p "Say hello."

Nothing is written into the client's own configuration. What stands behind -- is passed on to it.
"""


def add(commands: options.Commands) -> None:
    from drivetrain.cli.doctor.command import add_access

    parser = commands.add_parser(
        "launch",
        help="run a coding agent with one of our models",
        description="Run a coding agent with a model of a running server, or of one that is started for it.",
        usage="%(prog)s CLIENT [MODEL] [option ...] [-- ARGUMENT ...]",
        epilog=_EPILOG,
    )
    parser.add_argument("client", metavar="CLIENT", choices=tuple(CLIENTS), help=", ".join(CLIENTS))
    parser.add_argument("model", metavar="MODEL", nargs="?", help="a model of the server, or one to start it with")
    parser.passes_on = "arguments"
    parser.add_argument("--url", metavar="URL", help="the server (default: the one that serve starts here)")
    parser.add_argument("--print", action="store_true", dest="only_print", help="print what would be run")
    parser.add_argument("--force", action="store_true", help="run it with a model that is not fit for it too")
    parser.add_argument(
        "--context-length", type=int, metavar="N", help="of a server that is started (default: what serve takes)"
    )
    parser.add_argument("--engine", metavar="NAME", help="of a server that is started")
    add_access(parser)
    parser.show_first("--url", "--api-key-file", "--context-length", "--print", "--force")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from drivetrain.cli.launch.server import check, served

    client = CLIENTS[args.client]
    program = shutil.which(client.program)
    if program is None and not args.only_print:
        raise InvalidSetting(f"{client.title} is not installed; run: npm install -g {client.package}", param="client")
    with served(args, own_url()) as (at, capabilities):
        check(client.title, client.needs, at, capabilities, forced=args.force or args.only_print)
        if args.only_print:
            output.line(shown(client, at, args.arguments))
            return 0
        assert program is not None
        return _run(program, client.invocation(at), args.arguments)


def shown(client: Client, at: Endpoint, more: list[str]) -> str:
    """Lines for a shell."""
    invocation = client.invocation(at)
    lines = [f"export {name}={shlex.quote(value)}" for name, value in invocation.environment.items()]
    file = "drivetrain.yaml"
    if invocation.config:
        lines.append(f"cat > {file} <<'END'\n{invocation.config}END")
    arguments = [file if part == CONFIG_HERE else part for part in invocation.arguments]
    return "\n".join([*lines, shlex.join([client.program, *arguments, *more])])


def _run(program: str, invocation: Invocation, more: list[str]) -> int:
    """The agent has the terminal, and Ctrl-C is its own."""
    with _config(invocation.config) if invocation.config else nullcontext("") as config:
        arguments = [config if part == CONFIG_HERE else part for part in invocation.arguments]
        environment = {**os.environ, **invocation.environment}
        before = signal.signal(signal.SIGINT, lambda *_: None)  # a handler, since the agent would inherit ignoring it
        try:
            ended = subprocess.Popen([program, *arguments, *more], env=environment).wait()  # noqa: S603
        finally:
            signal.signal(signal.SIGINT, before)
    return ended if ended >= 0 else 128 - ended


@contextmanager
def _config(text: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="drivetrain-") as folder:
        file = Path(folder) / "config.yaml"
        file.write_text(text, encoding="utf-8")
        yield str(file)
