"""Executes the Python blocks of a page, one after the other, as if they were pasted into `python -m asyncio`.

It runs in the reader's environment. Each line of stdin is a block as JSON; each line of the answer says how it went.
Behind an expression, a comment that is a literal is its value; behind a `print`, a comment is what it prints.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import io
import json
import re
import sys
import tokenize
import traceback
from typing import Any

_LITERAL = re.compile(r"['\"]|\d|None\b|True\b|False\b|[A-Z]\w*\.[A-Z_]+\b")
FLAG = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


def comments_of(source: str) -> dict[int, str]:
    """By line."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}


def run(source: str, place: str, names: dict[str, Any], loop: asyncio.AbstractEventLoop) -> None:
    said = comments_of(source)
    for statement in ast.parse(source).body:
        comment = said.get(statement.end_lineno or 0, "")
        printed = io.StringIO()
        if isinstance(statement, ast.Expr):
            code = compile(ast.Expression(statement.value), place, "eval", FLAG, dont_inherit=True)
        else:
            code = compile(ast.Module([statement], []), place, "exec", FLAG, dont_inherit=True)
        with contextlib.redirect_stdout(printed):
            value = eval(code, names)
            if asyncio.iscoroutine(value):
                value = loop.run_until_complete(value)
        sys.stderr.write(printed.getvalue())
        if isinstance(statement, ast.Expr) and comment:
            check(statement, value, printed.getvalue(), comment)


def check(statement: ast.Expr, value: Any, printed: str, comment: str) -> None:
    call = statement.value
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "print":
        assert printed.strip() == comment, f"it printed {printed.strip()!r}, not {comment!r}"
    elif _LITERAL.match(comment):
        assert comment.startswith((repr(value), f"{type(value).__name__}.{getattr(value, 'name', '')}")), (
            f"{ast.unparse(call)} is {value!r}, not {comment}"
        )


def main() -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    loop = asyncio.new_event_loop()
    answers = sys.stdout
    for line in sys.stdin:
        block = json.loads(line)
        try:
            run(block["text"], block["place"], names, loop)
            problem = ""
        except BaseException:  # noqa: BLE001 - the test tells it
            problem = traceback.format_exc()
        answers.write(json.dumps(problem) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
