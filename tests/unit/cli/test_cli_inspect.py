"""`drivetrain inspect`: the fake in full, folders with the library and without it, and what is refused."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_rigs import run_here, without_settings

from drivetrain import assembly
from drivetrain.cli.terminal.values import plain

EXTRA = "pip install '.[native]'"
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{{ '<|im_start|>assistant\n' }}"
)

TOOLS = (
    "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>"
    '{{ {"name": c.function.name, "arguments": c.function.arguments} | tojson }}</tool_call>{% endfor %}<|im_end|>\n'
    "{% endfor %}{% if enable_thinking %}<think>{% endif %}<|im_start|>assistant\n"
)


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_settings(monkeypatch, tmp_path / "home")


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an installation without extras."""
    monkeypatch.setattr(assembly.EngineKind, "installed", False)


def _folder(root: Path, **files: Any) -> Path:
    """A model folder of JSON files, with weights that hold nothing."""
    root.mkdir()
    (root / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    (root / "tokenizer.json").write_text("{}")
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "max_position_embeddings": 128}
    (root / "config.json").write_text(json.dumps(files.pop("config", config)))
    for name, content in files.items():
        suffix = ".jinja" if isinstance(content, str) else ".json"
        (root / (name + suffix)).write_text(content if isinstance(content, str) else json.dumps(content))
    return root


def test_the_fake_tells_all(capsys: pytest.CaptureFixture[str]) -> None:
    found = run_here(capsys, "inspect", "fake", "--message", "say <|im_end|>", "--json").json
    assert (found["engine"], found["engine_why"]) == ("fake", "the model name is fake")
    assert (found["family"], found["family_is_fallback"]) == ("template", False)
    assert found["stop_tokens"] == {"257": "</s>", "259": "<|im_end|>"}
    assert found["context_length"] == found["capabilities"]["context_length"] == 4096
    assert found["sampling"]["temperature"] == {"value": 1.0, "origin": "neutral"}
    assert found["missing"] == []
    assert found["answer_form"] == "generic"
    assert found["answer_form_why"] == "the model's chat template shows no known form"
    prompt = found["prompt"]
    assert prompt["text"] == "<|im_start|>user\nsay <|im_end|><|im_end|>\n<|im_start|>assistant\n"
    assert {"text": "say <|im_end|>", "literal": True} in prompt["segments"]
    assert prompt["token_ids"].count(259) == 1  # the one that the user spelled is plain text
    assert found["settings"]["engine"] == {"value": "auto", "origin": "default"}


def test_it_renders_what_generate_sends(capsys: pytest.CaptureFixture[str]) -> None:
    chat = ("--system", "S", "--message", "a", "--assistant", "b", "--message", "<s>")
    for given in (chat, ("--prompt", "once <s>")):
        found = run_here(capsys, "inspect", "fake", *given, "--json").json
        sent = run_here(capsys, "generate", "fake", *given, "--max-tokens", "1", "--json").json
        assert found["prompt"]["token_ids"] == sent["prompt_token_ids"]


