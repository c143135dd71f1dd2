"""`drivetrain bench TARGET`: load on a model or on a server, and what came of it."""

from __future__ import annotations

import argparse

from drivetrain.cli.bench.options import (
    AGAINST_KEY_VARIABLE,
    KEY_VARIABLES,
    OWN_NAMES,
    add_load,
    add_results,
    add_target,
    check,
)
from drivetrain.cli.flags import options

_EPILOG = f"""examples:
  drivetrain bench smollm2-135m --streams 1,4,16 --slots 16
  drivetrain bench ./my-model --engine native --against transformers --report compared.html
  drivetrain bench smollm2-135m --against engine=native,max_batch=16 --json compared.json
  drivetrain bench smollm2-135m --http --rate 2 --duration 60
  drivetrain bench http://127.0.0.1:8000/v1 --model my-model --against http://127.0.0.1:9000/v1

TARGET is a model or the URL of any server that speaks the OpenAI API. A model runs in this process or, with --http,
behind `drivetrain serve`. The key for a URL is read from {KEY_VARIABLES[0]} or {KEY_VARIABLES[1]}.
If both sides are URLs, the key for the second is read from {AGAINST_KEY_VARIABLE}. A key is only ever
sent to its own server. Requests are greedy and ignore the model's end tokens, so every answer is --max-tokens long.
No two prompts are alike.
"""


def add(commands: options.Commands) -> None:
    parser = commands.add_parser(
        "bench",
        help="measure how fast a model or a server answers",
        description="Put load on a model or a server; report throughput, times, failures and the machine's limits.",
        usage="%(prog)s TARGET [option ...]",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "model", metavar="TARGET", help="a model, as for the other commands, or a URL such as http://HOST:PORT/v1"
    )
    options.add_quiet(parser)
    add_load(parser.add_argument_group("load"))
    add_target(parser.add_argument_group("target"))
    add_results(parser.add_argument_group("results"))
    options.add_settings(parser, without=OWN_NAMES)
    parser.show_first(
        "--streams", "--rate", "--requests", "--max-tokens", "--against", "--http", "--json", "--report", "--engine"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    check(args)
    from drivetrain.cli.bench import run as bench_run

    return bench_run.run(args)
