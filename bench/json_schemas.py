"""How many schemas of JSONSchemaBench are honoured, and what an engine makes of them.

Takes the folder `maskbench/data` of the public repository guidance-ai/jsonschemabench, which is not part of ours. A
fixed sample is compiled as for a request. The instances that come with each schema, mutations of them and random
answers are held to the grammar and to a validator (`schema_instances.py`). `--engine none` does only that, without a
model. With `--answers`, the model is then asked for an answer to each schema, and every finished answer is judged by a
validator (`schema_answers.py`). Prints a report for each engine, and fails if a grammar and the validator disagree, if
an answer is wrong, or if the engines do not honour the same schemas.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import statistics
import sys
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from schema_answers import Asking
from schema_instances import Agreement, agreement

from drivetrain import Worker
from drivetrain.core.constraint import Constraint, ConstraintForm, constraint
from drivetrain.core.errors import InvalidRequest
from drivetrain.core.prompt import Prompt, Segment
from drivetrain.core.tokenizer import Tokenizer
from drivetrain.text.byte_tokenizer import ByteTokenizer
from drivetrain.text.grammar.compile import GrammarCompiler
from drivetrain.text.grammar.trial import Trial


def sample(folder: Path, number: int, seed: int) -> list[tuple[str, dict[str, Any]]]:
    paths = sorted(folder.glob("*.json"))
    chosen = sorted(random.Random(seed).sample(paths, min(number, len(paths))))
    return [(path.stem, json.loads(path.read_text())) for path in chosen]


class Grammars:
    """Each schema compiled, and values held to it."""

    def __init__(self, tokenizer: Tokenizer, ends: frozenset[int], mutations: int) -> None:
        self._tokenizer = tokenizer
        self._trial = Trial()
        self._compiler = GrammarCompiler(tokenizer, ends, self._trial, context_length=8192)
        self.honoured: dict[str, Constraint] = {}
        self.refused: dict[str, str] = {}
        self.compile_s: list[float] = []
        self.found = Agreement()
        self._mutations = mutations

    def close(self) -> None:
        self._trial.close()

    def take(self, name: str, case: dict[str, Any]) -> None:
        began = time.perf_counter()
        try:
            one = constraint(ConstraintForm.JSON_SCHEMA, case["schema"], name="constraint")
            lark = self._compiler.compile(one).text
        except InvalidRequest as exc:
            self.refused[name] = exc.message
            return
        finally:
            self.compile_s.append(time.perf_counter() - began)
        self.honoured[name] = one
        given = [test["data"] for test in case["tests"]]
        found = agreement(case["schema"], lark, given, seed=1, mutations=self._mutations, answers=2)
        found.wrong = [f"{name}: {wrong}" for wrong in found.wrong]
        self.found.add(found)

    def begins(self, name: str, text: str) -> bool:
        matcher = self._compiler.compile(self.honoured[name]).matcher()
        return matcher.take(self._tokenizer.encode(Prompt((Segment(text, literal=True),))))

    def report(self) -> dict[str, Any]:
        times = sorted(self.compile_s)
        return {
            "honoured": len(self.honoured),
            "refused": len(self.refused),
            "compile_s": {"median": statistics.median(times), "p99": times[len(times) * 99 // 100], "most": times[-1]},
            "reasons": dict(Counter(map(_reason, self.refused.values())).most_common()),
            "refused_by_name": self.refused,
            "values": asdict(self.found),
        }


def _reason(message: str) -> str:
    """The keyword, if it is told; else what the library says."""
    short = message.removeprefix("constraint cannot be honoured: ").removeprefix("constraint has ")
    return short.split(" at #")[0] if " at #" in short[:40] else short[:60]


async def measured(args: argparse.Namespace, engine: str) -> tuple[dict[str, Any], set[str]]:
    """The report on this engine, and the names of the schemas that it honoured."""
    picked = dict(sample(args.folder, args.number, args.seed))
    if engine == "none":
        with contextlib.closing(Grammars(ByteTokenizer(), frozenset({257}), args.mutations)) as grammars:
            for name, case in picked.items():
                grammars.take(name, case)
            return {"schemas": len(picked), "seed": args.seed, "engine": engine, **grammars.report()}, set(
                grammars.honoured
            )
    options = {"threads": args.threads} if engine == "llamacpp" and args.threads else {}
    async with Worker.open(args.model, engine=engine, **options) as worker:
        info = worker.info
        with contextlib.closing(Grammars(info.tokenizer, info.eos_ids, args.mutations)) as grammars:
            for name, case in picked.items():
                grammars.take(name, case)
            report: dict[str, Any] = {"schemas": len(picked), "seed": args.seed, "engine": info.engine}
            report |= grammars.report()
            if not args.answers:
                return report, set(grammars.honoured)
            asking = Asking(worker, grammars.begins, args.max_tokens)
            report["answers"] = await asking.all(picked)
    return report, asking.honoured


def faults_of(reports: list[dict[str, Any]], honoured: list[set[str]]) -> list[str]:
    found = [f"{report['engine']}: {name}: {fault}" for report in reports for name, fault in faults_in(report)]
    for report, names in zip(reports[1:], honoured[1:], strict=True):
        if differ := names ^ honoured[0]:
            found.append(f"{reports[0]['engine']} and {report['engine']} do not honour the same: {sorted(differ)}")
    return found


def faults_in(report: dict[str, Any]) -> list[tuple[str, str]]:
    wrong = [(place, "the grammar and the validator disagree") for place in report["values"]["wrong"]]
    return [*wrong, *report.get("answers", {"faults": {}})["faults"].items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="maskbench/data of guidance-ai/jsonschemabench")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument(
        "--engine", default="auto", help="or several, with commas: they must honour the same schemas; or none"
    )
    parser.add_argument("--number", type=int, default=300, help="schemas in the sample")
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--mutations", type=int, default=12, help="of the instances of each schema")
    parser.add_argument("--answers", action="store_true", help="ask the model for an answer to each")
    parser.add_argument(
        "--threads", type=int, help="of llama.cpp: one, where its threads would wait for other processes"
    )
    parser.add_argument("--max-tokens", type=int, default=400)
    args = parser.parse_args()
    reports, honoured = [], []
    for engine in args.engine.split(","):
        report, names = asyncio.run(measured(args, engine))
        print(json.dumps(report, indent=1, ensure_ascii=False), flush=True)
        reports.append(report)
        honoured.append(names)
    if faults := faults_of(reports, honoured):
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()
