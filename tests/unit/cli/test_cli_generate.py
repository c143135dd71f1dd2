"""`drivetrain generate` with the fake: inputs, parameters, outputs and what is refused."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
from cli_rigs import run_apart, run_here, script_fake, type_in, without_settings

from contract.filling import FillingBytes
from drivetrain.core.errors import EngineFailed
from drivetrain.core.sealing import opened, read

SAID = "The quick brown fox jumps over the lazy dog. "
GREEDY = ("generate", "fake", "--temperature", "0")
ASK = (*GREEDY, "--message", "hi")


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_settings(monkeypatch, tmp_path / "home")


def test_text_as_it_comes_at_once_and_in_json_is_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    streamed = run_here(capsys, *ASK)
    whole = run_here(capsys, *ASK, "--no-stream")
    document = run_here(capsys, *ASK, "--json").json
    assert streamed.code == whole.code == 0
    assert streamed.out == whole.out == SAID + "\n"
    assert document["choices"][0]["text"] == SAID
    assert not streamed.err


@pytest.mark.parametrize("options", [(), ("--max-tokens", "5"), ("--max-tokens", "5", "--seed", "1")])
def test_behind_two_dashes_nothing_is_an_option(capsys: pytest.CaptureFixture[str], options: tuple[str, ...]) -> None:
    document = run_here(capsys, "generate", "fake", "--json", *options, "--", "-hello").json
    prompt = bytes(token_id for token_id in document["prompt_token_ids"] if token_id < 256)
    assert b"-hello" in prompt
    assert b"--" not in prompt
    outcome = run_here(capsys, "generate", "fake", *options, "--", "-a", "-b")
    assert (outcome.code, "-b" in outcome.error) == (2, True)


def test_json_is_the_whole_result(capsys: pytest.CaptureFixture[str]) -> None:
    document = run_here(capsys, *ASK, "--json", "--stop", "fox", "--request-id", "mine").json
    assert set(document) == {"id", "model", "choices", "usage", "metrics", "prompt_token_ids", "truncated_tokens"}
    assert (document["id"], document["model"]) == ("mine", "fake")
    (choice,) = document["choices"]
    assert choice == {
        "index": 0,
        "text": "The quick brown ",
        "token_ids": list(b"The quick brown fox"),
        "finish_reason": "stop",
        "matched_stop": "fox",
    }
    prompt = len(document["prompt_token_ids"])
    assert document["usage"] == {
        "prompt_tokens": prompt, "completion_tokens": 19, "cached_tokens": 0, "total_tokens": prompt + 19,
        "told": False, "reasoning_tokens": 0,
    }  # fmt: skip
    assert document["metrics"]["total_s"] > 0
    assert document["metrics"]["memory"][0]["device"] == "cpu"


def test_logprobs_are_there_for_those_who_ask(capsys: pytest.CaptureFixture[str]) -> None:
    document = run_here(capsys, *ASK, "--json", "--max-tokens", "2", "--logprobs", "1").json
    first, second = document["choices"][0]["logprobs"]
    assert (first["token"], first["bytes"], first["text_offset"]) == ("T", [84], 0)
    assert (second["token"], second["text_offset"], len(second["top"])) == ("h", 1, 1)


def test_logprobs_are_readable_below_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    short = (*ASK, "--max-tokens", "2", "--logprobs", "2")
    streamed, whole = run_here(capsys, *short), run_here(capsys, *short, "--no-stream")
    assert streamed == whole
    answer, blank, head, first, second = streamed.out.splitlines()
    assert (answer, blank, head.split()) == ("Th", "", ["TOKEN", "LOGPROB", "SHARE", "ALTERNATIVES"])
    told = run_here(capsys, *short, "--json").json["choices"][0]["logprobs"]
    for row, token in zip((first, second), told, strict=True):
        others = [one for one in token["top"] if one["token_id"] != token["token_id"]]
        cells = [repr(token["token"]), f"{token['logprob']:.4f}", f"{math.exp(token['logprob']):.1%}"]
        cells += [f"{one['token']!r} {math.exp(one['logprob']):.1%}" for one in others]
        assert re.fullmatch(r"\s+".join(map(re.escape, cells)), row)
    assert run_here(capsys, *ASK, "--max-tokens", "2").out == "Th\n"


def test_logprobs_of_each_choice_and_of_the_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    prompt = (*GREEDY, "--prompt", "a\n", "--max-tokens", "1", "--echo")
    outcome = run_here(capsys, *prompt, "--logprobs", "1", "--prompt-logprobs", "1")
    rows = outcome.out.partition("TOKEN")[2].splitlines()[1:]
    assert [row.split()[0] for row in rows] == ["'<s>'", "'a'", "'\\n'", "'T'"]
    assert rows[0].split()[1:] == ["-", "-", "the", "first", "token", "of", "the", "prompt"]
    outcome = run_here(capsys, *ASK, "--max-tokens", "1", "--n", "2", "--logprobs", "0")
    assert outcome.out.count("--- 1") == outcome.out.count("--- 0") == 2


def test_several_choices(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = run_here(capsys, *ASK, "--n", "2", "--max-tokens", "3")
    assert outcome.out == "--- 0\nThe\n--- 1\nThe\n"
    choices = run_here(capsys, *ASK, "--n", "2", "--max-tokens", "3", "--json").json["choices"]
    assert [choice["index"] for choice in choices] == [0, 1]


def test_parameters_reach_the_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_here(capsys, *ASK, "--max-tokens", "3").out == "The\n"
    kept = run_here(capsys, *ASK, "--stop", "brown", "--include-stop-str-in-output")
    assert kept.out == "The quick brown\n"
    assert run_here(capsys, *ASK, "--stop", "zzz", "--stop", "quick").out == "The \n"
    assert run_here(capsys, *ASK, "--stop-sequences", "[[113, 117]]").out == "The \n"
    echoed = run_here(capsys, *GREEDY, "--prompt", "Say: ", "--echo", "--max-tokens", "3")
    assert echoed.out == "Say: The\n"


def test_an_answer_that_was_cut_off_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    more = "--max-tokens N allows more"
    for how in ((), ("--no-stream",)):
        cut = run_here(capsys, *ASK, "--max-tokens", "3", *how)
        assert (cut.code, cut.out, cut.err) == (0, "The\n", f"(cut off after 3 tokens; {more})\n")
        assert not run_here(capsys, *ASK, *how).err
    assert run_here(capsys, *ASK, "--n", "2", "--max-tokens", "3").err == f"(2 of 2 choices were cut off; {more})\n"
    assert not run_here(capsys, *ASK, "--max-tokens", "3", "--json").err
    assert not run_here(capsys, *GREEDY, "--prompt", "Say: ", "--echo", "--max-tokens", "0").err
    script_fake(monkeypatch, context_length=24)
    full = run_here(capsys, *ASK)
    assert full.err == f"(cut off after {len(full.out) - 1} tokens: the context of 24 tokens is full)\n"


def test_a_seed_gives_the_same_text_again(capsys: pytest.CaptureFixture[str]) -> None:
    hot = ("generate", "fake", "--message", "hi", "--temperature", "1", "--seed", "7")
    assert run_here(capsys, *hot).out == run_here(capsys, *hot).out


def _rendered(document: dict[str, list[int]]) -> str:
    """The prompt that the ids of the fake's vocabulary spell, special tokens left out."""
    return bytes(i for i in document["prompt_token_ids"] if i < 256).decode()


