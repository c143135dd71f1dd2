"""`drivetrain generate MODEL`: one answer on stdout, as it comes or as one JSON object."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drivetrain.cli.flags import options
from drivetrain.cli.flags.constraint_options import naming_its_flag
from drivetrain.cli.flags.prompts import add_input, add_text, read_input
from drivetrain.cli.flags.request_options import add_request, check_early, read_request
from drivetrain.cli.terminal import output
from drivetrain.cli.terminal.report_files import check_writable, write_json
from drivetrain.cli.terminal.values import plain
from drivetrain.core import sealing
from drivetrain.core.errors import InvalidSetting

if TYPE_CHECKING:
    from drivetrain import sync
    from drivetrain.core.results import Result
    from drivetrain.worker.sources import Resolved

_EPILOG = """examples:
  drivetrain generate smollm2-135m "Write a haiku." --temperature 0 --max-tokens 60
  drivetrain generate ./my-model --system "Answer in French." "Good morning" --max-tokens 50 --stop END
  drivetrain generate org/name --prompt "Once upon a time" --seed 7 --n 3 --json
  drivetrain generate org/vision-model "What is this?" --image cat.png
  drivetrain generate smollm2-135m "Is water wet?" --choice yes --choice no
  drivetrain generate smollm2-135m "Describe a door in JSON." --json-schema door.json
  drivetrain generate org/model "What is the weather in Paris?" --tools tools.json --tool-choice required
  drivetrain generate org/reasoner "Is 391 prime?" --max-reasoning-tokens 500
  drivetrain generate org/coder --prompt "def add(a, b): return " --suffix "  # their sum"
  drivetrain generate smollm2-135m < question.txt
"""


def add(commands: options.Commands) -> None:
    parser = commands.add_parser(
        "generate",
        help="print one answer, as text or as JSON",
        description="Print the answer to one prompt or chat, and exit. Tool calls come last, each as a line of JSON. "
        "Reasoning is shown on stderr if that is a terminal.",
        usage="%(prog)s MODEL [TEXT] [option ...]",
        epilog=_EPILOG,
    )
    add_options(parser)
    parser.set_defaults(run=run)


def add_options(parser: Any) -> None:
    """Those of one answer; `run` has them too."""
    options.add_model(parser)
    add_text(parser)
    options.add_remote(parser)
    add_input(parser)
    parser.add_argument("--json", action="store_true", help="print the whole result as one JSON object")
    parser.add_argument(
        "--receipt", type=Path, metavar="FILE", help="write a receipt of what made the answer, for `drivetrain replay`"
    )
    parser.add_argument(
        "--stream",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="print the answer as it comes (on by default when one choice is printed as text)",
    )
    add_request(parser)
    options.add_settings(parser, without=options.shadowed())
    parser.show_first(
        "--system", "--image", "--prompt", "--max-tokens", "--temperature", "--seed", "--n", "--json-schema", "--json",
        "--engine",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    resolved = options.read_settings(args)
    parameters = read_request(args)
    if args.explain:
        return _explain(args, resolved, parameters)
    streams = _streams(args, parameters)
    check_writable(args.receipt)
    request = read_input(args, resolved.settings) | parameters
    if args.receipt is not None:
        request["receipt"] = "full"
    if not request.keys() & {"messages", "prompt", "prompt_token_ids"}:
        raise InvalidSetting("there is nothing to answer: give TEXT, --message, --prompt or a file")
    with naming_its_flag(args):
        check_early(request, resolved.settings)
    from drivetrain.cli.start_worker import opened

    with naming_its_flag(args), opened(args.model, resolved.settings, quiet=args.quiet) as worker:
        if streams:
            result = _print_stream(worker, request)
        else:
            result = worker.generate(**request)
            _print_result(result, as_json=args.json)
        if not args.json:
            _tell_if_cut(worker, request, result)
    if args.receipt is not None and result.receipt is not None:
        write_json(args.receipt, sealing.document(result.receipt))
    return 0


def _tell_if_cut(worker: sync.Worker, request: dict[str, Any], result: Result) -> None:
    from drivetrain.cli.terminal.answers import cut_off

    length = worker.capabilities.context_length
    if said := cut_off(result, length, asked=request.get("max_tokens"), more="--max-tokens N allows more"):
        output.note(said)


def _streams(args: argparse.Namespace, parameters: dict[str, Any]) -> bool:
    if args.stream and args.json:
        raise InvalidSetting("--stream and --json cannot be combined: --json prints one object at the end")
    if args.stream and parameters.get("n", 1) > 1:
        raise InvalidSetting("--stream prints one choice; leave it out, or leave out --n")
    if args.stream is not None:
        return bool(args.stream)
    return not args.json and parameters.get("n", 1) == 1


def _print_stream(worker: sync.Worker, request: dict[str, Any]) -> Result:
    from drivetrain.cli.terminal.answers import AnswerPrinter
    from drivetrain.cli.terminal.logprobs import print_logprobs
    from drivetrain.core.events import Delta

    printer = AnswerPrinter()
    result: Result | None = None
    try:
        with worker.stream(**request) as stream:
            for event in stream:
                if isinstance(event, Delta):
                    printer.take(event)
        result = stream.result()
    finally:
        if result is not None:
            printer.finish()
        elif output.on_terminal():  # an error gets a line of its own
            output.line()
    print_logprobs(result.choices)
    return result


def _print_result(result: Result, *, as_json: bool) -> None:
    from drivetrain.cli.terminal.answers import print_choice
    from drivetrain.cli.terminal.logprobs import print_logprobs

    if as_json:
        output.document(result_document(result))
        return
    for choice in result.choices:
        if len(result.choices) > 1:
            output.line(f"--- {choice.index}")
        print_choice(choice)
    print_logprobs(result.choices)


def result_document(result: Result) -> dict[str, Any]:
    """The whole result. `logprobs` is there if requested, and `message` if there is more than text; `matched_stop` is a
    string, an id or a list of ids."""
    document = plain(result)
    for choice in document["choices"]:
        for name in ("logprobs", "message"):
            if choice[name] is None:
                del choice[name]
    del document["receipt"]
    if result.receipt is not None:
        document["receipt"] = sealing.document(result.receipt)
    document["id"] = document.pop("request_id")
    document["usage"]["total_tokens"] = result.usage.total_tokens
    first = ("id", "model", "choices", "usage", "metrics")
    return {key: document[key] for key in (*first, *sorted(document.keys() - set(first)))}


def _explain(args: argparse.Namespace, resolved: Resolved, parameters: dict[str, Any]) -> int:
    """The settings, then the request's own parameters, which override them."""
    if args.json:
        given = {name: {"value": plain(value), "origin": "flag"} for name, value in parameters.items()}
        output.document({"settings": options.explained(resolved), "request": given})
        return 0
    options.explain(args, resolved)
    for name, value in parameters.items():
        output.line(f"request {name}  {value!r}  (flag)")
    return 0
