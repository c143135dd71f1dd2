"""`drivetrain diff`: what it prints, writes, refuses and exits with, on the fake, on tiny weights and on real ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_rigs import Outcome, run_here, script_fakes, without_settings

from drivetrain.text.answers.detect import FormChoice
from drivetrain.worker import model


@pytest.fixture(autouse=True)
def plain_environment(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if "smollm2" not in request.fixturenames:  # which is in the store that the machine has
        without_settings(monkeypatch, tmp_path / "home")


def diff(capsys: pytest.CaptureFixture[str], *arguments: str) -> Outcome:
    return run_here(capsys, "diff", *arguments)


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    path = tmp_path / "prompts.txt"
    path.write_text("One\nTwo\n", "utf-8")
    return str(path)


def test_the_same_engine_twice(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = diff(capsys, "fake", "--engines", "fake,fake", "--tokens", "10")
    assert (outcome.code, outcome.err) == (0, "")
    head, first, second, blank, summary, figures = outcome.out.splitlines()
    assert head.split() == ["side", "engine", "model", "weights", "device"]
    assert first.split() == ["fake", "fake", "fake", "none", "none"]
    assert second.startswith("fake (2) ")
    assert not blank
    assert summary == "fake and fake (2): of 8 prompts 8 agree completely"
    assert figures == "    logprobs of the 80 common tokens differ by at most 0, on average 0"


def test_a_parting(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, prompts: str, tmp_path: Path
) -> None:
    script_fakes(monkeypatch, {"text": "a cat!"}, {"text": "a cat "})
    path = tmp_path / "diff.json"
    outcome = diff(capsys, "fake", "--engines", "fake,fake", "--prompts", prompts, "--top", "3", "--json", str(path))
    assert outcome.code == 1
    assert outcome.err == f"written: {path}\n"
    lines = outcome.out.splitlines()
    assert lines[4:8] == [
        "fake and fake (2): of 2 prompts 0 agree completely, 2 diverge",
        "    tokens before they diverge: at least 5, median 5 (of 32)",
        "    where they diverge, each side's token is among the other's top 2",
        "    logprobs of the 10 common tokens differ by at most 0, on average 0",
    ]
    assert lines[9:13] == [
        "DIVERGES 'One' after 5 equal tokens: 'a cat'",
        "    fake      '!'#33 -0.5000  ' '#32 -3.5000  '\"'#34 -3.7500",
        "    fake (2)  ' '#32 -0.5000  '!'#33 -3.6250  '\"'#34 -3.7500",
        "    fake rates the other's token 3 below its own, beyond the tolerance of 0.001",
    ]
    found = json.loads(path.read_text())
    assert (found["complete"], found["num_tokens"], found["prompts"]) == (True, 32, ["One", "Two"])
    (pair,) = found["pairs"]
    assert (pair["first"], pair["second"], pair["same"]) == ("fake", "fake (2)", False)
    assert pair["summary"]["counts"] == {"agrees": 0, "tie": 0, "parts": 2, "other prompt": 0}
    (one, _) = pair["prompts"]
    assert (one["outcome"], one["num_common"], one["differences"]) == ("parts", 5, [0.0] * 5)
    assert (one["parting"]["gap"], one["parting"]["worst_rank"]) == (3.0, 2)
    assert one["parting"]["second"]["top"][0] == {"token_id": 32, "token": " ", "logprob": -0.5}
    assert [len(answer["places"]) for side in found["sides"] for answer in side["answers"]] == [7] * 4


def reasoning_forms(monkeypatch: pytest.MonkeyPatch, *forms: FormChoice) -> None:
    """Each model that is loaded takes the next one."""
    left = iter(forms)
    monkeypatch.setattr(model, "form_of", lambda _: next(left))


REASONS = FormChoice("generic", "for this test", reasons=True)


def test_reasoning_and_content_are_told_apart(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, prompts: str, tmp_path: Path
) -> None:
    script_fakes(monkeypatch, {"text": "<think>Hm</think>Yes"}, {"text": "<think>Ha</think>Yes"})
    reasoning_forms(monkeypatch, REASONS, REASONS)
    path = tmp_path / "diff.json"
    asked = ("--chat", "--prompts", prompts, "--json", str(path))
    lines = diff(capsys, "fake", "--engines", "fake,fake", *asked).out.splitlines()
    assert [line.split()[-1] for line in lines[:3]] == ["form", "generic", "generic"]
    assert lines[8:10] == [
        "    reasoning: in 2 and 2 answers, 2 differ",
        "    content: in 2 and 2 answers, 0 differ",
    ]
    assert lines.count("    what differs: reasoning") == 2
    found = json.loads(path.read_text())
    assert found["sides"][1]["answers"][0]["parts"] == {"reasoning": "Ha", "content": "Yes", "calls": []}
    assert found["pairs"][0]["prompts"][0]["parts_apart"] == ["reasoning"]


def test_calls_of_offered_tools(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, prompts: str, tmp_path: Path
) -> None:
    """The form is that of answers to a chat with tools, which the fake's template cannot write."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps([{"type": "function", "function": {"name": "f", "parameters": schema}}]))
    texts = [f'<tool_call>\n{{"name": "f", "arguments": {{"a": {a}}}}}\n</tool_call>' for a in (1, 2)]
    script_fakes(monkeypatch, *({"text": text} for text in texts))
    reasoning_forms(monkeypatch, *[FormChoice("mistral", "for this test")] * 2)
    asked = ("--chat", "--tools", str(tools), "--prompts", prompts, "--tokens", "99")
    outcome = diff(capsys, "fake", "--engines", "fake,fake", *asked)
    assert outcome.code == 1
    lines = outcome.out.splitlines()
    assert [line.split()[-1] for line in lines[1:3]] == ["generic", "generic"]
    assert "    calls: in 2 and 2 answers, 2 differ" in lines
    assert lines.count("    what differs: calls") == 2


