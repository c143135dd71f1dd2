"""`docs/clients.md`: what a run of these tests has shown, as a table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

ENGINES = ("llamacpp", "native")
SCRIPTED = "scripted"
"""In place of an engine: a server whose model says a script."""

Shown = dict[tuple[str, str], dict[str, bool]]
"""By client and ability, the engines: whether all its tests passed there."""

HEAD = """# Clients

Official clients, unchanged, at our server: `make test-clients` runs them with SmolLM2-135M on two
engines, and makes this table. [Other APIs](guides/other-apis.md) says what is special about
`/v1/responses` and `/v1/messages`, and [reranking](guides/reranking.md) about Cohere's API.
{scripted}
| client | version | ability | {engines} |
|---|---|---|{rules}|
"""
_SCRIPTED = """
Rows marked *scripted* are shown with a model that says a script, because a model as small does not
say it on request.
"""


def table(shown: Shown) -> str:
    rows = [
        f"| {client} | {version_of(client)} | {ability} | {_cells(told)} |"
        for (client, ability), told in sorted(shown.items())
    ]
    scripted = _SCRIPTED if any(SCRIPTED in told for told in shown.values()) else ""
    rules = "|".join("---" for _ in ENGINES)
    return (
        HEAD.format(engines=" | ".join(f"`{name}`" for name in ENGINES), rules=rules, scripted=scripted)
        + "\n".join(rows)
        + "\n"
    )


def version_of(client: str) -> str:
    from_npm = json.loads((Path(__file__).parent / "npm" / "package.json").read_text())["dependencies"]
    if client in from_npm:
        return str(from_npm[client])
    if client == "guidellm":
        lines = (Path(__file__).parents[2] / "constraints-guidellm.txt").read_text().splitlines()
        return next(line.removeprefix("guidellm==") for line in lines if line.startswith("guidellm=="))
    return version({"Open Responses": "openresponses-types", "pydantic-ai": "pydantic-ai-slim"}.get(client, client))


def _cells(told: Mapping[str, bool]) -> str:
    if SCRIPTED in told:
        return " | ".join("*scripted*" if told[SCRIPTED] else "no" for _ in ENGINES)
    return " | ".join("yes" if told.get(name) else "no" for name in ENGINES)
