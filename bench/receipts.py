"""Receipts of a mixed load on one model and engine, a line each, for `drivetrain replay`.

Many requests at a time, so that answers are made in company: plain and sampled, with seeds and without, several
choices, stops, penalties where they are honoured, schemas, regexes, choices, tools, and pictures where the model
sees them.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import itertools
import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import Image

from drivetrain import Worker
from drivetrain.core.errors import InvalidRequest
from drivetrain.core.sealing import document

PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "Water boils at 100 degrees because",
    "def fibonacci(n):\n    ",
    "1, 1, 2, 3, 5, 8, 13,",
    "Der schnellste Weg von Berlin nach München ist",
    "Question: Why is the sky blue?\nAnswer:",
)
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome", "Oslo"]}, "days": {"type": "integer", "maximum": 9}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}


def kinds(number: int, prompt: str) -> dict[str, dict[str, Any]]:
    """Requests of every kind, by its name. `number` makes each one different."""
    chat = [{"role": "user", "content": f"{number}. {prompt}"}]
    seen = [{"role": "user", "content": [_picture(number), {"type": "text", "text": "What is this?"}]}]
    text = f"({number}) {prompt}"
    return {
        "greedy": {"prompt": text, "temperature": 0, "max_tokens": 8},
        "sampled": {"prompt": text, "temperature": 1.0, "max_tokens": 8},
        "seeded": {"prompt": text, "temperature": 0.7, "top_p": 0.9, "seed": number, "max_tokens": 8},
        "chat": {"messages": chat, "max_tokens": 8},
        "choices": {"prompt": text, "temperature": 1.0, "top_k": 50, "n": 2, "max_tokens": 6},
        "stopped": {"messages": chat, "temperature": 1.0, "min_p": 0.05, "stop": [".", ","], "max_tokens": 12},
        "penalized": {"prompt": text, "temperature": 0.8, "presence_penalty": 0.5, "max_tokens": 8},
        "repeating": {"prompt": text, "temperature": 0, "repetition_penalty": 1.3, "max_tokens": 8},
        "schema": {"messages": chat, "temperature": 1.0, "constraint": {"json_schema": SCHEMA}, "max_tokens": 24},
        "regex": {"prompt": text, "temperature": 1.0, "constraint": {"regex": "[a-z ]{4,16}"}, "max_tokens": 8},
        "choice": {"prompt": text, "temperature": 1.0, "constraint": {"choice": ["yes", "no", "maybe"]}},
        "tools": {"messages": chat, "temperature": 1.0, "tools": [TOOL], "tool_choice": "required", "max_tokens": 40},
        "picture": {"messages": seen, "temperature": 1.0, "max_tokens": 8},
    }


def _picture(number: int) -> dict[str, Any]:
    """Of one colour, another for each number."""
    file = io.BytesIO()
    Image.new("RGB", (56, 56), (number % 256, 255 - number % 256, number // 4 % 256)).save(file, "PNG")
    url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    return {"type": "image_url", "image_url": {"url": url}}


def load(number: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """So many requests, the kinds and the prompts in turns."""
    names = itertools.cycle(kinds(0, ""))
    for place in range(number):
        name = next(names)
        yield name, {**kinds(place, PROMPTS[place % len(PROMPTS)])[name], "receipt": "full", "request_id": f"r{place}"}


async def make(worker: Any, number: int, out: Path) -> dict[str, Any]:
    places, began = asyncio.Semaphore(worker.capabilities.max_concurrency), time.monotonic()
    made, refused = Counter[str](), Counter[str]()
    with out.open("w", encoding="utf-8") as file:

        async def one(name: str, request: dict[str, Any]) -> None:
            async with places:
                try:
                    result = await worker.generate(**request)
                except InvalidRequest:  # this engine does not honour it
                    refused[name] += 1
                    return
            made[name] += 1
            file.write(json.dumps(document(result.receipt), ensure_ascii=False) + "\n")

        async with asyncio.TaskGroup() as group:
            for name, request in load(number):
                group.create_task(one(name, request))
    seconds = time.monotonic() - began
    return {"receipts": sum(made.values()), "seconds": round(seconds, 1), "made": made, "refused": refused}


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--number", type=int, default=1000)
    parser.add_argument("--context-length", type=int, default=2048)
    parser.add_argument("--out", type=Path, default=Path("receipts.jsonl"))
    args = parser.parse_args()
    async with Worker.open(args.model, args.engine, context_length=args.context_length) as worker:
        print(json.dumps({"engine": worker.metadata.engine, **await make(worker, args.number, args.out)}))


if __name__ == "__main__":
    asyncio.run(main())