def test_every_way_of_giving_the_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "hé"}]
    chat, text = tmp_path / "chat.json", tmp_path / "prompt.txt"
    chat.write_text(json.dumps(messages))
    text.write_bytes("hé".encode())
    short = (*GREEDY, "--json", "--max-tokens", "1")
    rendered = "system\nS\nuser\nhé\nassistant\n"

    assert _rendered(run_here(capsys, *short, "--system", "S", "--message", "hé").json) == rendered
    assert _rendered(run_here(capsys, *short, "--messages-file", str(chat)).json) == rendered
    chat.write_text(json.dumps({"messages": messages}))
    assert _rendered(run_here(capsys, *short, "--messages-file", str(chat)).json) == rendered
    longer = run_here(capsys, *short, "--message", "a", "--assistant", "b", "--message", "c").json
    assert _rendered(longer) == "user\na\nassistant\nb\nuser\nc\nassistant\n"
    assert _rendered(run_here(capsys, *short, "--prompt", "hé").json) == "hé"
    assert _rendered(run_here(capsys, *short, "--prompt-file", str(text)).json) == "hé"
    assert run_here(capsys, *short, "--prompt-token-ids", "1,2,3").json["prompt_token_ids"] == [1, 2, 3]
    for flag in ("--prompt", "--prompt-file"):
        type_in(monkeypatch, "hé")
        assert _rendered(run_here(capsys, *short, flag, "-").json) == "hé"
    type_in(monkeypatch, "hé")
    assert _rendered(run_here(capsys, *short, "--system", "S", "--message", "-").json) == rendered
    type_in(monkeypatch, json.dumps(messages))
    assert _rendered(run_here(capsys, *short, "--messages-file", "-").json) == rendered


