"""`serve` with several models: which they are, what they are called, and where what is said of them comes from."""

from __future__ import annotations

import argparse
import hashlib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from cli_rigs import run_here, without_settings

from drivetrain.cli import main
from drivetrain.cli.flags.server_options import LIMITS, OF_SEVERAL, SERVER
from drivetrain.cli.serve import fleet as serve_fleet
from drivetrain.cli.serve.fleet import FleetArguments
from drivetrain.cli.serve.greeting import greet
from drivetrain.cli.serve.offers import make_fleet, size_bytes, spoilt
from drivetrain.core.engine import WeightsFormat
from drivetrain.core.errors import InvalidSetting
from drivetrain.core.parameters import build_request
from drivetrain.scale.fleet.policy import FleetLimits
from drivetrain.server.settings import ServerSettings
from drivetrain.store.manifest import FileRecord, Manifest

ROOT = Path(__file__).parent.parent.parent.parent


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_settings(monkeypatch, tmp_path)


def parsed(*arguments: str) -> argparse.Namespace:
    return main._parsers()[0].parse_args(["serve", *arguments])


def said(*arguments: str) -> FleetArguments:
    found = serve_fleet.read(parsed(*arguments))
    assert found is not None
    return found


def chosen(*arguments: str) -> dict[str, tuple[str, Any]]:
    args = parsed(*arguments)
    return {one.name: (one.reference, one.resolved.settings) for one in serve_fleet.choose(args, said(*arguments))}


@pytest.mark.parametrize(
    "arguments", [["fake"], ["smollm2-135m", "--max-waiting", "3"], ["http://127.0.0.1:9/v1", "http://127.0.0.1:8/v1"]]
)
def test_one_model_is_served_as_ever(arguments: list[str]) -> None:
    assert serve_fleet.read(parsed(*arguments)) is None


@pytest.mark.parametrize("more", [["--idle-s", "0"], ["--max-loaded", "1"], ["--alias", "gpt=fake"], ["--pin", "fake"]])
def test_one_model_that_may_come_and_go(more: list[str]) -> None:
    assert said("fake", *more).models == ("fake",)


def test_names() -> None:
    found = chosen("fake", "two=fake", "http://127.0.0.1:9/v1#org/far", "near=http://127.0.0.1:8/v1", "smollm2-135m")
    assert list(found) == ["fake", "two", "org/far", "near", "smollm2-135m"]
    assert [settings.name for _, settings in found.values()] == list(found)
    assert found["two"][0] == "fake"


def test_a_file_with_an_equals_sign_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a=b").mkdir()
    assert list(chosen("a=b", "fake")) == ["a=b", "fake"]
    assert serve_fleet.read(parsed("a=b")) is None


