"""The entry point: one parser, one file per command, one boundary where every error becomes a line and an exit code."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from drivetrain import __version__
from drivetrain.cli.flags.prompts import take_text
from drivetrain.cli.help import CommandParser, overview
from drivetrain.cli.terminal.boundary import guarded

_DESCRIPTION = "A model worker for language models: one strict contract, every engine."
_ENDING = """MODEL: a short name, a folder, a .gguf file, org/name[:Q4_K_M], a URL, or fake.
  drivetrain run smollm2-135m            drivetrain COMMAND --help
"""

_OTHER_NAMES = {
    "delete": "rm",
    "download": "pull",
    "models": "list",
    "remove": "rm",
    "start": "serve",
    "status": "ps",
}
"""What other programs call our commands."""

_OTHER_FLAGS = {
    "--alias": "--name",
    "--api-key": "--api-key-file",
    "--batch-size": "--max-batch",
    "--ctx-size": "--context-length",
    "--html": "--report",
    "--max-model-len": "--context-length",
    "--max-new-tokens": "--max-tokens",
    "--max-num-seqs": "--max-batch",
    "--n-gpu-layers": "--gpu-layers",
    "--n-predict": "--max-tokens",
    "--parallel": "--slots",
    "--quantization": "--quantize",
    "--repeat-penalty": "--repetition-penalty",
    "--served-model-name": "--name",
    "--temp": "--temperature",
    "--timeout": "--timeout-s",
    "-c": "--context-length",
    "-n": "--max-tokens",
    "-ngl": "--gpu-layers",
    "-np": "--slots",
    "-t": "--threads",
}
"""What other programs call our options."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, or list them, and return the exit code: 0, 1 (failed), 2 (usage error), 70 (our bug), 130, 141,
    143."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    return guarded(lambda: _run(arguments), debug="--debug" in arguments)


def _run(arguments: list[str]) -> int:
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    parser, commands = _parsers()
    _check_command(arguments, parser, commands)
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


class _Program(CommandParser):
    """The parser of the program, whose help has the commands in groups."""

    groups: Mapping[str, Mapping[str, str]]

    def format_help(self) -> str:
        return overview(_DESCRIPTION, self.groups, _ENDING)


def _parsers() -> tuple[_Program, dict[str, CommandParser]]:
    # imported inside the boundary, where Ctrl-C gives one line
    from drivetrain.cli import deploy, embed, generate, models, ps, stop
    from drivetrain.cli import run as run_command
    from drivetrain.cli.bench import command as bench
    from drivetrain.cli.chat import command as chat
    from drivetrain.cli.conform import command as conform
    from drivetrain.cli.diff import command as diff
    from drivetrain.cli.doctor import command as doctor
    from drivetrain.cli.inspect import command as inspect
    from drivetrain.cli.launch import command as launch
    from drivetrain.cli.replay import command as replay
    from drivetrain.cli.serve import command as serve

    groups: dict[str, tuple[Any, ...]] = {
        "Talk": (run_command, chat, generate, embed),
        "Serve": (serve, launch, deploy, ps, stop),
        "Models": (models, inspect),
        "Examine": (doctor, bench, diff, replay, conform),
    }
    parser = _Program(prog="drivetrain")
    parser.add_argument("--version", action="version", version=f"drivetrain {__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback if there is an error")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=CommandParser)
    told: dict[str, dict[str, str]] = {}
    for group, modules in groups.items():
        before = len(commands._choices_actions)
        for module in modules:
            module.add(commands)
        added = commands._choices_actions[before:]
        told[group] = {str(one.metavar).replace(" (", ", ").rstrip(")"): one.help or "" for one in added}
    parser.groups = told
    for command in set(commands.choices.values()):
        command.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    return parser, commands.choices


def _check_command(arguments: Sequence[str], parser: _Program, commands: Mapping[str, Any]) -> None:
    """Raises `InvalidSetting` for a command that there is not, with the nearest one."""
    name = next((argument for argument in arguments if not argument.startswith("-")), None)
    if name is None or name in commands:
        return
    known = _OTHER_NAMES | {command: command for command in commands}
    close = difflib.get_close_matches(name.lower()[:64], known, 1)
    hint = f"; did you mean {known[close[0]]}?" if close else ""
    parser.error(f"there is no command {name[:64]!r}{hint}")


def _unknown(argument: str, parser: argparse.ArgumentParser) -> str:
    known = [option for action in parser._actions for option in action.option_strings]
    flag = argument.partition("=")[0]
    if (ours := _OTHER_FLAGS.get(flag)) in known:
        return f"unknown option {flag}; here it is {ours}"
    close = difflib.get_close_matches(flag, known, 1)
    hint = f"; did you mean {close[0]}?" if close else ""
    what = "unknown option" if argument.startswith("-") else "unexpected argument"
    return f"{what} {argument.partition('=')[0]}{hint}"