def test_text_without_a_flag_is_the_last_message(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(*arguments: str) -> str:
        outcome = run_here(capsys, "generate", "fake", "--json", "--max-tokens", "1", *arguments)
        assert outcome.code == 0, outcome.err
        return _rendered(outcome.json)

    script_fake(monkeypatch)
    alone = "user\nhé\nassistant\n"
    assert said("hé") == alone
    assert run_here(capsys, "generate", "fake", "hé", "--seed", "1").code == 0
    assert said("--seed", "1", "hé", "--temperature", "0") == alone
    assert said("hé", "--system", "S") == said("--system", "S", "hé") == "system\nS\n" + alone
    assert said("--message", "a", "--assistant", "b", "hé") == "user\na\nassistant\nb\n" + alone
    for arguments in ((), ("-",), ("--message", "-")):
        type_in(monkeypatch, "hé")
        assert said(*arguments) == alone
    type_in(monkeypatch, "-")
    assert said() == "user\n-\nassistant\n"
    type_in(monkeypatch, "left alone")
    assert said("hé") == alone


def test_an_image_stands_before_the_last_message_of_the_user(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from PIL import Image

    script_fake(monkeypatch, vision=True)
    picture = tmp_path / "dot.png"
    Image.new("RGB", (2, 2), "red").save(picture)
    outcome = run_here(capsys, *ASK, "--image", str(picture), "--json")
    assert outcome.code == 0
    assert "<image>hi" in _rendered(outcome.json)


def test_a_suffix_fills_in_the_middle(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    gap = (*GREEDY, "--prompt", "a", "--suffix", "b", "--json")
    assert "its vocabulary" in run_here(capsys, *gap).error
    script_fake(monkeypatch, tokenizer=FillingBytes(), text="middle")
    found = run_here(capsys, *gap).json
    assert found["choices"][0]["text"] == "middle"
    assert found["prompt_token_ids"] == [256, 261, 97, 262, 98, 263]
    assert "suffix" in run_here(capsys, *ASK, "--suffix", "b").error
    assert "infill" in run_here(capsys, "inspect", "fake").out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "there is nothing to answer: give TEXT"),
        (["a", "--prompt", "b"], "TEXT and --prompt cannot be combined"),
        (["a", "--message", "b"], "TEXT and a --message at the end cannot be combined"),
        (["--temperature", "0", "a", "b"], "unexpected argument b"),
        (["--message", "a", "--prompt", "b"], "--message and --prompt cannot be combined"),
        (["--system", "-", "--message", "-"], "give a single -"),
        (["--message", "a", "--temperature", "5"], "temperature is 5.0; it must be from 0 to 2"),
        (["--message", "a", "--temperature", "nan"], "temperature is nan"),
        (["--message", "a", "--max-tokens", "0"], "max_tokens is 0"),
        (["--message", "a", "--n", "99"], "n is 99; the limit is 16"),
        (["--message", "a", "--top-k", "5"], "top_k is not supported by this model and engine"),
        (["--message", "a", "--echo"], "echo works with prompt"),
        (["--message", "a", "--json", "--stream"], "--stream and --json cannot be combined"),
        (["--message", "a", "--n", "2", "--stream"], "--stream prints one choice"),
        (["--message", "a", "--device", "cpu"], "the engine fake has no setting device"),
        (["--message", "a", "--engine", "warp"], "engine is 'warp'"),
        (["--message", "a", "--family", "guanako"], "did you mean guanaco"),
        (["--message", "a", "--image", "no-such.png"], "there is no image file 'no-such.png'"),
        (["--prompt-file", "no-such.txt"], "no-such.txt cannot be read: No such file"),
        (["--messages-file", "no-such.json"], "no-such.json cannot be read"),
        (["--message", "a", "--config", "no-such.toml"], "the settings file no-such.toml cannot be read"),
        (["--message", "bad \udcff byte"], "lone surrogate"),
    ],
)
def test_what_is_asked_wrongly_exits_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    type_in(monkeypatch, " \n")
    outcome = run_here(capsys, "generate", "fake", *arguments)
    assert outcome.code == 2
    assert not outcome.out
    assert words in outcome.error


