"""Each engine's server asked every case of `drivetrain conform`, and docs/conformance.md made of what was found.

    python bench/conformance.py            all of them, half an hour and more on two cores
    python bench/conformance.py native     these anew, and the page with what the others said before
    python bench/conformance.py --page     only the page

What a server said stays in .cache/conformance. The vllm engine runs in .venv-vllm (VLLM=folder names another).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servers.process import free_port, started

from drivetrain.core.errors import one_line
from drivetrain.tools.conform.case import Area
from drivetrain.tools.conform.cases import ALL
from drivetrain.tools.conform.verdict import Outcome

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "conformance.md"
KEPT = ROOT / ".cache" / "conformance"
KEY = "a-key-of-this-run"
TIMEOUT_S = "300"
READY_S = 600
REASON_CHARS = 160
SMOLLM2 = ("smollm2-135m", "--context-length", "2048")


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """`weights` says what it ran; `behind` is the server that it passes requests on to."""

    weights: str
    options: tuple[str, ...] = ()
    python: str = sys.executable
    behind: str | None = None


SERVERS = {
    "native": Server(weights="SmolLM2-135M-Instruct in float32", options=SMOLLM2),
    "llamacpp": Server(weights="SmolLM2-135M-Instruct in F16", options=(*SMOLLM2, "--threads", "1")),
    "transformers": Server(
        weights="a tiny LLaMA with random weights and a context of 512", options=(str(ROOT / ".cache/tiny/llama"),)
    ),
    "vllm": Server(
        weights="SmolLM2-135M-Instruct in bfloat16, without compiling",
        options=(*SMOLLM2, "--kv-cache-gb", "1", "--vllm-args", '{"enforce_eager": true}'),
        python=str(Path(os.environ.get("VLLM", ROOT / ".venv-vllm")).absolute() / "bin" / "python"),
    ),
    "remote": Server(weights="in front of the server of `llamacpp`", behind="llamacpp"),
    "fake": Server(weights="no model", options=("fake",)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engines", nargs="*", choices=[*SERVERS, []], metavar="ENGINE", help="default: all")
    parser.add_argument("--page", action="store_true", help="ask nobody, and write the page")
    args = parser.parse_args()
    for name in () if args.page else args.engines or SERVERS:
        with serving(name) as port:
            ask(name, port)
    kept = {name: json.loads(file_of(name).read_text("utf-8")) for name in SERVERS if file_of(name).exists()}
    found = {name: report for name, report in kept.items() if all_cases(report)}
    _, others, rest = PAGE.read_text("utf-8").partition("\n## Others\n")
    PAGE.write_text(page(found) + others + rest, "utf-8")
    failed = sum(report["counts"]["fail"] for report in found.values())
    if failed or len(found) < len(SERVERS):
        sys.exit(f"{failed} failed, {len(SERVERS) - len(found)} engines were not asked everything: see {PAGE}")


@contextmanager
def serving(name: str) -> Iterator[int]:
    """It and what it passes requests on to. The port."""
    server, port = SERVERS[name], free_port()
    command = [server.python, "-m", "drivetrain", "serve", "--engine", name, "--port", str(port), *server.options]
    variables = {"DRIVETRAIN_API_KEY": KEY, "DRIVETRAIN_REMOTE_API_KEY": KEY}
    with ExitStack() as stack:
        if server.behind is not None:
            command.append(f"http://127.0.0.1:{stack.enter_context(serving(server.behind))}/v1")
        stack.enter_context(started(command, variables, port, KEPT / f"{name}.log", "/ready", READY_S))
        yield port


def ask(name: str, port: int) -> None:
    command = [sys.executable, "-m", "drivetrain", "conform", f"http://127.0.0.1:{port}", "--timeout", TIMEOUT_S]
    print(f"== {name}", flush=True)
    asked = subprocess.run(
        [*command, "--json", str(file_of(name))], env=os.environ | {"DRIVETRAIN_API_KEY": KEY}, check=False
    )
    if asked.returncode not in {0, 1}:
        sys.exit(f"{name} could not be asked")


def file_of(name: str) -> Path:
    return KEPT / f"{name}.json"


def all_cases(report: dict[str, Any]) -> bool:
    return bool(report["complete"]) and [case["id"] for case in report["cases"]] == [case.id for case in ALL]


def page(found: dict[str, dict[str, Any]]) -> str:
    """The page down to the others' servers, which `make conformance` does not ask."""
    heads = " | ".join(f"`{name}`" for name in found)
    lines = [
        "# Conformance, measured", "",
        f"What `drivetrain conform` ([guide](guides/conform.md)) found: what each engine says to all {len(ALL)} cases.",
        "Everything down to the next heading but one is made by `make conformance`.", "",
        "## Ours", "",
        "Each cell: passed / failed / not offered / not run.", "",
        f"| area | {heads} |", f"|---|{'---|' * len(found)}",
    ]  # fmt: skip
    for area in (*Area, None):
        cells = [cell(report, area) for report in found.values()]
        lines.append(f"| {f'`{area}`' if area else f'all {len(ALL)}'} | {' | '.join(cells)} |")
    lines += ["", "What was asked, each with a key:", ""]
    lines += [f"- `{name}`: {described(name, report)}" for name, report in found.items()]
    if missing := [f"`{name}`" for name in SERVERS if name not in found]:
        lines += ["", f"Not asked every case of today: {', '.join(missing)}."]
    lines += ["", "## Not passed", "", "| case | outcome | engines | why |", "|---|---|---|---|"]
    return "\n".join([*lines, *not_passed(found), ""])


def cell(report: dict[str, Any], area: Area | None) -> str:
    counts = Counter(case["outcome"] for case in report["cases"] if area in {None, case["area"]})
    return " / ".join(str(counts[outcome]) for outcome in Outcome)


def described(name: str, report: dict[str, Any]) -> str:
    about = ", ".join(f"{what} {said}" for what, said in report["server"].items() if what in {"device", "dtype"})
    by = f"Drivetrain {report['drivetrain']}, {report['began'][:10]}"
    return f"{SERVERS[name].weights}{f' ({about})' if about else ''}; {by}, {report['took_s']:.0f} s"


def not_passed(found: dict[str, dict[str, Any]]) -> Iterator[str]:
    """A row for each case and reason, with the engines that gave it."""
    for case in ALL:
        engines: dict[tuple[str, str], list[str]] = {}
        for name, report in found.items():
            said = next(one for one in report["cases"] if one["id"] == case.id)
            if said["outcome"] != Outcome.PASS:
                reason = one_line(said["said"], REASON_CHARS).replace("|", "\\|").replace("<", "&lt;")
                engines.setdefault((said["outcome"], reason), []).append(f"`{name}`")
        for (outcome, reason), names in engines.items():
            yield f"| `{case.id}` | {outcome} | {', '.join(names)} | {reason} |"


if __name__ == "__main__":
    main()
