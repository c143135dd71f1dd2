"""`drivetrain conform URL`: whether a server keeps what the OpenAI API promises, case by case."""

from __future__ import annotations

import argparse
from pathlib import Path

from drivetrain.cli.flags import options
from drivetrain.cli.flags.keys import KEY_VARIABLE
from drivetrain.cli.terminal.report_files import add_report, check_writable
from drivetrain.core.errors import InvalidSetting

KEY_VARIABLES = (KEY_VARIABLE, "OPENAI_API_KEY")
DEFAULT_TIMEOUT_S = 60.0

_EPILOG = f"""examples:
  drivetrain conform http://127.0.0.1:8000
  drivetrain conform http://127.0.0.1:8000/v1 --model my-model --report report.html
  drivetrain conform http://127.0.0.1:8000 --quick
  drivetrain conform http://127.0.0.1:8000 --only stops,streaming.text
  drivetrain conform --list

URL is the address of any server that speaks the OpenAI API; a URL without a path gets /v1. The key is read from
{KEY_VARIABLES[0]} or {KEY_VARIABLES[1]}. It is sent only to that server and appears in no report.
The exit code is 0 if no case failed, 1 if one did, and 2 if no case could be run.
"""


def add(commands: options.Commands) -> None:
    parser = commands.add_parser(
        "conform",
        help="check a server against the promises of the OpenAI API",
        description="Run the conformance cases on any server, and report which it passes, fails or does not offer.",
        usage="%(prog)s URL [option ...]",
        epilog=_EPILOG,
    )
    parser.add_argument("url", metavar="URL", nargs="?", help="such as http://127.0.0.1:8000/v1")
    parser.add_argument("--model", metavar="NAME", help="the model to ask for (default: the only one)")
    parser.add_argument(
        "--only", type=options.comma_list, action="append", default=[], metavar="A,B",
        help="areas (stops) or cases (stops.string); may be repeated",
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="one or a few cases of each area, in two minutes at most")
    parser.add_argument("--list", action="store_true", help="print the cases without running them")
    parser.add_argument(
        "--timeout", type=options.number, default=DEFAULT_TIMEOUT_S, metavar="S",
        help=f"seconds to wait for each answer (default: {DEFAULT_TIMEOUT_S:g})",
    )  # fmt: skip
    parser.add_argument(
        "--json", dest="json_file", type=Path, metavar="FILE", help="write the report as one JSON object"
    )
    add_report(parser, "--html")
    options.add_quiet(parser)
    parser.show_first("--model", "--only", "--quick", "--list", "--timeout", "--json", "--report")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    _check(args)
    from drivetrain.cli.conform import run as conform_run

    return conform_run.run(args, KEY_VARIABLES)


def _check(args: argparse.Namespace) -> None:
    if args.url is None and not args.list:
        raise InvalidSetting("give the URL of a server, such as http://127.0.0.1:8000/v1, or --list")
    options.check_range(args, "timeout", 0.1, 86_400, " seconds")
    check_writable(args.json_file, args.report)
