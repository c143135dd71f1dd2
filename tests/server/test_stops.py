"""Stops over HTTP: never in the text, never streamed and taken back, the one completed first wins."""

from __future__ import annotations

from typing import Any

import pytest

from server.serving import Served, fake, serving

TEXT = "The quick brown fox jumps over the lazy dog."


@pytest.fixture(scope="module")
def talker() -> Any:
    with serving(fake(text=TEXT)) as made:
        yield made


def texts(served: Served, **fields: Any) -> tuple[str, list[str], str]:
    """The text of the whole answer, the pieces of the stream, and the reason, which is the same."""
    body = {"model": "fake", "prompt": "Hi", "max_tokens": 100, "temperature": 0, **fields}
    status, document = served.post("/v1/completions", body)
    assert status == 200, document
    choice = document["choices"][0]
    *chunks, _ = served.events("/v1/completions", body)
    pieces = [c["choices"][0]["text"] for c in chunks]
    assert "".join(pieces) == choice["text"]
    assert chunks[-1]["choices"][0]["finish_reason"] == choice["finish_reason"]
    return choice["text"], pieces, choice["finish_reason"]


def test_eos(talker: Served) -> None:
    assert texts(talker)[::2] == (TEXT, "stop")


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        ("brown", "The quick "),
        (["dog", "fox", "jumps"], "The quick brown "),
        (["quick brown", "brown"], "The "),
        (["ow", "own"], "The quick br"),
        ("T", ""),
        ("never", TEXT),
        (["quicker", "quick brown f"], "The "),
        ("dog.", "The quick brown fox jumps over the lazy "),
    ],
)
def test_strings(talker: Served, stop: Any, text: str) -> None:
    found, pieces, reason = texts(talker, stop=stop)
    assert (found, reason) == (text, "stop")
    assert text.startswith("".join(pieces))


def test_kept_in_the_text(talker: Served) -> None:
    assert texts(talker, stop="brown", include_stop_str_in_output=True)[0] == "The quick brown"


def test_ids(talker: Served) -> None:
    assert texts(talker, stop_token_ids=[ord("q")])[0] == "The "
    assert texts(talker, stop_sequences=[list(b"fox")])[0] == "The quick brown "


def test_ignore_eos_and_min_tokens(talker: Served) -> None:
    found, _, reason = texts(talker, ignore_eos=True, max_tokens=60)
    assert (found[: len(TEXT)], reason) == (TEXT, "length")
    assert texts(talker, stop="h", min_tokens=4)[0] == "The quick brown fox jumps over t"


def test_which_one_it_was(talker: Served) -> None:
    body = {"model": "fake", "prompt": "Hi", "max_tokens": 100, "temperature": 0, "stop": ["dog", "fox"]}
    assert talker.post("/v1/completions", body)[1]["choices"][0]["matched_stop"] == "fox"
    *chunks, _ = talker.events("/v1/completions", body)
    assert chunks[-1]["choices"][0]["matched_stop"] == "fox"


def test_on_every_engine(served: Served) -> None:
    body = {"model": served.model, "prompt": "Hello", "max_tokens": 24, "temperature": 0, "ignore_eos": True}
    text = served.post("/v1/completions", body)[1]["choices"][0]["text"]
    stop = text[len(text) // 2 :][:3]
    _, document = served.post("/v1/completions", {**body, "stop": [stop]})
    choice = document["choices"][0]
    assert choice["text"] == text[: text.index(stop)]
    assert choice["finish_reason"] == "stop"
