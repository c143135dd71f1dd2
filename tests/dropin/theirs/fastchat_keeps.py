"""Runs in FastChat's environment: asks a worker for the templates of models, as its API server does.

Arguments: the worker's URL and the models. To stdout for each the name of its template, or how that failed.
"""

import asyncio
import json
import os
import sys

os.environ["LOGDIR"] = ""  # it would write its log to where it runs

from fastchat.serve import openai_api_server as server  # type: ignore[import-not-found] # not in our environment


async def template(url: str, model: str) -> str:
    try:
        return str((await server.get_conv(model, url))["name"])
    except Exception as exc:  # noqa: BLE001 - what it is, is the answer
        return type(exc).__name__


async def main(url: str, *models: str) -> list[str]:
    return [await template(url, model) for model in models]


found = asyncio.run(main(*sys.argv[1:]))
os.write(1, json.dumps(found).encode())  # `sys.stdout` is their log by now
