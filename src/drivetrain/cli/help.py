"""Help that fits on a screen: what is needed often and some examples; `--help-all` has everything."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from drivetrain.cli.terminal import output
from drivetrain.core.errors import InvalidSetting

SCREEN_LINES = 24
SCREEN_COLUMNS = 80

_EXAMPLES = "examples:\n"


class CommandParser(argparse.ArgumentParser):
    """For the program and each of its commands: options are written out, and a usage error is one line.

    `--help` shows all of a short help. A long one has a first screen, which `show_first` chooses.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(
            formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, add_help=False, **options
        )
        self._first: Sequence[str] = ()
        self.passes_on = ""
        """The name under which what stands behind `--` is kept, for a command that gives it to another program."""
        self.add_argument("-h", "--help", action=_Help, nargs=0, help="show this help, and exit")
        self._all = self.add_argument("--help-all", action=_HelpAll, nargs=0, help=argparse.SUPPRESS)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """What is passed on is not looked at."""
        if not self.passes_on:
            return super().parse_known_args(args, namespace)
        given = list(args or ())
        end = given.index("--") if "--" in given else len(given)
        found, unknown = super().parse_known_args(given[:end], namespace)
        setattr(found, self.passes_on, given[end + 1 :])
        return found, unknown

    def show_first(self, *flags: str) -> None:
        """The flags on the first screen, in this order; the positional arguments are always there."""
        self._first = flags
        self._all.help = "show all options, and exit"

    def first_screen(self) -> str:
        if not self._first:
            return self.format_help()
        by_flag = {flag: action for action in self._actions for flag in action.option_strings}
        shown = [action for action in self._actions if not action.option_strings]
        shown += [by_flag[flag] for flag in self._first]
        left = max(len(_invocation(action)) for action in shown) + 4
        lines = [
            f"usage: {(self.usage or '').replace('%(prog)s', self.prog)}",
            "",
            *textwrap.wrap(self.description or "", SCREEN_COLUMNS - 1),
            "",
        ]
        width = SCREEN_COLUMNS - left
        lines += [f"  {_invocation(action):<{left - 2}}{_short(action.help or '', width)}" for action in shown]
        text = "\n".join(lines) + "\n"
        rest = sum(bool(action.option_strings) and action.help is not argparse.SUPPRESS for action in self._actions)
        last = f"\n{self.prog} --help-all shows all {rest} options.\n"
        room = SCREEN_LINES - text.count("\n") - last.count("\n") - 2
        return text + self._examples(room) + last

    def _examples(self, room: int) -> str:
        """Those that fit into so many lines."""
        _, found, rest = (self.epilog or "").partition(_EXAMPLES)
        lines = rest.partition("\n\n")[0].splitlines()
        fitting = [line for line in lines if len(line) < SCREEN_COLUMNS][: max(1, room)]
        return f"\n{found}" + "".join(f"{line.rstrip()}\n" for line in fitting) if found else ""

    def _print_message(self, message: str, file: Any = None) -> None:
        """What argparse prints: help and the version. It would say nothing of a full disk."""
        output.write(message)

    def error(self, message: str) -> NoReturn:
        raise InvalidSetting(f"{message} (see {self.prog} --help)")


def _invocation(action: argparse.Action) -> str:
    """`--max-tokens N`, or only MODEL."""
    name = action.option_strings[-1] if action.option_strings else ""
    takes = "" if action.nargs == 0 else action.metavar or ("NAME" if action.choices else "")
    return f"{name} {takes}".strip()


def _short(text: str, width: int) -> str:
    """As much of it as fits on the line, to the end of a clause."""
    text = text.replace("%%", "%")
    if len(text) < width:
        return text
    end = max(text.rfind(mark, 0, width) for mark in ("; ", " ("))
    return text[:end] if end > 0 else textwrap.shorten(text, width - 1, placeholder=" …")


class _Help(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        output.write(parser.first_screen() if isinstance(parser, CommandParser) else parser.format_help())
        parser.exit()


class _HelpAll(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        parser.print_help()
        parser.exit()


def overview(description: str, groups: Mapping[str, Mapping[str, str]], ending: str) -> str:
    """Of the program: each group with its commands and what they do."""
    left = max(map(len, groups)) + 2
    width = max(len(name) for commands in groups.values() for name in commands) + 2
    lines = ["usage: drivetrain COMMAND [option ...]", description, ""]
    for group, commands in groups.items():
        heads = [group, *[""] * (len(commands) - 1)]
        lines += [
            f"{head:<{left}}{name:<{width}}{text}" for head, (name, text) in zip(heads, commands.items(), strict=True)
        ]
    return "\n".join([*lines, "", ending])
