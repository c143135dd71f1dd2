"""The options of `drivetrain bench`, and the checks that come before anything is opened."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from drivetrain.cli.flags import options
from drivetrain.cli.terminal.report_files import add_report, check_writable
from drivetrain.core.errors import InvalidSetting
from drivetrain.worker.settings import SAMPLING_NAMES

KEY_VARIABLES = ("DRIVETRAIN_BENCH_API_KEY", "OPENAI_API_KEY")
AGAINST_KEY_VARIABLE = "DRIVETRAIN_BENCH_AGAINST_API_KEY"

OWN_NAMES = frozenset({"timeout_s", *SAMPLING_NAMES})
"""Settings that this command chooses itself: answers are greedy and of one length."""

MAX_STREAMS = 4096
MAX_RATE = 10_000.0
MAX_REQUESTS = 100_000

_RANGES = (
    ("duration", 0.001, 86_400), ("requests", 1, MAX_REQUESTS), ("prompt_tokens", 1, 1_000_000),
    ("max_tokens", 1, 1_000_000), ("shared_prefix", 0, 1_000_000), ("rounds", 1, 1000), ("timeout_s", 0.001, 86_400),
    ("seed", 0, 2**63 - 1),
)  # fmt: skip


def add_load(group: Any) -> None:
    number, count = options.number, options.whole_number
    group.add_argument("--streams", metavar="A,B", help="closed loop: requests side by side (default: 1,4,16)")
    group.add_argument("--rate", metavar="X,Y", help="open loop: average requests per second, at random times")
    group.add_argument("--duration", type=number, metavar="S", help="seconds per round of an open loop (default: 30)")
    group.add_argument(
        "--requests",
        type=count,
        metavar="N",
        help="requests per round: for each stream (default: 1), or in all for an open loop",
    )
    group.add_argument(
        "--prompt-tokens", type=count, default=32, metavar="N", help="approximate prompt length (default: 32)"
    )
    group.add_argument("--max-tokens", type=count, default=64, metavar="N", help="answer length (default: 64)")
    group.add_argument(
        "--shared-prefix",
        type=count,
        default=0,
        metavar="N",
        help="tokens that all prompts have in common at the start (default: 0)",
    )
    group.add_argument(
        "--rounds", "--pairs", type=count, metavar="N",
        help="rounds to measure after one warm-up; with --against, for each side (default: 5; with --rate: 1)",
    )  # fmt: skip
    group.add_argument(
        "--seed", type=count, metavar="N", help="seed of the prompts and arrival times (default: a new one each time)"
    )
    group.add_argument(
        "--timeout-s",
        type=number,
        default=600.0,
        metavar="X",
        help="seconds before an answer counts as failed (default: 600)",
    )


def add_target(group: Any) -> None:
    group.add_argument(
        "--against", metavar="TARGET",
        help="a second side, measured in alternate rounds: a URL, an engine, or settings such as "
        "engine=native,max_batch=8 (model=NAME is allowed too)",
    )  # fmt: skip
    group.add_argument("--http", action="store_true", help="run the model behind drivetrain serve, in its own process")
    group.add_argument(
        "--api", choices=("chat", "completions"), default="chat", help="send messages or plain prompts (default: chat)"
    )
    group.add_argument("--model", dest="url_model", metavar="NAME", help="for a URL: the model (default: the only one)")
    group.add_argument("--against-model", metavar="NAME", help="the same for the URL of --against")
    group.add_argument(
        "--omit", type=options.comma_list, default=(), metavar="A,B",
        help="for a URL: fields that the server does not accept, such as ignore_eos or stream_options",
    )  # fmt: skip
    group.add_argument(
        "--body",
        type=options.json_object,
        metavar="JSON",
        help="for a URL: an object with more fields for each request",
    )


def add_results(group: Any) -> None:
    group.add_argument(
        "--json", dest="json_file", type=Path, metavar="FILE", help="write everything, as one JSON object"
    )
    add_report(group)
    group.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables")
    group.add_argument("--chart", type=Path, metavar="FILE", help="write a chart, as SVG")
    group.add_argument(
        "--ceilings", action=argparse.BooleanOptionalAction, default=True,
        help="measure the machine's memory and matrix-product limits (on by default, for models on this machine)",
    )  # fmt: skip


def check(args: argparse.Namespace) -> None:
    """Refuse what no run could do, before anything is opened. Raises `InvalidSetting`."""
    if args.streams is not None and args.rate is not None:
        raise InvalidSetting("--streams and --rate cannot be combined: a loop is closed or open")
    if args.duration is not None and args.requests is not None:
        raise InvalidSetting("--duration and --requests cannot be combined: one of them ends a round")
    if args.duration is not None and args.rate is None:
        raise InvalidSetting("--duration is for an open loop; give --rate, or --requests for each stream")
    for name, low, high in _RANGES:
        options.check_range(args, name, low, high)
    if args.shared_prefix >= args.prompt_tokens and args.shared_prefix:
        raise InvalidSetting("--shared-prefix must be less than --prompt-tokens: the rest makes prompts differ")
    check_writable(args.json_file, args.report, args.markdown, args.chart)


def stream_counts(text: str) -> list[int]:
    """Raises `InvalidSetting`."""
    found = [_each("--streams", part, options.whole_number) for part in options.comma_list(text)]
    if not found or not all(1 <= count <= MAX_STREAMS for count in found):
        raise InvalidSetting(f"--streams is {text[:60]!r}; it must be numbers from 1 to {MAX_STREAMS}, such as 1,4,16")
    return list(dict.fromkeys(found))


def rates(text: str) -> list[float]:
    """Raises `InvalidSetting`."""
    found = [_each("--rate", part, options.number) for part in options.comma_list(text)]
    if not found or not all(math.isfinite(rate) and 0.001 <= rate <= MAX_RATE for rate in found):
        raise InvalidSetting(f"--rate is {text[:60]!r}; it must be numbers from 0.001 to {MAX_RATE:g}, such as 2.5")
    return list(dict.fromkeys(found))


def _each(name: str, part: str, read: Any) -> Any:
    try:
        return read(part)
    except argparse.ArgumentTypeError as exc:
        raise InvalidSetting(f"{name}: {exc}") from None
