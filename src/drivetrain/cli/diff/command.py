"""`drivetrain diff MODEL --engines A,B`: whether several engines give the same answers, token by token."""

from __future__ import annotations

import argparse
from pathlib import Path

from drivetrain.cli.flags import options
from drivetrain.cli.flags.tool_options import tools_file
from drivetrain.cli.terminal.report_files import add_report, check_writable
from drivetrain.core.errors import InvalidSetting
from drivetrain.worker.settings import SAMPLING_NAMES

OWN_NAMES = frozenset({"engine", "name", *SAMPLING_NAMES})
"""Settings that this command chooses itself: the engines, and greedy answers."""

DEFAULT_TOKENS = 32
DEFAULT_TOP = 5
DEFAULT_TOLERANCE = 0.001

_RANGES = (("tokens", 1, 100_000), ("top", 2, 1000), ("tolerance", 0.0, 100.0))

_EPILOG = """examples:
  drivetrain diff smollm2-135m --engines native,transformers,llamacpp
  drivetrain diff ./my-model --engines native,native:quantize=int8 --prompts prompts.txt --report diff.html
  drivetrain diff ./my-model --engines native,llamacpp --model-for llamacpp=my-model-f16.gguf --json diff.json
  drivetrain diff ./my-model --engines native,remote --model-for remote=http://127.0.0.1:8000/v1

The first engine is compared with each of the others; only one is open at a time. Settings for one engine follow its
name after a colon. Flags apply to every engine that has the setting. MODEL is used for every engine without a
--model-for. A divergence is a tie if the first engine rates the other's token within --tolerance of its own.
The exit code is 0 if no prompt diverged beyond a tie, 1 if one did, and 2 for a usage error.
"""


def add(commands: options.Commands) -> None:
    parser = commands.add_parser(
        "diff",
        help="compare the answers of one model on several engines",
        description="Run the same prompts greedily on several engines, and report where and how far they diverge.",
        usage="%(prog)s MODEL --engines A,B[:SETTING=VALUE] [option ...]",
        epilog=_EPILOG,
    )
    options.add_model(parser)
    parser.add_argument(
        "--engines", type=options.comma_list, required=True, metavar="A,B",
        help="two or more engines, with settings after a colon: native:quantize=int8,compile=on,llamacpp",
    )  # fmt: skip
    parser.add_argument(
        "--model-for",
        action="append",
        default=[],
        metavar="ENGINE=MODEL",
        help="the model of one engine; repeat for more",
    )
    parser.add_argument(
        "--prompts", type=Path, metavar="FILE",
        help="one prompt per line, or one JSON string per line in a .jsonl file (default: a few built-in prompts)",
    )  # fmt: skip
    parser.add_argument(
        "--chat", action="store_true", help="send each prompt as a chat message, in the model's own prompt form"
    )
    parser.add_argument(
        "--tools", type=tools_file, metavar="FILE", help="with --chat: a JSON list of tools that the model may call"
    )
    parser.add_argument(
        "--tokens", type=options.whole_number, default=DEFAULT_TOKENS, metavar="N",
        help=f"the most tokens per answer (default: {DEFAULT_TOKENS})",
    )  # fmt: skip
    parser.add_argument(
        "--top", type=options.whole_number, default=DEFAULT_TOP, metavar="N",
        help=f"how many of the likeliest tokens to show (default: {DEFAULT_TOP})",
    )  # fmt: skip
    parser.add_argument(
        "--tolerance", type=options.number, default=DEFAULT_TOLERANCE, metavar="X",
        help=f"the largest difference in logprob that is a tie (default: {DEFAULT_TOLERANCE:g})",
    )  # fmt: skip
    parser.add_argument(
        "--json", dest="json_file", type=Path, metavar="FILE", help="write everything as one JSON object"
    )
    add_report(parser)
    options.add_settings(parser, without=OWN_NAMES)
    parser.show_first("--engines", "--model-for", "--prompts", "--chat", "--tokens", "--json", "--report")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    _check(args)
    from drivetrain.cli.diff import run as diff_run

    return diff_run.run(args)


def _check(args: argparse.Namespace) -> None:
    for name, low, high in _RANGES:
        options.check_range(args, name, low, high)
    if args.tools is not None and not args.chat:
        raise InvalidSetting("--tools goes with --chat", param="tools")
    check_writable(args.json_file, args.report)