def test_forms_that_differ_are_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, prompts: str
) -> None:
    """The same tokens, read as reasoning and content on one side and as content on the other."""
    script_fakes(monkeypatch, {"text": "<think>Hm</think>Yes"})
    reasoning_forms(monkeypatch, REASONS, FormChoice("mistral", "for this test"))
    outcome = diff(capsys, "fake", "--engines", "fake,fake", "--chat", "--prompts", prompts)
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    assert [line.split()[-1] for line in lines[1:3]] == ["generic", "mistral"]
    assert "    reasoning: in 2 and 0 answers, 2 differ" in lines
    assert "    the answer forms differ (generic; mistral), so the same text may be read as different parts" in lines
    at = lines.index("READ DIFFERENTLY 'One': the tokens are equal")
    assert lines[at + 1] == "    what differs: reasoning, content"


def test_a_tie_is_no_difference(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    script_fakes(monkeypatch, {"text": "a cat!"}, {"text": "a cat "})
    outcome = diff(capsys, "fake", "--engines", "fake,fake", "--tolerance", "3")
    assert outcome.code == 0
    assert "of 8 prompts 0 agree completely, 8 diverge in a tie" in outcome.out
    assert "TIE 'The capital of France is' after 5 equal tokens: 'a cat'" in outcome.out
    assert "3 below its own, within the tolerance of 3" in outcome.out


def test_an_early_end(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, prompts: str) -> None:
    script_fakes(monkeypatch, {"text": "cat"}, {"text": "cats"})
    outcome = diff(capsys, "fake", "--engines", "fake,fake", "--prompts", prompts)
    assert outcome.code == 1
    assert "DIVERGES 'One' after 3 equal tokens: 'cat'" in outcome.out
    assert "the other's token is not in the list of fake" in outcome.out


def test_without_logprobs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, prompts: str) -> None:
    lacking = frozenset({"logprobs"})
    script_fakes(monkeypatch, {"text": "cat", "unsupported": lacking}, {"text": "car", "unsupported": lacking})
    outcome = diff(capsys, "fake", "--engines", "fake,fake", "--prompts", prompts, "--tolerance", "100")
    assert outcome.code == 1
    assert "    logprobs: none to compare" in outcome.out
    assert f"    fake      #{ord('t')}  (no logprobs)" in outcome.out


