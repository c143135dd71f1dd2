"""What an answer's text must be, as flags: one for each form."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from drivetrain.cli.flags.options import flag, prefixed
from drivetrain.core.constraint import ConstraintForm, ConstraintOf
from drivetrain.core.errors import InvalidRequest

_DEST = "constraint_"
_MAX_BYTES = 64 * 2**20
"""Of a file; far more than any limit on characters that makes sense."""

_NAMES: Mapping[str, ConstraintForm] = {
    "json_schema": ConstraintForm.JSON_SCHEMA,
    "json_object": ConstraintForm.JSON,
    "regex": ConstraintForm.REGEX,
    "choice": ConstraintForm.CHOICE,
    "grammar": ConstraintForm.GRAMMAR,
}


def add_constraint(group: Any) -> None:
    """At most one of them may be given."""
    one = group.add_mutually_exclusive_group()
    one.add_argument(
        "--json-schema", type=file_text, metavar="FILE", help="the text is JSON of this schema", **_to("json_schema")
    )
    one.add_argument(
        "--json-object", action="store_const", const=True, help="the text is a JSON object", **_to("json_object")
    )
    one.add_argument("--regex", metavar="PATTERN", help="the whole text matches this regex", **_to("regex"))
    one.add_argument(
        "--choice",
        action="append",
        metavar="TEXT",
        help="the text is this one; repeat for more to choose from",
        **_to("choice"),
    )
    one.add_argument(
        "--grammar",
        type=file_text,
        metavar="FILE",
        help="the text follows this grammar, in GBNF or Lark",
        **_to("grammar"),
    )


def read_constraint(args: argparse.Namespace) -> dict[str, Any]:
    """The parameter `constraint`, if one of the flags was given. Raises `InvalidRequest`, naming the flag."""
    for name, value in prefixed(args, _DEST).items():
        ConstraintOf(_NAMES[name]).judge(flag(name), value)
        return {"constraint": {str(_NAMES[name]): value}}
    return {}


@contextmanager
def naming_its_flag(args: argparse.Namespace) -> Iterator[None]:
    """Errors about `constraint` speak of the flag that was given."""
    try:
        yield
    except InvalidRequest as exc:
        given = next(iter(prefixed(args, _DEST)), None)
        if given is None or exc.param != "constraint":
            raise
        exc.message = exc.message.replace("constraint", flag(given), 1)
        raise


def _to(name: str) -> dict[str, Any]:
    return {"dest": _DEST + name, "default": None}


def file_text(path: str) -> str:
    """For argparse: raises `ArgumentTypeError` for a file that cannot be read."""
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as exc:
        raise argparse.ArgumentTypeError(f"{path} cannot be read: {exc.strerror or type(exc).__name__}") from None
    if len(data) > _MAX_BYTES:
        raise argparse.ArgumentTypeError(f"{path} has more than {_MAX_BYTES} bytes, which is the limit")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as exc:
        raise argparse.ArgumentTypeError(f"{path} is not UTF-8 text (at byte {exc.start})") from None
