"""`drivetrain run MODEL [TEXT]`: one answer if there is something to answer, otherwise a chat."""

from __future__ import annotations

import argparse
import sys

from drivetrain.cli import generate
from drivetrain.cli.chat import command as chat
from drivetrain.cli.flags import options
from drivetrain.cli.flags.prompts import has_input, only_system
from drivetrain.cli.flags.request_options import refuse_in_chat
from drivetrain.core.errors import InvalidSetting

_EPILOG = """examples:
  drivetrain run smollm2-135m
  drivetrain run smollm2-135m "Write a haiku about the sea."
  drivetrain run smollm2-135m --system "Answer in one word." --temperature 0
  drivetrain run smollm2-135m < question.txt

With TEXT, or with text on stdin, this is `drivetrain generate`; without, it is `drivetrain chat`.
"""


def add(commands: options.Commands) -> None:
    parser = commands.add_parser(
        "run",
        help="chat with a model, or have one message answered",
        description="Answer one message and exit, or without one, begin a chat.",
        usage="%(prog)s MODEL [TEXT] [option ...]",
        epilog=_EPILOG,
    )
    generate.add_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    piped = sys.stdin is not None and not sys.stdin.isatty()
    if has_input(args) or piped:
        return generate.run(args)
    one_answer = {"--json": args.json, "--stream": args.stream is not None, "--image": bool(args.image)}
    for name, given in {**one_answer, "--receipt": args.receipt is not None}.items():
        if given:
            raise InvalidSetting(f"{name} is for one message: give TEXT too, or leave it out for a chat")
    refuse_in_chat(args)
    args.system = only_system(args)
    return chat.run(args)
