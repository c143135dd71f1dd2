"""`drivetrain pull`, `list` and `rm`: the models on this disk."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from drivetrain.cli.flags import options
from drivetrain.cli.terminal import output
from drivetrain.cli.terminal.values import plain
from drivetrain.core.errors import InvalidSetting, ModelNotFound

_PULL = """examples:
  drivetrain pull smollm2-135m
  drivetrain pull llama3.2
  drivetrain pull HuggingFaceTB/SmolLM2-360M-Instruct
  drivetrain pull bartowski/SmolLM2-135M-Instruct-GGUF:Q4_K_M

An interrupted pull continues where it stopped. DRIVETRAIN_HOME names the folder
of the store. drivetrain list --known shows the short names.
"""
_LIST = """examples:
  drivetrain list
  drivetrain list --known
  drivetrain list --known --json

--known lists the short names instead: what each is, and where it comes from.
--json adds the repository, its commit, the files, their digests and sampling.
"""
_REMOVE = """examples:
  drivetrain rm smollm2-135m
  drivetrain rm --yes smollm2-135m HuggingFaceTB/SmolLM2-360M-Instruct
"""


def add(commands: options.Commands) -> None:
    pull = _command(commands, "pull", "download a model into the store", _PULL)
    options.add_model(pull)
    pull.add_argument("--json", action="store_true", help="print the pulled model as JSON")
    pull.set_defaults(run=run_pull)
    listing = _command(commands, "list", "list the models in the store", _LIST, aliases=("ls",))
    listing.add_argument("--known", action="store_true", help="list the short names that can be pulled")
    listing.add_argument("--json", action="store_true", help="print JSON")
    listing.set_defaults(run=run_list)
    remove = _command(commands, "rm", "delete models from the store", _REMOVE)
    remove.add_argument("names", metavar="NAME", nargs="+", help="a name from `drivetrain list`")
    remove.add_argument("-y", "--yes", action="store_true", help="do not ask for confirmation")
    remove.set_defaults(run=run_remove)


def run_pull(args: argparse.Namespace) -> int:
    from drivetrain import assembly
    from drivetrain.cli.terminal.progress import progress_line
    from drivetrain.store.store import Store

    if args.model == "fake":
        raise ModelNotFound("fake has no weights: there is nothing to pull")
    with progress_line(quiet=args.quiet) as progress:
        store = Store()
        model = store.pull(args.model, progress)
        assembly.prepare(model, store, progress)
    if args.json:
        output.document(plain(model))
    elif model.source == "local":
        output.line(f"{model.name} is a local {model.format.value} model and is used in place")
    else:
        output.line(f"{model.name} is in the store: {model.format.value} from {model.source}")
    return 0


def run_list(args: argparse.Namespace) -> int:
    from drivetrain.store.display import size
    from drivetrain.store.store import Store

    if args.known:
        return _list_known(args)
    models = Store().list()
    if args.json:
        output.document(plain(models))
        return 0
    if not models:
        output.note(
            "no model has been pulled yet; drivetrain pull smollm2-135m fetches a small one, and "
            "drivetrain list --known shows others"
        )
        return 0
    rows = [
        (model.name, size(model.size_bytes), model.format.value, model.source, model.pulled_at[:10], _remark(model))
        for model in models
    ]
    output.line(output.table(("NAME", "SIZE", "FORMAT", "SOURCE", "PULLED", ""), rows))
    return 0


def _list_known(args: argparse.Namespace) -> int:
    from drivetrain.store.catalogue import CATALOGUE
    from drivetrain.store.display import size

    known = [model for name, model in CATALOGUE.items() if ":" not in name]
    if args.json:
        output.document([{**plain(model), "size_bytes": model.size_bytes, "source": model.source} for model in known])
        return 0
    rows = [
        (
            f"{model.name} *" if model.alias else model.name,
            size(model.size_bytes),
            f"{model.context:,}" if model.context else "-",
            model.licence,
            model.purpose,
            model.publisher,
        )
        for model in known
    ]
    output.line(output.table(("NAME", "SIZE", "CONTEXT", "LICENCE", "FOR", "FROM"), rows))
    example = next(model for model in known if model.alias)
    output.note(f"* is what a family's name alone means: {example.alias} is {example.name}")
    return 0


def run_remove(args: argparse.Namespace) -> int:
    from drivetrain.store.display import size
    from drivetrain.store.store import Store

    store = Store()
    for name in args.names:
        store.folder_of(name)  # what cannot be deleted is told before anything is asked or done
    if not args.yes:
        if not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()):
            raise InvalidSetting("rm asks before it deletes, but there is no terminal to ask at: pass --yes")
        if not _confirmed(", ".join(args.names)):
            output.note("nothing was deleted")
            return 1
    for name in args.names:
        freed = store.remove(name)
        output.line(f"deleted {name} and freed {size(freed)}")
    return 0


def _command(
    commands: options.Commands, name: str, what: str, epilog: str, aliases: Sequence[str] = ()
) -> argparse.ArgumentParser:
    description = what[0].upper() + what[1:] + "."
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=what, description=description, epilog=epilog, aliases=aliases
    )
    return parser


def _confirmed(names: str) -> bool:
    sys.stderr.write(f"delete {names}? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _remark(model: Any) -> str:
    from drivetrain.store.display import size

    if model.damage is not None:
        return f"damaged: {model.damage}"
    return f"and {size(model.derived_bytes)} made from it" if model.derived_bytes else ""