def test_settings_are_each_models_own(tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text("timeout_s = 9\n[models.two]\ntimeout_s = 7\n[models.fake]\nmax_waiting = 1\n")
    found = chosen("fake", "two=fake", "--config", str(file), "--max-n", "2")
    assert [(s.timeout_s, s.max_waiting, s.max_n) for _, s in found.values()] == [(9, 1, 2), (7, 64, 2)]


def test_flags_beat_the_file(tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text(
        '[serve]\nmodels = ["fake", "b=fake"]\nmax_loaded = 1\nidle_s = 5\n[serve.aliases]\nx = "b"\ny = "b"\n'
    )
    found = said("--config", str(file), "--max-loaded", "2", "--alias", "x=fake")
    assert (found.models, found.max_loaded, found.idle_s) == (("fake", "b=fake"), 2, 5)
    assert found.aliases == {"x": "fake", "y": "b"}
    assert said("other=fake", "--config", str(file)).models == ("other=fake",)


def test_the_environment_stands_between_flags_and_the_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "serve.toml"
    file.write_text('[serve]\nmax_loaded = 1\nidle_s = 5\nturn_s = 6\npinned = ["fake"]\n')
    monkeypatch.setenv("DRIVETRAIN_MAX_LOADED", "2")
    assert said("fake").max_loaded == 2
    monkeypatch.setenv("DRIVETRAIN_IDLE_S", "7")
    arguments = ("fake", "b=fake", "--config", str(file), "--idle-s", "8", "--alias", "x=b")
    found = said(*arguments)
    assert (found.max_loaded, found.idle_s, found.turn_s) == (2, 8, 6)
    shown = run_here(capsys, "serve", *arguments, "--explain").out.partition("several models\n")[2].splitlines()
    assert {line.split()[0]: line.split(None, 1)[1] for line in shown} == {
        "max_loaded": "2  (environment DRIVETRAIN_MAX_LOADED)",
        "idle_s": "8.0  (flag)",
        "turn_s": f"6.0  (file {file}: serve.turn_s)",
        "room_wait_s": "60.0  (default)",
        "pinned": "('fake',)  (file: serve.pinned)",
        "aliases": "{'x': 'b'}  (flag)",
    }
    monkeypatch.setenv("DRIVETRAIN_MAX_LOADED", "none")
    outcome = run_here(capsys, "serve", "fake")
    assert (outcome.code, outcome.error) == (2, "DRIVETRAIN_MAX_LOADED must be an integer, not 'none'")


@pytest.mark.parametrize("arguments", [("fake", "--name", "x"), ("http://127.0.0.1:1/v1", "http://127.0.0.1:2/v1")])
def test_the_environment_alone_makes_no_several_of_what_is_told_as_one(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setenv("DRIVETRAIN_IDLE_S", "7")
    assert serve_fleet.read(parsed(*arguments)) is None
    found = serve_fleet.read(parsed("--max-loaded", "1", *arguments))
    assert found is not None
    assert (found.max_loaded, found.idle_s) == (1, FleetArguments().idle_s)
    args = parsed("--max-loaded", "1", *arguments)
    assert serve_fleet.told(args, serve_fleet.read(args))["idle_s"] == (None, "default"), "nor is it told"


def test_the_defaults_are_those_of_the_fleet() -> None:
    assert FleetLimits(**{name: one.default for name, one in LIMITS.items()}) == FleetLimits()


def test_the_one_model_may_stand_in_the_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text('[serve]\nmodels = ["fake"]\n')
    args = parsed("--config", str(file))
    assert serve_fleet.read(args) is None
    assert args.models == ["fake"]
    outcome = run_here(capsys, "serve", "--config", str(file), "--explain")
    assert (outcome.code, outcome.err) == (0, "")


def test_the_table_has_room_for_both() -> None:
    assert {one.name for one in fields(FleetArguments)} - {"on_demand"} == set(OF_SEVERAL)
    assert not set(OF_SEVERAL) & set(SERVER)


def test_the_example() -> None:
    found = said("--config", str(ROOT / "deploy" / "several-models.toml"))
    assert (found.max_loaded, found.idle_s, dict(found.aliases)) == (1, 900, {"gpt-4o-mini": "chat"})
    models = chosen("--config", str(ROOT / "deploy" / "several-models.toml"))
    assert {name: (s.value("context_length"), s.value("slots"), s.timeout_s) for name, (_, s) in models.items()} == {
        "chat": (2048, 4, 120),
        "long": (8192, 1, 120),
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[serve]\nmax_load = 1", "there is no max_load under [serve]; did you mean max_loaded?"),
        ("[serve]\nxyz = 1", "there is no xyz under [serve]; choose from admin_key_file, "),
        ("[serve]\nmax_loaded = 0", "it must be from 1 to"),
        ("[serve]\nmax_loaded = true", "must be an integer"),
        ('[serve]\nmodels = "fake"', "it must be a list of strings"),
        ("[serve]\nidle_s = -1", "it must be from 0 to"),
        ("[serve.aliases]\na = 1", "it must be a table of strings"),
        ("serve = 1", "must be a table"),
        ("[serve", "is not TOML"),
    ],
)
def test_a_wrong_file(capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "serve.toml"
    file.write_text(text)
    outcome = run_here(capsys, "serve", "fake", "--config", str(file))
    assert outcome.code == 2
    assert words in outcome.error


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "name a MODEL: none has been pulled yet; drivetrain pull smollm2-135m"),
        (["fake", "--max-loaded", "0"], "--max-loaded is 0"),
        (["fake", "--alias", "x"], "not of the form NAME=MODEL"),
        (["fake", "b=fake", "--name", "x"], "write NAME=MODEL"),
        (["fake", "b=fake", "--engine", "nonsense"], "engine is 'nonsense'"),
        (["fake", "http://127.0.0.1:9/v1"], "does not say which model"),
    ],
)
def test_wrong_words(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    outcome = run_here(capsys, "serve", *arguments)
    assert outcome.code == 2
    assert words in outcome.error


def test_a_model_that_is_none_is_told_before_any_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = run_here(capsys, "serve", "fake", "two=./nowhere.gguf", "--port", "0")
    assert outcome.code == 1
    assert "no such folder or file" in outcome.error


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fake", "fake"], "two models would be called 'fake'"),
        (["fake", "b=fake", "--alias", "b=fake"], "two models would be called 'b'"),
        (["fake", "b=fake", "--alias", "x=c"], "there is no model 'c' here; there are b, fake"),
        (["fake", "b=fake", "--pin", "c"], "there is no model 'c' here"),
        (["fake", "b=fake", "--pin", "b", "--pin", "fake", "--max-loaded", "1"], "more models are pinned"),
    ],
)
def test_names_that_do_not_fit_together(arguments: list[str], words: str) -> None:
    models = serve_fleet.choose(parsed(*arguments), said(*arguments))
    with pytest.raises(InvalidSetting) as caught:
        make_fleet(models, said(*arguments), lambda what, share: None)
    assert words in caught.value.message


