"""`drivetrain launch CLIENT [MODEL]`: a coding agent with one of our models."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from drivetrain.cli.flags import options
from drivetrain.cli.flags.keys import key_in_shell
from drivetrain.cli.flags.server_options import own_url
from drivetrain.cli.launch.clients import CLIENTS, CONFIG_HERE, NO_KEY, Client, Endpoint, Invocation
from drivetrain.cli.launch.processes import end, hanging_up
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
    from drivetrain.cli.launch.server import check, serve_words, served

    client = CLIENTS[args.client]
    program = shutil.which(client.program)
    if program is None and not args.only_print:
        raise InvalidSetting(f"{client.title} is not installed; run: npm install -g {client.package}", param="client")
    with hanging_up(), served(args, own_url()) as found:
        if found is not None:
            check(client, found, forced=args.force or args.only_print)
        at = found.at if found is not None else Endpoint(own_url(), args.model, NO_KEY, client.needs)
        if args.only_print:
            start = [shlex.join(["drivetrain", *serve_words(args, client.needs)]), ""] if found is None else []
            output.line("\n".join([*start, shown(client, at, args)]))
            return 0
        assert program is not None
        return _run(program, client.invocation(at), args.arguments)


def shown(client: Client, at: Endpoint, args: argparse.Namespace) -> str:
    """Lines for a shell. A key is named by where it comes from."""
    invocation, lines, hidden = client.invocation(at), [], ""
    if at.key != NO_KEY:
        lines, hidden = [f'KEY="{key_in_shell(args.api_key_file, args.api_key_env)}"'], at.key
    lines += [f"unset {name}" for name in invocation.without]
    lines += [f"export {name}={_spelled(value, hidden)}" for name, value in invocation.environment.items()]
    name = "drivetrain.yaml"
    if invocation.config:
        lines.append(f"cat > {name} <<END\n{_in_document(invocation.config, hidden)}END")
    arguments = [name if part == CONFIG_HERE else part for part in invocation.arguments]
    words = [client.program, *arguments, *args.arguments]
    return "\n".join([*lines, " ".join(_spelled(word, hidden) for word in words)])


def _spelled(text: str, key: str) -> str:
    parts = text.split(key) if key else [text]
    return '"$KEY"'.join(shlex.quote(part) if part or len(parts) == 1 else "" for part in parts)


def _in_document(text: str, key: str) -> str:
    parts = [re.sub(r"([\\$`])", r"\\\1", part) for part in (text.split(key) if key else [text])]
    return "$KEY".join(parts)


def _run(program: str, invocation: Invocation, more: list[str]) -> int:
    """The agent has the terminal, and Ctrl-C is its own."""
    with _config(invocation.config) if invocation.config else nullcontext("") as config:
        arguments = [config if part == CONFIG_HERE else part for part in invocation.arguments]
        kept = {name: value for name, value in os.environ.items() if name not in invocation.without}
        before = signal.signal(signal.SIGINT, lambda *_: None)  # a handler, since the agent would inherit ignoring it
        agent = subprocess.Popen([program, *arguments, *more], env={**kept, **invocation.environment})  # noqa: S603
        try:
            ended = agent.wait()
        finally:
            signal.signal(signal.SIGINT, before)
            end(agent)
    return ended if ended >= 0 else 128 - ended


@contextmanager
def _config(text: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="drivetrain-") as folder:
        file = Path(folder) / "config.yaml"
        file.write_text(text, encoding="utf-8")
        yield str(file)
