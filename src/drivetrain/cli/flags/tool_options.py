"""Tools as flags: a file with their list, and which of them to call."""

from __future__ import annotations

import argparse
import json
from typing import Any

from drivetrain.cli.flags.constraint_options import file_text
from drivetrain.cli.flags.options import json_object
from drivetrain.core.tools import ToolMode


def tools_file(path: str) -> list[Any]:
    """The list in a JSON file. What is in it is judged with the request."""
    try:
        value = json.loads(file_text(path))
    except (ValueError, RecursionError) as exc:
        raise argparse.ArgumentTypeError(f"{path} is not JSON: {exc}") from None
    if not isinstance(value, list):
        raise argparse.ArgumentTypeError(f"{path} must hold a JSON list of tools")
    return value


def tool_choice(text: str) -> str | dict[str, Any]:
    """A mode, the name of a function, or an object as the OpenAI API has it."""
    if text.startswith("{"):
        return json_object(text)
    return text if text in tuple(ToolMode) else {"type": "function", "function": {"name": text}}
