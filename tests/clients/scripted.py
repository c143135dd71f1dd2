"""Servers whose model says a script, in our environment: what no small model says on request. Ends with its input."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence

from drivetrain.core.engine import EngineRequest
from drivetrain.core.errors import EngineFailed
from server.serving import fake, serving, thoughtful

CALLS = 'Let me see.\n<tool_call>\n{"name": "Alarm", "arguments": {"floor": 3, "loud": true}}\n</tool_call>'

WRITERS = ("Write", "write", "write_file", "exec_command")
READERS = ("Read", "read", "read_file", "exec_command")
"""Names of the tools of agents, of which each has one."""

_TASK = re.compile(r"Write the word heron into the file (\S+) and read it\.")
_LATER = "What did the file say?"


def agent(request: EngineRequest) -> Sequence[int]:
    """Who writes a file when asked to, reads it again, and tells what it says."""
    ids = bytes(token_id for token_id in request.prompt_ids if token_id < 256)
    return list(_agent(ids.decode("utf-8", "replace")).encode())


def _agent(prompt: str) -> str:
    tools = dict(_tools(prompt))
    task = _TASK.search(prompt)
    if task is None or not tools:
        return "A short answer."
    rest = prompt[task.end() :]
    results = rest.split("<tool_response>")[1:]
    if _LATER in rest:
        return f"It said heron. That were {len(results)} results."
    if not results:
        return _call(tools, WRITERS, path=task[1], content="heron", command=f"printf heron > {task[1]}")
    if len(results) == 1:
        return _call(tools, READERS, path=task[1], command=f"cat {task[1]}")
    return "The file says heron." if "heron" in results[-1] else "The file cannot be read."


def _tools(prompt: str) -> list[tuple[str, list[str]]]:
    """The names of the functions that the prompt offers, and of their parameters."""
    found = []
    for line in prompt.splitlines():
        if line.startswith("{") and '"parameters"' in line:
            function = json.loads(line)
            function = function.get("function", function)
            found.append((function["name"], list(function["parameters"].get("properties", {}))))
    return found


def _call(tools: dict[str, list[str]], names: Sequence[str], **values: str) -> str:
    name = next(name for name in names if name in tools)
    meanings = {"file_path": "path", "filePath": "path", "filepath": "path", "content": "content", "cmd": "command"}
    arguments = {
        parameter: values[meanings[parameter]]
        for parameter in tools[name]  # in the order in which a grammar wants them
        if meanings.get(parameter) in values
    }
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


if __name__ == "__main__":
    with (
        serving(thoughtful(text="<think>\nEasy.\n</think>\n\n" + CALLS, ids_per_step=3)) as reasons,
        serving(fake(text="one two three four", fault=EngineFailed("it broke"), fault_at_step=5)) as fails,
        serving(fake(reply=agent, context_length=1_000_000)) as works,
    ):
        named = {"reasons": reasons, "fails": fails, "agent": works}
        print(json.dumps({name: [served.base, served.model] for name, served in named.items()}), flush=True)
        sys.stdin.read()