def keep(home: Path, name: str, pulled_at: str, *, damaged: bool = False) -> None:
    """A model in the store, as a pull leaves it."""
    folder = home / "models" / name.replace("/", "--")
    folder.mkdir(parents=True)
    (folder / "m.gguf").write_bytes(b"GGUF" + bytes(20 - damaged))
    record = FileRecord("m.gguf", 24, hashlib.sha256(name.encode()).hexdigest())
    Manifest(
        name=name, reference=name, source="x", format=WeightsFormat.GGUF, files=(record,), pulled_at=pulled_at
    ).write(folder)


def test_without_a_model_all_that_is_pulled_is_served_on_demand(tmp_path: Path) -> None:
    keep(tmp_path, "org/one", "2026-01-01T00:00:00+00:00")
    keep(tmp_path, "smollm2-135m", "2026-01-02T00:00:00+00:00")
    keep(tmp_path, "org/broken", "2026-01-03T00:00:00+00:00", damaged=True)
    found = said()
    assert (found.models, found.on_demand) == (("smollm2-135m", "org/one"), True)
    assert list(chosen()) == ["smollm2-135m", "org/one"]
    assert not said("smollm2-135m", "org/one").on_demand, "who names them wants them loaded"
    assert said("--max-loaded", "1").max_loaded == 1


def test_without_a_model_the_only_one_is_served_as_if_it_was_named(tmp_path: Path) -> None:
    keep(tmp_path, "org/one", "2026-01-01T00:00:00+00:00")
    args = parsed()
    assert serve_fleet.read(args) is None
    assert args.models == ["org/one"]
    file = tmp_path / "serve.toml"
    file.write_text('[serve]\nmodels = ["fake"]\n')
    args = parsed("--config", str(file))
    assert serve_fleet.read(args) is None
    assert args.models == ["fake"], "what the file names comes before what is pulled"


async def test_on_demand_nothing_is_loaded_before_it_is_asked_for() -> None:
    arguments = ("fake", "two=fake", "three=fake", "--pin", "three")
    several = replace(said(*arguments), on_demand=True)
    fleet = make_fleet(serve_fleet.choose(parsed(*arguments), several), several, lambda *_: None)
    await fleet.start()
    assert [name for name, _ in fleet] == ["three"]
    assert fleet.ready
    async with fleet.lease("two") as worker:
        assert worker.metadata.name == "two"
    assert [name for name, _ in fleet] == ["two", "three"]
    await fleet.stop()


def test_the_greeting_has_a_way_in_where_nothing_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    greet("one is unloaded.", {}, "http://127.0.0.1:8000", None, ServerSettings(), several=True)
    lines = capsys.readouterr().out.split("\n")
    assert [line for line in lines if line] == [
        "one is unloaded.", "The page:", "  http://127.0.0.1:8000/", "The API:", "  http://127.0.0.1:8000/v1",
    ]  # fmt: skip


async def test_counts_go_on_when_a_model_is_loaded_again() -> None:
    arguments = ("fake", "two=fake", "--max-loaded", "1")
    fleet = make_fleet(serve_fleet.choose(parsed(*arguments), said(*arguments)), said(*arguments), lambda *_: None)
    await fleet.start()
    counted = []
    for name in ("fake", "two", "fake"):
        async with fleet.lease(name) as worker:
            await worker.complete(build_request({"prompt": "x", "max_tokens": 3}))
            assert worker.stats is fleet.member(name).offer.stats, "where the fleet counts too"
            counted.append((worker.metadata.name, worker.stats.completion_tokens))
    assert counted == [("fake", 3), ("two", 3), ("fake", 6)]
    await fleet.stop()


def test_explain_tells_of_each(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = run_here(capsys, "serve", "fake", "two=fake", "--explain", "--max-n", "3")
    assert outcome.code == 0
    assert outcome.out.startswith("fake: no weights\nengine: fake: the model name is fake\n")
    assert "\n\ntwo: no weights\n" in outcome.out
    assert outcome.out.count("3  (flag or keyword)") == 2


def test_the_size_is_that_of_the_weights(tmp_path: Path) -> None:
    assert size_bytes("fake") == size_bytes("http://127.0.0.1:9/v1#x") == size_bytes(str(tmp_path)) == 0
    assert size_bytes("org/is-not-here") == 0


def test_what_files_tell_against_a_model(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    assert "broken.gguf is truncated" in spoilt(str(broken))
    assert str(tmp_path) not in spoilt(str(tmp_path / "gone"))
    assert spoilt(str(tmp_path / "gone"))
    assert spoilt("fake") == spoilt("http://127.0.0.1:9/v1#x") == spoilt("org/is-not-here") == ""