def test_an_image_for_a_model_that_does_not_see(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    picture = tmp_path / "x.png"
    picture.write_bytes(b"x")
    outcome = run_here(capsys, *ASK, "--image", str(picture))
    assert (outcome.code, outcome.error) == (2, "this model does not support images")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\xff\xfe", "is not UTF-8 text (at byte 0)"),
        (b"[" * 100_000, "is not JSON"),
        (b"[]", "messages is empty"),
        (b'{"role": "user"}', "messages must be a list"),
        (b'[{"role": "judge", "content": "x"}]', "messages[0].role is 'judge'"),
    ],
)
def test_a_bad_messages_file(capsys: pytest.CaptureFixture[str], tmp_path: Path, data: bytes, words: str) -> None:
    file = tmp_path / "chat.json"
    file.write_bytes(data)
    outcome = run_here(capsys, *GREEDY, "--messages-file", str(file))
    assert outcome.code == 2
    assert words in outcome.error


def test_a_prompt_of_ten_megabytes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "long.txt"
    file.write_bytes(b"x" * 10_000_000)
    outcome = run_here(capsys, *GREEDY, "--prompt-file", str(file))
    assert outcome.code == 2
    assert "limit" in outcome.error
    file.write_bytes(b"x" * 20_000_000)
    assert "has more than 16000000 bytes" in run_here(capsys, *GREEDY, "--prompt-file", str(file)).error


def test_a_model_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = run_here(capsys, "generate", "./no-such-folder", "--message", "hi")
    assert outcome.code == 1
    assert "no such folder or file" in outcome.error


def test_a_failure_in_the_middle(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    script_fake(monkeypatch, fault=EngineFailed("it\nbroke"), fault_at_step=3)
    outcome = run_here(capsys, *ASK)
    assert (outcome.code, outcome.out, outcome.error) == (1, "The", "it broke")
    outcome = run_here(capsys, *ASK, "--json")
    assert (outcome.code, outcome.out, outcome.error) == (1, "", "it broke")


def test_a_failure_while_loading(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    script_fake(monkeypatch, load_error=ValueError("no"))
    outcome = run_here(capsys, *ASK)
    assert outcome.code == 1
    assert "told to fail" in outcome.error


def test_debug_shows_the_traceback_of_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script_fake(monkeypatch, load_error=ValueError("the cause"))
    for arguments in (("--debug", *ASK), (*ASK, "--debug")):
        outcome = run_here(capsys, *arguments)
        assert outcome.code == 1
        assert "Traceback" in outcome.err
        assert "ValueError: the cause" in outcome.err


def test_a_bug_is_said_to_be_one(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object, **options: object) -> None:
        raise ZeroDivisionError("by nought")

    monkeypatch.setattr("drivetrain.assembly.open_parts", broken)
    outcome = run_here(capsys, *ASK)
    assert outcome.code == 70
    assert outcome.error == "ZeroDivisionError: by nought (this is a bug; run it again with --debug for the traceback)"


def test_an_encoding_that_cannot_show_the_text() -> None:
    outcome = run_apart(
        "generate", "fake", "--prompt", "é🌍 ", "--echo", "--max-tokens", "1", "--temperature", "0",
        environment={"PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert (outcome.code, outcome.out) == (0, "\\xe9\\U0001f30d T\n")
    document = run_apart(
        "generate", "fake", "--prompt", "é🌍 ", "--echo", "--max-tokens", "1", "--json", "--temperature", "0",
        environment={"PYTHONIOENCODING": "latin-1"},
    ).json  # fmt: skip
    assert document["choices"][0]["text"] == "é🌍 T"


def test_bytes_on_the_command_line_that_are_not_text() -> None:
    outcome = run_apart("generate", "fake", "--prompt", "bad \udcff")
    assert outcome.code == 2
    assert "lone surrogate" in outcome.error
    outcome = run_apart("generate", "bad \udcff", "--prompt", "x")
    assert outcome.code == 1
    assert "\\udcff" in outcome.error


@pytest.mark.parametrize("more", [(), ("--json",), ("--no-stream",), ("--n", "2")])
def test_a_receipt_is_written_to_a_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, more: tuple[str, ...]
) -> None:
    file = tmp_path / "receipt.json"
    done = run_here(capsys, *ASK, "--receipt", str(file), *more)
    assert done.code == 0
    receipt, _ = opened(read(file.read_text()))
    assert receipt.is_replayable
    assert receipt.choices[0].token_ids[:-1] == tuple(SAID.encode())  # and the end
    if "--json" in more:
        assert done.json["receipt"] == read(file.read_text())


def test_a_receipt_that_cannot_be_written_is_refused_first(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    done = run_here(capsys, *ASK, "--receipt", str(tmp_path / "no" / "file"))
    assert done.code == 2
    assert not done.out
