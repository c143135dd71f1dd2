"""The guides name every parameter, setting and family, and every link of ours leads somewhere."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from drivetrain.assembly import ENGINES, SETTINGS
from drivetrain.cli import main
from drivetrain.core.capabilities import Capabilities
from drivetrain.core.kinds import CountOrBoolean, Ids, Integer, Kind, ListOf, Number, OneOf
from drivetrain.core.parameters import (
    ELSEWHERE,
    ENGINE_PARAMETERS,
    PARAMETERS,
    TOKEN_PARAMETERS,
    WORKER_PARAMETERS,
    not_supported,
)
from drivetrain.engines.llama_server import completion
from drivetrain.engines.remote.dialects import chat as remote_chat
from drivetrain.engines.remote.dialects import llamacpp as remote_llamacpp
from drivetrain.engines.remote.dialects import vllm as remote_vllm
from drivetrain.families import registry
from drivetrain.text.answers import FORMS
from drivetrain.tools.conform.cases import ALL
from drivetrain.worker.settings import Group

ROOT = Path(__file__).parent.parent.parent


def test_make_help_lists_every_target() -> None:
    """Each name that stands for no file: whoever reads the Makefile may call it."""
    listed = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    rows = dict(line.split(maxsplit=1) for line in listed.stdout.splitlines())
    text = (ROOT / "Makefile").read_text()
    named = set(re.findall(r"^([a-z][a-z-]*):(?!=)", text, re.MULTILINE))
    phony = {name for line in re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE) for name in line.split()}
    assert set(rows) == named == phony


def test_conformance_is_of_all_cases() -> None:
    """`make conformance` writes it."""
    text = (ROOT / "docs" / "conformance.md").read_text().partition("## Others")[0]
    assert set(re.findall(r"all (\d+)", text)) == {str(len(ALL))}
    told = [line for line in text.splitlines() if line.startswith(("| area |", "Not asked every case"))]
    assert set(re.findall(r"`(\w+)`", " ".join(told))) == set(ENGINES)


def test_each_decision_has_a_status_and_a_date_and_is_listed() -> None:
    folder = ROOT / "docs" / "adr"
    decisions = sorted(folder.glob("[0-9]*.md"))
    listed = re.findall(r"^\| \[(\d+)\]\(([^)]+)\) \|", (folder / "README.md").read_text(), re.MULTILINE)
    assert listed == [(str(int(path.name[:4])), path.name) for path in decisions]
    for path in decisions:
        assert re.match(r"# \d+\. .+\n\n- Status: .+\n- Date: \d{4}-\d\d-\d\d\n\n", path.read_text()), path.name


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("parameters.md", list(PARAMETERS)),
        ("settings.md", list(SETTINGS.all)),
        ("families.md", list(registry.names())),
        ("answers.md", list(FORMS)),
    ],
)
def test_a_page_names_them_all(page: str, names: list[str]) -> None:
    text = (ROOT / "docs" / "guides" / page).read_text()
    rows = set(re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE))
    assert rows == set(names)


def table_of_parameters() -> str:
    """As it stands in the guide, made from `core/request.py`; `python tests/unit/test_docs.py` writes all tables."""
    rows = ["| name | values | meaning | honoured by | neutral |", "|---|---|---|---|---|"]
    for name, parameter in PARAMETERS.items():
        neutral = "" if parameter.neutral is None else f"`{'' if parameter.neutral == '' else parameter.neutral}`"
        neutral = neutral.replace("``", '`""`')
        values = in_words(parameter.kind)
        rows.append(f"| `{name}` | {values} | {parameter.meaning} | {parameter.by} | {neutral} |")
    return "\n".join(rows)


def in_words(kind: Kind) -> str:
    match kind:
        case Integer() | Number():
            word = "integer" if isinstance(kind, Integer) else "number"
            low = "" if kind.low < -1e9 else f" {'above' if getattr(kind, 'above', False) else 'from'} {kind.low:g}"
            return word + low + ("" if kind.high >= 1e9 else f" to {kind.high:g}")
        case OneOf():
            return ", ".join(f"`{choice}`" for choice in kind.choices)
        case ListOf():
            several = f"list of {in_words(kind.item)}"
            return f"{in_words(kind.item)}, or a {several}" if kind.or_one else several
        case Ids():
            return "token ids"
        case CountOrBoolean():
            return f"{in_words(kind.count)}, or true for 0"
        case _:
            return kind.takes.removeprefix("a ")


def honoured() -> dict[str, Capabilities]:
    """What each engine declares of a model that lets it do all it can."""
    text, seeing = {"model_type": "llama"}, {"model_type": "llava", "vision_config": {}}
    stated = {
        name: {kind: one(config, 4096, {}) for kind, config in (("text", text), ("seeing", seeing))}
        for name, engine in ENGINES.items()
        if (one := engine.enter().stated_capabilities) is not None
    }
    llamacpp = Capabilities(
        parameters=WORKER_PARAMETERS | TOKEN_PARAMETERS | completion.HONOURED | {"images"},
        embeddings=True,
        context_length=4096,
        max_concurrency=4,
    )
    both = {
        name: replace(kinds["text"], parameters=kinds["text"].parameters | kinds["seeing"].parameters)
        for name, kinds in stated.items()
    }
    return {"llamacpp": llamacpp, **both}


ABILITIES: dict[str, Callable[[Capabilities], bool]] = {
    "many requests in one batch": lambda can: can.max_concurrency > 1,
    "images": lambda can: "images" in can.parameters,
    "embeddings": lambda can: can.embeddings,
    "several choices, seeds": lambda can: {"n", "seed"} <= can.parameters,
    "logprobs": lambda can: "logprobs" in can.parameters,
    "logprobs of the prompt": lambda can: "prompt_logprobs" in can.parameters,
    "temperature, top-p, top-k, min-p": lambda can: {"temperature", "top_p", "top_k", "min_p"} <= can.parameters,
    "repetition penalty": lambda can: "repetition_penalty" in can.parameters,
    "presence and frequency penalties": lambda can: {"presence_penalty", "frequency_penalty"} <= can.parameters,
    "biases and bans of tokens": lambda can: {"logit_bias", "suppress_tokens"} <= can.parameters,
    "structured output": lambda can: "constraint" in can.parameters,
    "stops, echo, limits": lambda can: {"stop", "stop_token_ids", "echo", "max_tokens"} <= can.parameters,
}


def table_of_engines() -> str:
    engines = honoured()
    rows = [f"| | {' | '.join(f'`{name}`' for name in engines)} |", "|---" * (len(engines) + 1) + "|"]
    for ability, has in ABILITIES.items():
        rows.append(f"| {ability} | {' | '.join('✓' if has(can) else '–' for can in engines.values())} |")
    return "\n".join(rows)


def table_by_engine() -> str:
    """Of what is not the worker's: which engine honours it; for `remote` by what stands behind the URL."""
    known = {name: can.parameters for name, can in honoured().items()}
    behind = {"llama.cpp": remote_llamacpp.HONOURED, "vLLM": remote_vllm.HONOURED, "another": remote_chat.HONOURED}
    columns = {f"`{name}`": names for name, names in known.items()} | {
        f"`remote`: {name}": frozenset(names) for name, names in behind.items()
    }
    rows = [f"| parameter | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for name in sorted(ENGINE_PARAMETERS):
        rows.append(f"| {name} | {' | '.join('✓' if name in names else '–' for names in columns.values())} |")
    return "\n".join(rows)


def test_a_refusal_names_the_engines_that_honour_it() -> None:
    engines = honoured()
    by_engine = {name: tuple(e for e, can in engines.items() if name in can.parameters) for name in ENGINE_PARAMETERS}
    some = {name: have for name, have in by_engine.items() if 0 < len(have) < len(engines)}
    del some["max_reasoning_tokens"]  # a matter of the model, not of the engine
    assert {name: tuple(sorted(have)) for name, have in ELSEWHERE.items()} == some
    assert not_supported("images").message.endswith("llamacpp, transformers and vllm honour it, where the model can")
    assert not_supported("guidance_scale").message.endswith("; transformers honours it, where the model can")


def table_of_settings(group: Group) -> str:
    rows = ["| setting | values | default | meaning |", "|---|---|---|---|"]
    for name, one in SETTINGS.groups[group].items():
        default = one.default_text if one.default is None else f"`{one.default_text}`" if one.default_text else ""
        rows.append(f"| `{name}` | {in_words(one.kind)} | {default} | {one.meaning} |")
    return "\n".join(rows)


def settings_by_engine() -> str:
    rows = ["| engine | settings |", "|---|---|"]
    for name, engine in ENGINES.items():
        if engine.settings:
            rows.append(f"| {name} | {', '.join(f'`{setting}`' for setting in engine.settings)} |")
    return "\n".join(rows)


def with_settings(page: str) -> str:
    """The guide's page with a table in each group's section, and one more for what each engine has."""
    for group in Group:
        before, title, section = page.partition(f"\n## {group.capitalize()}\n")
        page = before + title + with_table(section, "| setting |", table_of_settings(group))
    return with_table(page, "| engine |", settings_by_engine())


PARAMETERS_PAGE = ROOT / "docs" / "guides" / "parameters.md"
SETTINGS_PAGE = ROOT / "docs" / "guides" / "settings.md"
ANSWERS_PAGE = ROOT / "docs" / "guides" / "answers.md"
SERVER_REFERENCE = ROOT / "docs" / "guides" / "server-reference.md"
README = ROOT / "README.md"


def table_of_forms() -> str:
    rows = ["| form | models | how calls and reasoning are written |", "|---|---|---|"]
    for form in FORMS.values():
        summary = form.summary.replace("|", "\\|")
        rows.append(f"| `{form.name}` | {form.models} | {summary} |")
    return "\n".join(rows)


TABLES = {
    "| name |": table_of_parameters,
    "| parameter |": table_by_engine,
    "| | `llamacpp` |": table_of_engines,
    "| form |": table_of_forms,
}
"""By how each begins."""


def with_tables(page: str) -> str:
    for head, table in TABLES.items():
        if head in page:
            page = with_table(page, head, table())
    return page


def with_table(page: str, head: str, table: str) -> str:
    """The first one that begins like this is replaced."""
    before, _, rest = page.partition(head)
    _, gap, after = rest.partition("\n\n")
    return before + table + (gap + after if gap else "\n")


@pytest.mark.parametrize(("path", "num"), [(PARAMETERS_PAGE, 2), (README, 1), (ANSWERS_PAGE, 1)])
def test_the_tables_are_those_of_the_code(path: Path, num: int) -> None:
    page = path.read_text()
    assert page == with_tables(page)
    assert sum(head in page for head in TABLES) == num


def test_the_settings_are_those_of_the_code() -> None:
    page = SETTINGS_PAGE.read_text()
    assert page == with_settings(page)


def test_the_readme_shows_every_command() -> None:
    _, commands = main._parsers()
    shown = set(re.findall(r"\bdrivetrain (\w+)", (ROOT / "README.md").read_text()))
    assert {command.prog.split()[1] for command in commands.values()} <= shown


def test_the_server_reference_has_a_row_for_each_flag() -> None:
    _, commands = main._parsers()
    groups = re.findall(
        r"^(?:server|log):\n(.*?)(?:\n\n|\Z)", commands["serve"].format_help(), re.DOTALL | re.MULTILINE
    )
    flags = re.findall(r"^  (--[\w-]+)", "\n".join(groups), re.MULTILINE)
    assert len(flags) > 10
    text = SERVER_REFERENCE.read_text()
    assert set(flags) <= set(re.findall(r"^\| `(--[\w-]+)", text, re.MULTILINE))


def test_the_server_reference_has_each_error_code() -> None:
    sources = [path.read_text() for path in (ROOT / "src" / "drivetrain" / "server").rglob("*.py")]
    codes = {code for text in sources for code in re.findall(r"\bcode=\"(\w+)\"", text)}
    assert len(codes) > 10
    assert codes <= set(re.findall(r"`(\w+)`", SERVER_REFERENCE.read_text().partition("## Status codes")[2]))


def test_the_pages_name_files_that_exist() -> None:
    """Each `file.py`, `room/file.py` and `room/`. Decisions may name what has gone since."""
    folders = [ROOT / name for name in ("src", "tests", "bench", "deploy", "docs")]
    known = [f"/{path.relative_to(ROOT)}" for folder in folders for path in (folder, *folder.rglob("*"))]
    pages = [path for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")) if path.parent.name != "adr"]
    for page in pages:
        names = re.findall(r"`((?:[\w-]+/)+|(?:[\w-]+/)*[\w-]+\.(?:py|cpp|yaml))`", page.read_text())
        assert not [n for n in names if not any(path.endswith("/" + n.rstrip("/")) for path in known)], page.name


def test_links_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"(?:\]\(|src=\")([^)#\"]+)[)\"]", page.read_text()):
            if not target.startswith(("http:", "https:")):
                assert (page.parent / target).exists(), (page.name, target)


if __name__ == "__main__":
    for page in (PARAMETERS_PAGE, README, ANSWERS_PAGE):
        page.write_text(with_tables(page.read_text()))
    SETTINGS_PAGE.write_text(with_settings(SETTINGS_PAGE.read_text()))