def test_one_engine_is_open_at_a_time(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    open_at_once: list[int] = []

    def reply(_: Any) -> bytes:
        open_at_once.append(sum(engine._loop_task is not None for engine in made))
        return b"abc"

    made = script_fakes(monkeypatch, {"reply": reply, "repeat": True})
    assert diff(capsys, "fake", "--engines", "fake,fake,fake", "--tokens", "2").code == 0
    assert open_at_once == [1] * 24
    assert [engine._loop_task for engine in made] == [None] * 3


def test_what_was_found_is_told_although_a_later_engine_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script_fakes(monkeypatch, {}, {}, {"load_error": ValueError("no room")})
    path = tmp_path / "diff.json"
    outcome = diff(capsys, "fake", "--engines", "fake,fake,fake", "-q", "--json", str(path))
    assert outcome.code == 1
    assert "fake and fake (2): of 8 prompts 8 agree completely" in outcome.out
    assert "not all engines were asked." in outcome.out
    assert outcome.err.splitlines()[1].startswith("drivetrain: the fake was told to fail")
    assert json.loads(path.read_text())["complete"] is False


def test_explain(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--threads", "3", "--dtype", "float32", "--model-for", "llamacpp=other.gguf", "--explain")
    engines = "native:quantize=int8,max-batch=2,llamacpp"
    outcome = diff(capsys, "some/model", "--engines", engines, *flags)
    assert outcome.code == 0
    native, _, llamacpp = outcome.out.partition("\nllamacpp\n")
    assert native.splitlines()[0] == "native:quantize=int8,max-batch=2"

    def stated(text: str) -> set[tuple[str, str]]:
        return {(words[0], words[1]) for line in text.splitlines() if "(flag" in line and (words := line.split())}

    assert stated(native) == {
        ("engine", "'native'"),
        ("quantize", "'int8'"),
        ("max_batch", "2"),
        ("dtype", "'float32'"),
    }
    assert stated(llamacpp) == {("engine", "'llamacpp'"), ("threads", "3")}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fake"], "--engines"),
        (["fake", "--engines", "fake"], "must name two or more"),
        (["fake", "--engines", "fake,vlm"], "--engines has 'vlm'; it must be one of"),
        (["fake", "--engines", "auto,fake"], "--engines has 'auto'"),
        (["fake", "--engines", "dtype=float32,native"], "name an engine first"),
        (["fake", "--engines", "native:,fake"], "it must be a setting such as quantize=int8"),
        (["fake", "--engines", "native:quantise=int8,fake"], "did you mean quantize?"),
        (["fake", "--engines", "native:max_batch=two,fake"], "must be an integer, not 'two'"),
        (["fake", "--engines", "native:dtype=float32,dtype=float16"], "--engines names dtype twice for native"),
        (["fake", "--engines", "native:engine=fake,fake"], "--engines names engine twice"),
        (["fake", "--engines", "fake:dtype=float32,fake"], "the engine fake has no setting dtype"),
        (["fake", "--engines", "fake,fake", "--dtype", "float32"], "none of these engines has a setting dtype"),
        (["fake", "--engines", "fake,fake", "--model-for", "native=x"], "which --engines does not name"),
        (["fake", "--engines", "fake,fake", "--model-for", "fake"], "it must be ENGINE=MODEL"),
        (["x", "--engines", "fake,native", "--model-for", "fake=a", "--model-for", "fake=b"], "for fake twice"),
        (["fake", "--engines", "fake,remote"], "the engine remote needs a URL"),
        (["fake", "--engines", "fake,fake", "--tokens", "0"], "--tokens is 0"),
        (["fake", "--engines", "fake,fake", "--top", "1"], "--top is 1; it must be from 2"),
        (["fake", "--engines", "fake,fake", "--top", "21"], "logprobs"),
        (["fake", "--engines", "fake,fake", "--tolerance", "-1"], "--tolerance is -1"),
        (["fake", "--engines", "fake,fake", "--tolerance", "nan"], "--tolerance is nan"),
        (["fake", "--engines", "fake,fake", "--prompts", "/no/such/file"], "cannot be read"),
        (["fake", "--engines", "fake,fake", "--chat", "--tools", "/no/such/file"], "cannot be read"),
        (["fake", "--engines", "fake,fake", "--tools", "/dev/null"], "/dev/null is not JSON"),
        (["fake", "--engines", "fake,fake", "--json", "/no/such/folder/x"], "cannot be written"),
    ],
)
def test_asked_wrongly(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    outcome = diff(capsys, *arguments)
    assert outcome.code == 2
    assert words in outcome.error
    assert not outcome.out


def test_tiny_weights_on_two_engines(
    capsys: pytest.CaptureFixture[str], checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    model, path = str(checkpoint("llama")), tmp_path / "diff.json"
    engines = "native,transformers,native:quantize=int8"
    outcome = diff(capsys, model, "--engines", engines, "--tokens", "12", "-q", "--json", str(path))
    assert "native and transformers: of 8 prompts 8 agree completely" in outcome.out
    assert "the weights differ (safetensors as float32; safetensors as float32, in int8)" in outcome.out
    alike, rounded = json.loads(path.read_text())["pairs"]
    assert alike["same"] is True
    assert alike["summary"]["num_compared"] > 80
    assert alike["summary"]["largest_difference"] < 1e-4
    assert rounded["summary"]["largest_difference"] > 1e-3
    assert outcome.code == (0 if rounded["same"] else 1)


@pytest.mark.slow
def test_smollm2_on_native_and_transformers(capsys: pytest.CaptureFixture[str], smollm2: str, tmp_path: Path) -> None:
    path = tmp_path / "diff.json"
    settings = ("--dtype", "float32", "--tokens", "16", "-q", "--json", str(path))
    outcome = diff(capsys, smollm2, "--engines", "native,transformers", *settings)
    assert outcome.code == 0, outcome.out
    (pair,) = json.loads(path.read_text())["pairs"]
    assert pair["summary"]["num_compared"] > 80
    assert pair["summary"]["largest_difference"] < 1e-3
