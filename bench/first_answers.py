"""How many of thirty everyday questions a model answers well in each form, and what each form costs.

A form is `NAME=ENGINE:MODEL`; by default, what `drivetrain serve smollm2-135m` runs, float32, and the file as it is.
Greedy, one question at a time, in the model's own prompt form with nothing set. `first_questions.toml` says what
counts as well. Then the forms take turns: how long one is to be ready, its first token, its tokens a second alone.
Prints a table; `--write FILE` puts it into a file, with every answer.
"""

from __future__ import annotations

import argparse
import re
import statistics
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import drivetrain.sync
from drivetrain.core.events import Delta
from drivetrain.core.results import FinishReason

QUESTIONS = Path(__file__).parent / "first_questions.toml"
DEFAULT = ("default=auto:smollm2-135m", "float32=native:smollm2-135m", "Q4_1=llamacpp:smollm2-135m:Q4_1")
MAX_TOKENS = 80
SPEED_TOKENS = 64
SPEED_PROMPT = (
    "Tell me a long story about number {} of the ships that sailed from the old harbour at dawn, and its captain."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    ask: str
    says: Sequence[str] = ()
    never: Sequence[str] = ()
    lines: int | None = None

    def well(self, answer: str) -> bool:
        def has(pattern: str) -> bool:
            return re.search(pattern, answer, re.IGNORECASE) is not None

        lines = sum(bool(line.strip()) for line in answer.splitlines())
        return all(map(has, self.says)) and not any(map(has, self.never)) and self.lines in (None, lines)


@dataclass(slots=True)
class Form:
    name: str
    engine: str
    model: str
    held: str = ""
    answers: list[str] = field(default_factory=list)
    cut: int = 0
    ready_s: list[float] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)
    tokens_per_s: list[float] = field(default_factory=list)
    resident_mb: float = 0.0

    @classmethod
    def of(cls, text: str) -> Form:
        name, _, rest = text.partition("=")
        engine, _, model = rest.partition(":")
        if not (name and engine and model):
            raise SystemExit(f"{text!r} is no form: give NAME=ENGINE:MODEL")
        return cls(name, engine, model)

    def opened(self) -> drivetrain.sync.Worker:
        return drivetrain.sync.Worker.open(self.model, self.engine)


def ask_all(form: Form, questions: Sequence[Question]) -> None:
    with form.opened() as worker:
        form.held = f"{worker.metadata.engine}, {worker.metadata.dtype}"
        for question in questions:
            messages = [{"role": "user", "content": question.ask}]
            result = worker.generate(messages=messages, temperature=0, max_tokens=MAX_TOKENS)
            form.answers.append(result.text.strip())
            form.cut += result.choices[0].finish_reason is FinishReason.LENGTH


def time_once(form: Form, number: int) -> None:
    began = time.perf_counter()
    with form.opened() as worker:
        form.ready_s.append(time.perf_counter() - began)
        _stream(worker, 2 * number)
        first, times = _stream(worker, 2 * number + 1)
        form.first_s.append(first)
        form.tokens_per_s.append((len(times) - 1) / (times[-1] - times[0]))
        memory = worker.generate(prompt="a", max_tokens=1).metrics.memory
        form.resident_mb = sum(one.allocated_bytes for one in memory) / 1e6


def _stream(worker: drivetrain.sync.Worker, number: int) -> tuple[float, list[float]]:
    """When the first token came, and all of them."""
    messages = [{"role": "user", "content": SPEED_PROMPT.format(number)}]
    began, times = time.perf_counter(), list[float]()
    with worker.stream(messages=messages, temperature=0, max_tokens=SPEED_TOKENS, ignore_eos=True) as stream:
        for event in stream:
            if isinstance(event, Delta):
                times += [time.perf_counter()] * len(event.token_ids)
    return times[0] - began, times


def table(forms: Sequence[Form], questions: Sequence[Question]) -> Iterator[str]:
    timed = all(form.ready_s for form in forms)
    names = ["form", "engine and weights", "well", "as in float32", "cut"]
    names += ["ready", "first token", "tokens/s", "memory"] if timed else []
    yield f"| {' | '.join(names)} |"
    yield "|---" * len(names) + "|"
    float32 = next((form.answers for form in forms if form.name == "float32"), None)
    for form in forms:
        well = sum(q.well(a) for q, a in zip(questions, form.answers, strict=True))
        same = "–" if float32 is None else sum(a == b for a, b in zip(form.answers, float32, strict=True))
        row = [form.name, form.held, f"**{well}** of {len(questions)}", same, form.cut]
        yield f"| {' | '.join(map(str, [*row, *(_costs(form) if timed else [])]))} |"


def _costs(form: Form) -> list[str]:
    first = _spread([1000 * s for s in form.first_s], 0, "ms")
    return [_spread(form.ready_s, 1, "s"), first, _spread(form.tokens_per_s, 0), f"{form.resident_mb:.0f} MB"]


def _spread(values: Sequence[float], digits: int, unit: str = "") -> str:
    middle = f"{statistics.median(values):.{digits}f} {unit}".strip()
    return f"{middle} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def answers(forms: Sequence[Form], questions: Sequence[Question]) -> Iterator[str]:
    """Each question with the answers to it; forms that say the same share a line."""
    for number, question in enumerate(questions):
        yield f"\n{number + 1}. {question.ask}\n"
        said: dict[str, list[str]] = {}
        for form in forms:
            said.setdefault(form.answers[number], []).append(form.name)
        for answer, names in said.items():
            mark = "well" if question.well(answer) else "not well"
            yield f"   - {', '.join(names)}, {mark}: {_one_line(answer)}"


def _one_line(answer: str) -> str:
    """Line breaks as ` / `, and nothing that Markdown would take for a sign of its own."""
    line = " / ".join(part.strip() for part in answer.splitlines() if part.strip())
    return re.sub(r"([\\`*_<>\[\]|#~])", r"\\\1", line) or "(nothing)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("forms", nargs="*", default=DEFAULT, metavar="NAME=ENGINE:MODEL")
    parser.add_argument("--rounds", type=int, default=3, help="of timing, 0 for none (default: 3)")
    parser.add_argument("--write", type=Path, metavar="FILE")
    args = parser.parse_args()
    questions = [Question(**one) for one in tomllib.loads(QUESTIONS.read_text("utf-8"))["questions"]]
    forms = [Form.of(text) for text in args.forms]
    for form in forms:
        ask_all(form, questions)
    for number in range(args.rounds):
        for form in forms:
            time_once(form, number)
    lines = [*table(forms, questions), *answers(forms, questions)]
    print("\n".join(lines))
    if args.write is not None:
        head = f"# {len(questions)} everyday questions\n\n`bench/first_answers.py`; see [README.md](README.md).\n"
        args.write.write_text("\n".join([head, *lines]) + "\n", "utf-8")


if __name__ == "__main__":
    main()
