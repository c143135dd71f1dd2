"""Each block of each page is run by `make test-docs`, or parsed here, or excused by a reason that is counted."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from docs.fences import ROOT, Block, blocks, pages
from drivetrain.assembly import SETTINGS
from drivetrain.cli import main
from drivetrain.cli.flags.server_options import read_server
from drivetrain.worker.sources import read_settings

EXCUSED = {
    "a drawing": 2,
    "an example of what is printed": 5,
    "an excerpt of the code": 3,
    "installs a compiler": 1,
    "needs Caddy": 1,
    "needs the agents": 1,
    "needs Codex": 1,
    "needs Docker": 1,
    "needs FastChat or DB-GPT": 2,
    "needs Node.js": 1,
    "needs Ray": 3,
    "needs a collector": 1,
    "needs a model that reasons": 1,
    "needs nginx": 1,
    "needs peft": 1,
    "needs receipts of your own": 1,
    "needs the client of Cohere": 1,
    "needs the network": 1,
    "needs torchvision": 1,
    "needs vLLM": 1,
    "takes minutes": 8,
}
"""Why blocks are not run, and how many are excused so. Whoever excuses one more has to say so here."""

RUN = ("sh", "python")

ALL = [block for page in pages() for block in blocks(page)]


def test_every_block_is_run_or_parsed_or_excused() -> None:
    neither = [
        block.place
        for block in ALL
        if block.language not in (*RUN, *PARSED) and block.excuse is None and not block.is_output
    ]
    assert not neither, "say why it is not run: <!-- not run: REASON -->, or <!-- output -->"


def test_the_excuses_are_counted() -> None:
    assert Counter(block.excuse for block in ALL if block.excuse is not None) == EXCUSED


def test_most_blocks_are_run() -> None:
    assert sum(block.language in RUN and block.excuse is None for block in ALL) >= 40


def is_json(text: str, _: Path) -> None:
    json.loads(text)


def is_yaml(text: str, _: Path) -> None:
    import yaml

    assert yaml.safe_load(text)


def is_a_settings_file_that_is_accepted(text: str, folder: Path) -> None:
    file = folder / "settings.toml"
    file.write_text(text)
    for name in ("any", *tomllib.loads(text).get("models", {})):
        resolved = read_settings(SETTINGS, name, {}, environment={}, config=file)
        assert any(origin != "default" for origin in resolved.origins.values()) or name == "any"
    args = main._parsers()[0].parse_args(["serve", "fake", "--config", str(file)])
    read_server(args, environment={})


def is_a_unit_that_starts_a_command_that_there_is(text: str, _: Path) -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]  # names in units have capitals
    unit.read_string(text)
    program, *arguments = shlex.split(unit["Service"]["ExecStart"])
    assert Path(program).name == "drivetrain"
    args, unknown = main._parsers()[0].parse_known_args(arguments)
    assert (args.command, unknown) == ("serve", [])


PARSED: Mapping[str, Callable[[str, Path], None]] = {
    "json": is_json,
    "yaml": is_yaml,
    "toml": is_a_settings_file_that_is_accepted,
    "ini": is_a_unit_that_starts_a_command_that_there_is,
}


@pytest.mark.parametrize(
    "block",
    [pytest.param(block, id=block.place) for block in ALL if block.language in PARSED and block.excuse is None],
)
def test_what_is_parsed(block: Block, tmp_path: Path) -> None:
    PARSED[block.language](block.text, tmp_path)


def test_every_option_that_a_page_names_is_one_of_ours() -> None:
    """In the lines that call `drivetrain`, also in those that are not run."""
    _, commands = main._parsers()
    for block in ALL:
        for line in block.text.replace("\\\n", " ").splitlines():
            called = re.search(r"(?:^|\s|/)drivetrain (\w+) (.*)", line)
            if called is None or called[1] not in commands:
                continue
            known = {flag for action in commands[called[1]]._actions for flag in action.option_strings}
            own = re.split(r"\s[|>#;&]|;\s", f" {called[2]}")[0]
            for flag in re.findall(r"(?<=\s)--?[a-z][\w-]*", own):
                assert flag in known, (block.place, flag)


def test_a_comment_in_front_of_no_block_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("docs.fences.ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("<!-- not run: a drawing -->\ntext\n```\nx\n```\n")
    with pytest.raises(ValueError, match="in front of no block"):
        blocks(page)
    page.write_text("```sh\nx\n")
    with pytest.raises(ValueError, match="has no end"):
        blocks(page)
    page.write_text("1. one\n\n   <!-- first: a -->\n   <!-- first: b -->\n   ```sh\n   x\n     y\n   ```\n")
    (block,) = blocks(page)
    assert (block.text, block.first, block.line, block.language) == ("x\n  y\n", ("a", "b"), 5, "sh")


assert ROOT.is_dir()
