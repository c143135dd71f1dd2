"""The entry point: one parser, one file per command, one boundary where every error becomes a line and an exit code."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from drivetrain import __version__
from drivetrain.cli.flags.prompts import take_text
from drivetrain.cli.terminal.boundary import guarded
from drivetrain.core.errors import InvalidSetting

_EPILOG = """examples:
  drivetrain pull smollm2-135m
  drivetrain chat smollm2-135m
  drivetrain generate smollm2-135m "Write a haiku about the sea." --temperature 0
  drivetrain COMMAND --help

MODEL is a short name (smollm2-135m), a folder with safetensors weights, a .gguf file, a Hugging Face id (org/name),
or fake, which has no weights and is for trying things out.
"""


class _Parser(argparse.ArgumentParser):
    """For the program and each of its commands: options are written out, and a usage error is one line."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        raise InvalidSetting(f"{message} (see {self.prog} --help)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, or list them, and return the exit code: 0, 1 (failed), 2 (usage error), 70 (our bug), 130, 141,
    143."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    return guarded(lambda: _run(arguments), debug="--debug" in arguments)


def _run(arguments: list[str]) -> int:
    parser, commands = _parsers()
    args, unknown = parser.parse_known_args(arguments)
    if args.command is None:
        if unknown:
            parser.error(_unknown(unknown[0], parser))
        parser.print_help()
        return 0
    command = commands[args.command]
    take_text(args, unknown)
    if unknown:
        command.error(_unknown(unknown[0], command))
    run: Callable[[argparse.Namespace], int] = args.run
    return run(args)


def _parsers() -> tuple[_Parser, dict[str, _Parser]]:
    from drivetrain.cli import deploy, generate, models  # imported inside the boundary, where Ctrl-C gives one line
    from drivetrain.cli.bench import command as bench
    from drivetrain.cli.chat import command as chat
    from drivetrain.cli.conform import command as conform
    from drivetrain.cli.diff import command as diff
    from drivetrain.cli.doctor import command as doctor
    from drivetrain.cli.inspect import command as inspect
    from drivetrain.cli.serve import command as serve

    parser = _Parser(
        prog="drivetrain",
        description="A model worker for language models: one strict contract, every engine.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"drivetrain {__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback if there is an error")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for module in (serve, deploy, generate, chat, bench, conform, diff, inspect, doctor, models):
        module.add(commands)
    for command in commands.choices.values():
        command.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    return parser, commands.choices


def _unknown(argument: str, parser: argparse.ArgumentParser) -> str:
    known = [option for action in parser._actions for option in action.option_strings]
    close = difflib.get_close_matches(argument.partition("=")[0], known, 1)
    hint = f"; did you mean {close[0]}?" if close else ""
    what = "unknown option" if argument.startswith("-") else "unexpected argument"
    return f"{what} {argument.partition('=')[0]}{hint}"