def test_as_text(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRIVETRAIN_FAKE_TEMPERATURE", "0.5")
    outcome = run_here(capsys, "inspect", "fake", "--prompt", "two\nlines", "--max-tokens", "9")
    assert outcome.code == 0
    assert "engine        fake: the model name is fake\n" in outcome.out
    assert "sampling      temperature 0.5  (settings)\n" in outcome.out
    assert "setting       temperature 0.5  (environment DRIVETRAIN_FAKE_TEMPERATURE)\n" in outcome.out
    assert "answer        at most 9 tokens\n" in outcome.out
    assert "prompt of 10 tokens:\n  | two\n  | lines\n" in outcome.out
    assert outcome.out.endswith("  256 116 119 111 10 108 105 110 101 115\n")


def test_a_fallback_is_said_plainly(capsys: pytest.CaptureFixture[str], bare: None, tmp_path: Path) -> None:
    folder = _folder(tmp_path / "unheard-of", config={"model_type": "odd", "architectures": ["OddForCausalLM"]})
    found = run_here(capsys, "inspect", str(folder), "--json").json
    assert (found["family"], found["family_is_fallback"]) == ("plain", True)
    text = run_here(capsys, "inspect", str(folder)).out
    assert "plain, a fallback, and perhaps not what this model was trained on" in text
    assert "set family to one of alpaca, chatml" in text
    named = run_here(capsys, "inspect", str(folder), "--family", "plain", "--json").json
    assert (named["family_is_fallback"], named["family_why"]) == (False, "named by the setting")


def test_a_folder_without_the_library(capsys: pytest.CaptureFixture[str], bare: None, tmp_path: Path) -> None:
    folder = _folder(
        tmp_path / "tiny-chat",
        chat_template=CHATML,
        tokenizer_config={
            "eos_token": {"content": "<|im_end|>"},
            "added_tokens_decoder": {
                "1": {"content": "<|im_start|>", "special": True},
                "2": {"content": "<|im_end|>", "special": True},
                "9": {"content": "<think>", "special": False},
            },
        },
        generation_config={"temperature": 0.6, "top_p": 0.9, "eos_token_id": [2, 5]},
    )
    outcome = run_here(capsys, "inspect", str(folder), "--message", "a <|im_end|> b", "--top-p", "0.5", "--json")
    assert outcome.code == 0
    found = outcome.json
    assert (found["engine"], found["engine_ready"], found["install"]) == ("native", False, EXTRA)
    assert (found["format"], found["source"], found["architecture"]) == ("safetensors", "local", "llama")
    assert found["family"] == "template"
    assert found["context_length"] == 128
    assert found["stop_tokens"] == {"2": "<|im_end|>", "5": ""}
    assert found["sampling"]["temperature"] == {"value": 0.6, "origin": "generation_config"}
    assert found["sampling"]["top_p"] == {"value": 0.5, "origin": "settings"}
    assert found["prompt"]["text"] == "<|im_start|>user\na <|im_end|> b<|im_end|>\n<|im_start|>assistant\n"
    assert found["prompt"]["token_ids"] is None
    assert found["missing"] == [f"token ids need the tokenizer of transformers: {EXTRA}"]
    assert f"not installed; run: {EXTRA}" in run_here(capsys, "inspect", str(folder)).out


def test_the_form_of_answers(capsys: pytest.CaptureFixture[str], bare: None, tmp_path: Path) -> None:
    calls = CHATML + '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    by_markers = _folder(tmp_path / "markers", chat_template=calls)
    rows = (
        'answer form   hermes: the model\'s chat template has <tool_call> and "arguments"\n'
        "tool form     generic: the model's chat template cannot write tools, so they are described in plain turns\n"
    )
    assert rows in run_here(capsys, "inspect", str(by_markers)).out
    template = {"start_anchor": "assistant\n", "fields": {"content": {"close": "<|im_end|>"}}}
    own = _folder(tmp_path / "own", chat_template=calls, tokenizer_config={"response_template": template})
    found = run_here(capsys, "inspect", str(own), "--json").json
    assert (found["answer_form"], found["answer_form_why"]) == (
        "response_template",
        "the model's own response_template",
    )


def test_the_form_of_calls_where_the_template_writes_tools(
    capsys: pytest.CaptureFixture[str], bare: None, tmp_path: Path
) -> None:
    """A setting that names another prompt form takes the tools from the template, but not the form of its answers."""
    folder = str(_folder(tmp_path / "own", chat_template=TOOLS))
    found = run_here(capsys, "inspect", folder, "--json").json
    assert (found["answer_form"], found["tool_form"]) == ("hermes", "hermes")
    assert found["tool_form_why"] == "the model's chat template writes the tools"
    assert found["capabilities"]["template_variables"] == ["enable_thinking"]
    assert "\nvariables     enable_thinking\n" in run_here(capsys, "inspect", folder).out
    named = run_here(capsys, "inspect", folder, "--family", "chatml", "--json").json
    assert (named["answer_form"], named["tool_form"]) == ("hermes", "generic")
    assert named["tool_form_why"].startswith("the prompt form chatml cannot write tools")
    assert named["capabilities"]["template_variables"] == []


@pytest.mark.parametrize("name", ["llama", "qwen2"])
async def test_it_declares_what_the_worker_declares(
    capsys: pytest.CaptureFixture[str], checkpoint: Callable[[str], Path], name: str
) -> None:
    folder, arguments = str(checkpoint(name)), ("--max-running", "3", "--max-tools", "7", "--json")
    found = await asyncio.to_thread(run_here, capsys, "inspect", folder, *arguments)
    async with assembly.Worker.open(folder, max_running=3, max_tools=7) as worker:
        assert found.json["capabilities"] == plain(worker.capabilities)
        assert (found.json["answer_form"], found.json["engine"]) == (worker.metadata.answer_form, "native")
    assert "max_reasoning_tokens" in found.json["capabilities"]["parameters"]


@pytest.mark.parametrize(
    ("config", "able"),
    [
        ({"architectures": ["LlavaForConditionalGeneration"], "vision_config": {}}, {"generation", "vision"}),
        ({"architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True}, {"generation"}),
        ({"architectures": ["BertModel"]}, {"embeddings"}),
        ({"architectures": ["GPT2LMHeadModel"]}, {"generation", "embeddings"}),
        ({}, {"generation", "embeddings"}),
    ],
)
def test_capabilities_without_the_library(
    capsys: pytest.CaptureFixture[str], bare: None, tmp_path: Path, config: dict[str, Any], able: set[str]
) -> None:
    found = run_here(capsys, "inspect", str(_folder(tmp_path / "model", config=config)), "--json").json
    capabilities = found["capabilities"]
    assert {name for name in ("generation", "vision", "embeddings") if capabilities[name]} == able
    assert (found["prompt"] is None) == ("generation" not in able)


def test_a_gguf_file_without_the_library(capsys: pytest.CaptureFixture[str], bare: None, tmp_path: Path) -> None:
    file = tmp_path / "some-vicuna.gguf"
    file.write_bytes(b"GGUF" + (3).to_bytes(4, "little") + bytes(16))
    by_transformers = ("inspect", str(file), "--engine", "transformers")
    found = run_here(capsys, *by_transformers, "--json").json
    assert (found["format"], found["capabilities"], found["context_length"]) == ("gguf", None, None)
    assert found["family"] == "vicuna"
    unread = "the file's own template, which comes first, could not be read"
    assert (found["answer_form_why"], found["tool_form_why"]) == (unread, unread)
    named = run_here(capsys, *by_transformers, "--family", "chatml", "--json").json
    assert named["tool_form_why"].startswith("the prompt form chatml cannot write tools")
    assert unread in found["family_why"]
    assert found["missing"][0].endswith("pip install '.[transformers]'")
    assert "not known before loading" in run_here(capsys, *by_transformers).out
    assert "holds no vocabulary" in run_here(capsys, "inspect", str(file)).err


@pytest.mark.parametrize("name", ["llama", "llama-infill", "qwen2", "bloom", "t5", "bert", "llava"])
def test_the_json_files_say_what_the_library_says(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    checkpoint: Callable[[str], Path],
    name: str,
) -> None:
    import tiny

    if name not in tiny.ALL:
        pytest.skip(f"there is no tiny {name}")
    folder = str(checkpoint(name))
    by_library = run_here(capsys, "inspect", folder, "--json")
    assert by_library.code == 0, by_library.err
    monkeypatch.setattr(assembly.EngineKind, "installed", False)
    by_files = run_here(capsys, "inspect", folder, "--json").json
    whole = by_library.json
    assert whole["engine_ready"]
    untold = {"whether the class can run in the native engine is tried when it is loaded; so is what memory allows"}
    assert untold & set(whole["missing"]) == (untold if whole["engine"] == "native" else set())
    assert [text for text in whole["missing"] if text not in untold] == by_files["missing"][1:]
    told_apart = {"engine_ready", "install", "missing", "prompt"}
    assert {k: v for k, v in whole.items() if k not in told_apart} == {
        k: v for k, v in by_files.items() if k not in told_apart
    }
    if whole["prompt"] is not None:
        assert whole["prompt"]["token_ids"]
        assert whole["prompt"]["text"] == by_files["prompt"]["text"]


def test_a_model_that_native_refuses_is_for_transformers(
    capsys: pytest.CaptureFixture[str], checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """By what the JSON says, by its class, and by what only the library knows of the architecture."""
    stated, known, mla = tmp_path / "stated", tmp_path / "known", {"model_type": "deepseek_v3"}
    for folder, more in ((stated, {"kv_lora_rank": 8}), (known, {**mla, "architectures": ["DeepseekV3ForCausalLM"]})):
        shutil.copytree(checkpoint("llama"), folder)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **more}))
    of_class = checkpoint("falcon")
    cases = (
        (stated, "compressed keys"),
        (known, "compressed keys"),
        (of_class, "FalconForCausalLM does its attention"),
    )
    for folder, words in cases:
        found = run_here(capsys, "inspect", str(folder), "--json").json
        assert (found["engine"], found["engine_ready"]) == ("transformers", True)
        assert found["engine_why"].startswith("native cannot run this model: ")
        assert words in found["engine_why"]
        assert found["capabilities"]["max_concurrency"] == 1
        refused = run_here(capsys, "inspect", str(folder), "--kv-cache-gb", "1")
        assert refused.code == 2
        assert words in refused.error
        assert "has no setting kv_cache_gb" in refused.error
        named = run_here(capsys, "inspect", str(folder), "--engine", "native")
        assert "use `--engine transformers` for it" in named.error


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"config": {"auto_map": {"AutoModel": "evil.Evil"}}}, "asks to run code of its own"),
        ({"chat_template": "{% for %}"}, "chat template is broken"),
        ({"tokenizer_config": [1]}, "tokenizer_config.json is not a JSON object"),
        ({"generation_config": {"eos_token_id": {"a": 1}}}, "eos_token_id"),
    ],
)
def test_a_broken_folder_is_one_line(
    capsys: pytest.CaptureFixture[str], bare: None, tmp_path: Path, files: dict[str, Any], words: str
) -> None:
    outcome = run_here(capsys, "inspect", str(_folder(tmp_path / "model", **files)))
    assert outcome.code == 1
    assert words in outcome.error


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["./no-such-folder"], 1, "no such folder or file"),
        (["smollm2-135m"], 1, "is not pulled yet; run: drivetrain pull smollm2-135m"),
        (["fake", "--engine", "warp"], 2, "engine is 'warp'"),
        (["fake", "--device", "cpu"], 2, "has no setting device"),
        (["fake", "--family", "nope"], 2, "no family is named 'nope'"),
        (["fake", "--messages-file", "nope.json"], 2, "nope.json cannot be read"),
    ],
)
def test_what_cannot_be_inspected(
    capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, words: str
) -> None:
    outcome = run_here(capsys, "inspect", *arguments)
    assert outcome.code == code
    assert words in outcome.error
