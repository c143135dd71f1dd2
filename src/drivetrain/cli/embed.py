"""`drivetrain embed MODEL TEXT ...`: a vector for each text, as lines of JSON or as one JSON object."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from drivetrain.cli.flags import options
from drivetrain.cli.flags.prompts import STDIN, stdin_lines
from drivetrain.cli.terminal import output
from drivetrain.core.errors import InvalidSetting
from drivetrain.worker.settings import SAMPLING_NAMES

if TYPE_CHECKING:
    from drivetrain import sync

TEXTS_AT_ONCE = 64
"""Texts of stdin that are read, embedded and printed together, so that a long file needs little memory."""

_EPILOG = """examples:
  drivetrain embed ./my-encoder "a cat" "a dog"
  drivetrain embed org/encoder < texts.txt > vectors.jsonl
  drivetrain embed ./my-encoder "a cat" --json

Vectors have length 1. From stdin, each line that is not blank is a text.
"""


def add(commands: options.Commands) -> None:
    parser = commands.add_parser(
        "embed",
        help="turn texts into vectors",
        description="Print one line of JSON for each text: its index, the text and its vector.",
        usage="%(prog)s MODEL [TEXT ...] [option ...]",
        epilog=_EPILOG,
    )
    options.add_model(parser)
    parser.add_argument(
        "texts", metavar="TEXT", nargs="*", help="a text; without any, or for -, each line of stdin is one"
    )
    options.add_remote(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object, with the usage")
    options.add_settings(parser, without=SAMPLING_NAMES)
    parser.show_first("--json", "--engine", "--pooling", "--context-length", "--quiet")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    resolved = options.read_settings(args)
    if args.explain:
        return options.explain(args, resolved)
    if STDIN in args.texts and len(args.texts) > 1:
        raise InvalidSetting("- reads the texts from stdin; leave the others out")
    from_stdin = args.texts in ([], [STDIN])
    if from_stdin and (sys.stdin is None or (not args.texts and sys.stdin.isatty())):
        raise InvalidSetting("there is nothing to embed: give TEXT, or pipe in lines")
    from drivetrain.cli.start_worker import opened

    limit = min(TEXTS_AT_ONCE, resolved.settings.max_embed_inputs)
    texts = stdin_lines(resolved.settings) if from_stdin else iter(args.texts)
    first = list(islice(texts, limit))
    if not first:
        raise InvalidSetting("there is nothing to embed: stdin has no text")
    with opened(args.model, resolved.settings, quiet=args.quiet) as worker:
        found = _vectors(worker, first, texts, limit)
        if args.json:
            output.document(_document(worker, list(found)))
            return 0
        for index, (text, vector, _) in enumerate(found):
            line = {"index": index, "text": text, "embedding": vector}
            output.line(json.dumps(line, ensure_ascii=output.needs_ascii()))
    return 0


Row = tuple[str, tuple[float, ...], int]
"""A text, its vector, and the tokens that were counted with it: those of its whole batch, with the last of it."""


def _vectors(worker: sync.Worker, first: Sequence[str], more: Iterator[str], limit: int) -> Iterator[Row]:
    batch = first
    while batch:
        found = worker.embed(batch)
        counts = [*[0] * (len(batch) - 1), found.usage.prompt_tokens]
        yield from zip(batch, found.vectors, counts, strict=True)
        batch = list(islice(more, limit))


def _document(worker: sync.Worker, rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "model": worker.metadata.name,
        "pooling": worker.metadata.pooling,
        "data": [{"index": i, "text": text, "embedding": vector} for i, (text, vector, _) in enumerate(rows)],
        "usage": {"prompt_tokens": sum(count for _, _, count in rows)},
    }
