"""URLs in place of a model: on the command line, in `Worker.open`, and what is refused before anything is asked."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_rigs import run_here, without_settings

import drivetrain
from drivetrain import assembly
from drivetrain.core.errors import DrivetrainError, InvalidSetting, ModelNotFound
from drivetrain.worker.settings import Settings
from server.serving import Served, fake, serving

ASK = ("--prompt", "x", "--max-tokens", "9", "--temperature", "0", "--quiet")


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_settings(monkeypatch, tmp_path)


@pytest.fixture(scope="module")
def far() -> Iterator[Served]:
    with serving(fake()) as served:
        yield served


@pytest.fixture(scope="module")
def locked() -> Iterator[Served]:
    with serving(fake(), api_keys=("sk-far",)) as served:
        yield served


def test_generate_at_a_url(capsys: pytest.CaptureFixture[str], far: Served) -> None:
    for more in ((), ("--model", "fake"), ("--engine", "remote")):
        outcome = run_here(capsys, "generate", f"{far.base}/v1", *more, *ASK)
        assert (outcome.code, outcome.out) == (0, "The quick\n")


def test_inspect_asks_the_upstream(capsys: pytest.CaptureFixture[str], far: Served) -> None:
    found = run_here(capsys, "inspect", far.base, "--quiet", "--json").json
    assert (found["engine"], found["name"], found["source"]) == ("remote", "fake", "an upstream")
    assert found["capabilities"]["context_length"] == 4096
    assert found["prompt"]["token_ids"], "the upstream renders and splits the sample chat"
    assert found["prompt"]["text"].startswith("<|im_start|>user\nHello<|im_end|>"), "and that is what is shown"
    assert found["family_why"] == found["answer_form_why"] == "the upstream renders chats itself"
    assert (found["tool_form"], found["tool_form_why"]) == (
        "generic",
        "the upstream's template is not known, so tools are described in plain turns",
    )


def test_the_key_of_the_environment_opens_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, locked: Served
) -> None:
    outcome = run_here(capsys, "generate", locked.base, *ASK)
    assert outcome.code == 1
    assert "DRIVETRAIN_REMOTE_API_KEY" in outcome.error
    monkeypatch.setenv("DRIVETRAIN_REMOTE_API_KEY", "sk-wrong")
    assert "sk-wrong" not in run_here(capsys, "generate", locked.base, *ASK).error
    monkeypatch.setenv("DRIVETRAIN_REMOTE_API_KEY", "sk-far")
    outcome = run_here(capsys, "generate", locked.base, *ASK)
    assert (outcome.code, outcome.out) == (0, "The quick\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("http://127.0.0.1:9/v1", "--engine", "native"), "engine remote, not for native"),
        (("http://127.0.0.1:9/v1", "--family", "vicuna"), "leave family out"),
        (("http://127.0.0.1:9/v1", "--slots", "3"), "has no setting slots"),
        (("http://127.0.0.1:9/v1#a", "--model", "b"), "does not name a model already"),
        (("fake", "--model", "b"), "--model is only for a URL"),
        (("fake", "--engine", "remote"), "needs a URL"),
        (("http://me:pw@127.0.0.1:9/v1",), "must not hold a name or a password"),
        (("http://127.0.0.1:9/v1?key=1",), "must end with its path"),
    ],
)
def test_contradictions_are_refused(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str) -> None:
    outcome = run_here(capsys, "generate", *arguments, *ASK)
    assert outcome.code == 2
    assert words in outcome.error
    assert "pw" not in outcome.error


def test_a_url_among_several_models_says_which_model(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = run_here(capsys, "serve", "http://127.0.0.1:9", "fake")
    assert outcome.code == 2
    assert "'http://127.0.0.1:9' does not say which model" in outcome.error


def test_nobody_there(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = run_here(capsys, "generate", "http://127.0.0.1:9/v1", *ASK)
    assert outcome.code == 1
    assert "nobody listens" in outcome.error


def test_an_unknown_model_there(capsys: pytest.CaptureFixture[str], far: Served) -> None:
    outcome = run_here(capsys, "generate", far.base, "--model", "other", *ASK)
    assert outcome.code == 1
    assert "it lists fake" in outcome.error


def test_python_opens_a_url(far: Served) -> None:
    async def main() -> str:
        async with drivetrain.Worker.open(f"{far.base}/v1#fake", name="mine") as worker:
            assert worker.metadata.name == "mine"
            return (await worker.generate(prompt="x", max_tokens=9, temperature=0)).text

    assert asyncio.run(main()) == "The quick"
    with pytest.raises(ModelNotFound):
        asyncio.run(_open(f"{far.base}/v1#other"))
    with pytest.raises(InvalidSetting):
        assembly.open_parts("http://", Settings())


async def _open(model: str) -> None:
    async with drivetrain.Worker.open(model):
        raise AssertionError("it must not open")


def test_serve_in_front_of_two(far: Served, locked: Served) -> None:
    """A key that one of them does not ask for does no harm there."""
    with subprocess.Popen(
        [sys.executable, "-m", "drivetrain", "serve", far.base, locked.base, "--model", "fake", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "DRIVETRAIN_REMOTE_API_KEY": "sk-far"},
    ) as process:
        try:
            assert process.stdout is not None
            address = next(line.split()[-1] for line in process.stdout if "http://" in line)
            body = json.dumps({"model": "fake", "prompt": "x", "max_tokens": 9, "temperature": 0}).encode()
            asked = urllib.request.Request(
                f"{address.rstrip('/')}/v1/completions", body, {"content-type": "application/json"}
            )
            for _ in range(4):
                with urllib.request.urlopen(asked, timeout=60) as answer:
                    assert json.load(answer)["choices"][0]["text"] == "The quick"
        finally:
            process.terminate()
            process.wait(60)
    for served in (far, locked):
        assert served.worker.status.endings["finished"] >= 2


def test_a_remote_error_is_a_drivetrain_error() -> None:
    with pytest.raises(DrivetrainError):
        assembly.open_parts("http://127.0.0.1:9/v1", Settings())
