"""What `serve` prints when it is ready: lines that work when pasted."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drivetrain.cli.flags.keys import KEY_VARIABLE, key_in_shell
from drivetrain.cli.terminal import output

if TYPE_CHECKING:
    from drivetrain.core.capabilities import Capabilities
    from drivetrain.core.worker import WorkerPort
    from drivetrain.server.settings import ServerSettings


def greet(
    headline: str,
    workers: Mapping[str, WorkerPort],
    address: str,
    key_file: Path | None,
    server: ServerSettings,
    *,
    several: bool,
) -> None:
    """The headline and the ways in to the first loaded model on stdout, the notes of the engines on stderr.

    With `several` models, of which some may not be loaded, a note names its model.
    """
    for name, worker in workers.items():
        for note in worker.metadata.notes:
            output.note(f"note: {name}: {note}" if several else f"note: {note}")
    output.line(headline)
    for name, worker in list(workers.items())[:1]:
        output.line(_ways_in(address, name, worker.capabilities, key_file, server))
    if not workers:
        output.line(_ways({"The page": f"{address}/", "The API": f"{address}/v1"}))


def _ways_in(
    address: str, model: str, capabilities: Capabilities, key_file: Path | None, server: ServerSettings
) -> str:
    """The page, and a curl and a Python line that work when pasted."""
    key = "none"
    if server.api_keys:
        key = key_in_shell(key_file, KEY_VARIABLE)
    path, body, call = _example(model, capabilities)
    header = f' -H "authorization: Bearer {key}"' if server.api_keys else ""
    curl = f"curl {address}/v1/{path}{header} -H 'content-type: application/json' -d {shlex.quote(json.dumps(body))}"
    code = f'from openai import OpenAI; print(OpenAI(base_url="{address}/v1").{call})'
    python = f'OPENAI_API_KEY="{key}" python3 -c {shlex.quote(code)}'
    ways = {"The page": f"{address}/", "In a shell": curl, "In Python (pip install openai)": python}
    return _ways(ways)


def _ways(ways: Mapping[str, str]) -> str:
    return "".join(f"\n{way}:\n  {line}\n" for way, line in ways.items())


def _example(model: str, capabilities: Capabilities) -> tuple[str, dict[str, Any], str]:
    """For the curl line the path and the body, for the Python line the call."""
    name = json.dumps(model)
    if not capabilities.generation and not capabilities.embeddings:
        body = {"model": model, "query": "What is red?", "documents": ["Grass is green.", "Blood is red."]}
        return "rerank", body, f'post("/rerank", body={json.dumps(body)}, cast_to=dict)'
    if not capabilities.generation:
        call = f'embeddings.create(model={name}, input="Hello").data[0].embedding'
        return "embeddings", {"model": model, "input": "Hello"}, call
    if not capabilities.chat:
        call = f'completions.create(model={name}, prompt="Once upon a time").choices[0].text'
        return "completions", {"model": model, "prompt": "Once upon a time"}, call
    messages = [{"role": "user", "content": "Say hello in five words."}]
    call = f"chat.completions.create(model={name}, messages={json.dumps(messages)}).choices[0].message.content"
    return "chat/completions", {"model": model, "messages": messages}, call
