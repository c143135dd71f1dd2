"""`drivetrain replay RECEIPT`: whether the answers that receipts tell of come again, here or on another engine."""

from __future__ import annotations

import argparse
from pathlib import Path

from drivetrain.cli.flags import options
from drivetrain.cli.terminal.report_files import add_report, check_writable
from drivetrain.core.errors import InvalidSetting
from drivetrain.worker.settings import RECEIPT_KEY_VARIABLE, SAMPLING_NAMES

OWN_NAMES = frozenset({"name", *SAMPLING_NAMES})
"""Settings that this command has no use for: the receipts say how to sample."""

DEFAULT_TOP = 5

_EPILOG = f"""examples:
  drivetrain replay receipt.json
  drivetrain replay receipts.jsonl --report replay.html
  drivetrain replay receipts/ --engine transformers --model ./my-model
  drivetrain replay receipts/ --url http://127.0.0.1:8000/v1
  drivetrain replay receipts/ --verify

RECEIPT is a file with one receipt, or with an answer that has one; a .jsonl file with one in each line; or a folder
of these. A replay needs full receipts (receipt: "full", or generate --receipt). The key of signed ones is read from
--receipt-key-file or {RECEIPT_KEY_VARIABLE}; with a key, receipts that it did not sign are refused.
The exit code is 0 if every answer came again, or within rounding; 1 if one did not; and 2 if a receipt is not valid or
could not be replayed.
"""


def add(commands: options.Commands) -> None:
    parser = commands.add_parser(
        "replay",
        help="make the answers of receipts again, and compare",
        description="Make the answers that receipts tell of again, as one batch, and show the first token at which an "
        "answer differs, with what the engine rated likeliest there.",
        usage="%(prog)s RECEIPT [RECEIPT ...] [option ...]",
        epilog=_EPILOG,
    )
    parser.add_argument("receipts", nargs="+", type=Path, metavar="RECEIPT", help="a .json or .jsonl file, or a folder")
    parser.add_argument(
        "--model", metavar="MODEL", help="the model, if it is not here by the name in the receipt; with --url, there"
    )
    parser.add_argument("--url", metavar="URL", help="a server to replay on")
    parser.add_argument(
        "--verify", action="store_true", help="check digests, signatures and weights, and replay nothing"
    )
    parser.add_argument(
        "--top", type=options.whole_number, default=DEFAULT_TOP, metavar="N",
        help=f"how many of the likeliest tokens to show (default: {DEFAULT_TOP})",
    )  # fmt: skip
    parser.add_argument(
        "--tolerance", type=options.number, metavar="X",
        help="the largest shift of logits that is rounding (default: 0.001 for float32, 0.05 for other weights)",
    )  # fmt: skip
    parser.add_argument(
        "--json", dest="json_file", type=Path, metavar="FILE", help="write everything as one JSON object"
    )
    add_report(parser)
    options.add_quiet(parser)
    options.add_settings(parser, without=OWN_NAMES)
    parser.show_first("--model", "--url", "--engine", "--verify", "--tolerance", "--json", "--report")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    _check(args)
    from drivetrain.cli.replay import run as replay_run

    return replay_run.run(args)


def _check(args: argparse.Namespace) -> None:
    options.check_range(args, "top", 1, 1000)
    options.check_range(args, "tolerance", 0.0, 100.0)
    replaying = {"url": args.url, "json": args.json_file, "report": args.report}
    if args.verify and (name := next((name for name, value in replaying.items() if value is not None), None)):
        raise InvalidSetting(f"--verify replays nothing; leave {options.flag(name)} out", param=name)
    check_writable(args.json_file, args.report)
    for file in filter(None, (args.json_file, args.report)):
        if any(_is_in(Path(file), path) for path in args.receipts):
            raise InvalidSetting(f"{file} is among the receipts, and would be written over; name another file")


def _is_in(file: Path, receipts: Path) -> bool:
    made, given = file.resolve(), receipts.resolve()
    return made == given or (given.is_dir() and given in made.parents and made.exists())
