"""How many schemas of JSONSchemaBench are honoured, and what an engine makes of them.

Takes the folder `maskbench/data` of the public repository guidance-ai/jsonschemabench, which is not part of ours. A
fixed sample is compiled as for a request, and the instances that come with each schema are held to it, token by token.
With `--answers`, the model is then asked for an answer to each schema that is honoured, and every finished answer is
judged by a validator. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema_rs

from drivetrain import Worker
from drivetrain.core.constraint import Constraint, ConstraintForm, constraint
from drivetrain.core.errors import DrivetrainError, InvalidRequest
from drivetrain.core.prompt import Prompt, Segment
from drivetrain.core.results import FinishReason
from drivetrain.core.tokenizer import Tokenizer
from drivetrain.text.grammar.compile import GrammarCompiler
from drivetrain.text.grammar.trial import Trial

AT_ONCE = 8


def sample(folder: Path, number: int, seed: int) -> list[tuple[str, dict[str, Any]]]:
    paths = sorted(folder.glob("*.json"))
    chosen = sorted(random.Random(seed).sample(paths, min(number, len(paths))))
    return [(path.stem, json.loads(path.read_text())) for path in chosen]


def is_valid(schema: Any, value: Any) -> bool:
    return jsonschema_rs.validator_for(schema, validate_formats=True).is_valid(value)


def spelled(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


class Grammars:
    """Each schema compiled, and its instances held to it."""

    def __init__(self, tokenizer: Tokenizer, ends: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._trial = Trial()
        self._compiler = GrammarCompiler(tokenizer, ends, self._trial)
        self.honoured: dict[str, Constraint] = {}
        self.refused: dict[str, str] = {}
        self.compile_s: list[float] = []
        self.valid_refused: list[str] = []
        self.invalid_accepted: list[str] = []
        self.num_valid = self.num_invalid = 0

    def close(self) -> None:
        self._trial.close()

    def take(self, name: str, case: dict[str, Any]) -> None:
        began = time.perf_counter()
        try:
            one = constraint(ConstraintForm.JSON_SCHEMA, case["schema"], name="constraint")
            self._compiler.compile(one)
        except InvalidRequest as exc:
            self.refused[name] = exc.message
            return
        finally:
            self.compile_s.append(time.perf_counter() - began)
        self.honoured[name] = one
        for number, test in enumerate(case["tests"]):
            accepted = self._accepts(one, spelled(test["data"]))
            place = f"{name}[{number}] {test['description']}"
            if test["valid"]:
                self.num_valid += 1
                self.valid_refused += [] if accepted else [place]
            else:
                self.num_invalid += 1
                self.invalid_accepted += [place] if accepted else []

    def _accepts(self, one: Constraint, text: str) -> bool:
        matcher = self._compiler.compile(one).matcher()
        ids = self._tokenizer.encode(Prompt((Segment(text, literal=True),)))
        return matcher.take(ids) and matcher.may_end

    def report(self) -> dict[str, Any]:
        times = sorted(self.compile_s)
        return {
            "honoured": len(self.honoured),
            "refused": len(self.refused),
            "compile_s": {"median": statistics.median(times), "p99": times[len(times) * 99 // 100], "most": times[-1]},
            "reasons": dict(Counter(map(_reason, self.refused.values())).most_common()),
            "valid": self.num_valid,
            "valid_refused": self.valid_refused,
            "invalid": self.num_invalid,
            "invalid_accepted": self.invalid_accepted,
        }


def _reason(message: str) -> str:
    return message.removeprefix("constraint cannot be honoured: ")[:60]


async def answers(
    worker: Any, cases: dict[str, dict[str, Any]], honoured: dict[str, Constraint], max_tokens: int
) -> Any:
    """Every answer at temperature 1, some at once."""
    gate = asyncio.Semaphore(AT_ONCE)
    outcomes: Counter[str] = Counter()
    faults: dict[str, str] = {}
    at_once = asyncio.get_running_loop().time()

    async def one(name: str, number: int) -> None:
        async with gate:
            try:
                result = await worker.generate(
                    messages=[{"role": "user", "content": "Give me an example of " + cases[name]["description"]}],
                    constraint=honoured[name], temperature=1.0, seed=number, max_tokens=max_tokens,
                )  # fmt: skip
            except DrivetrainError as exc:
                outcomes[f"error: {exc.code}"] += 1
                faults[name] = exc.message
                return
        choice = result.choices[0]
        if choice.finish_reason is not FinishReason.STOP:
            outcomes["cut by max_tokens"] += 1
            return
        try:
            good = is_valid(cases[name]["schema"], json.loads(choice.text))
        except ValueError as exc:
            good, faults[name] = False, str(exc)[:200]
        outcomes["valid" if good else "INVALID"] += 1
        if not good:
            faults.setdefault(name, choice.text[:300])

    await asyncio.gather(*(one(name, number) for number, name in enumerate(honoured)))
    return {"outcomes": dict(outcomes), "faults": faults, "seconds": asyncio.get_running_loop().time() - at_once}


async def measured(args: argparse.Namespace) -> dict[str, Any]:
    picked = sample(args.folder, args.number, args.seed)
    async with Worker.open(args.model, engine=args.engine) as worker:
        info = worker.info
        grammars = Grammars(info.tokenizer, info.eos_ids)
        try:
            for name, case in picked:
                grammars.take(name, case)
        finally:
            grammars.close()
        report: dict[str, Any] = {"schemas": len(picked), "seed": args.seed, "engine": info.engine, **grammars.report()}
        if args.answers:
            report["answers"] = await answers(worker, dict(picked), grammars.honoured, args.max_tokens)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="maskbench/data of guidance-ai/jsonschemabench")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--number", type=int, default=300, help="schemas in the sample")
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--answers", action="store_true", help="ask the model for an answer to each")
    parser.add_argument("--max-tokens", type=int, default=400)
    print(json.dumps(asyncio.run(measured(parser.parse_args())), indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
