"""Which engine `auto` takes for a model, by its files alone, and what it refuses to ignore."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from drivetrain import assembly
from drivetrain.core.engine import WeightsFormat
from drivetrain.core.errors import InvalidSetting
from drivetrain.engines.fake import FakeEngine
from drivetrain.engines.first_fit import FirstFit
from drivetrain.store.models import LocalModel
from drivetrain.store.store import Store
from drivetrain.worker.settings import Settings

CAUSAL = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
MLA = {"architectures": ["DeepseekV3ForCausalLM"], "kv_lora_rank": 8}
SEES = {"architectures": ["LlavaForConditionalGeneration"], "vision_config": {}}


def model_of(folder: Path, config: Any) -> LocalModel:
    (folder / "config.json").write_text(json.dumps(config))
    return LocalModel(
        name="m", path=folder, format=WeightsFormat.SAFETENSORS, reference="m", digest=None, source="local"
    )


def chosen(folder: Path, config: Any, **settings: Any) -> assembly.EngineChoice:
    return assembly.choose_engine(Settings(**settings), model_of(folder, config))


def names(choice: assembly.EngineChoice) -> list[str]:
    return [kind.name for kind in choice.kinds]


@pytest.mark.parametrize(
    "config",
    [
        CAUSAL,
        {"architectures": ["GPT2LMHeadModel"]},
        {"architectures": ["Phi3VForCausalLM"], "vision_config": {}},
        {},
        {"architectures": ["MineForCausalLM"], "auto_map": {"AutoModelForCausalLM": "mine.M"}},
        {"architectures": ["MineForCausalLM"], "model_type": "falcon", "auto_map": {"AutoModelForCausalLM": "m.M"}},
        {**CAUSAL, "model_type": ["falcon"]},
        {**CAUSAL, "rope_scaling": {"type": "linear", "factor": 2.0}, "layer_types": ["full_attention"]},
        {**CAUSAL, "layer_types": 5, "rope_scaling": "x", "text_config": 7},  # judged by who can read it, later
        {"architectures": "LlamaForCausalLM"},
        {"architectures": {"a": 1}},
        {"architectures": [5]},
    ],
)
def test_causal_folders_are_for_native_and_then_for_transformers(tmp_path: Path, config: Any) -> None:
    choice = chosen(tmp_path, config)
    assert names(choice) == ["native", "transformers"]
    assert choice.kind.name == "native"
    assert choice.notes == ()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (SEES, "it sees images"),
        ({"architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True}, "it is an encoder-decoder"),
        ({"architectures": ["BertModel"]}, "it gives embeddings"),
        ({"architectures": ["BertForMaskedLM"]}, "it gives embeddings"),
    ],
)
def test_other_kinds_are_for_transformers(tmp_path: Path, config: Any, words: str) -> None:
    choice = chosen(tmp_path, config)
    assert names(choice) == ["transformers"]
    assert words in choice.why
    assert choice.notes == ()  # nothing was passed over


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (MLA, "MLA"),
        ({**CAUSAL, "layer_types": ["full_attention", "linear_attention"]}, "linear_attention"),
        ({**CAUSAL, "attention_chunk_size": 16}, "in chunks"),
        ({**CAUSAL, "rope_scaling": {"type": "longrope"}}, "longrope"),
        ({**CAUSAL, "rope_parameters": {"full_attention": {"rope_type": "dynamic"}}}, "dynamic"),
        ({**CAUSAL, "text_config": {"num_kv_shared_layers": 2}}, "share their keys"),
        ({"architectures": ["FalconForCausalLM"]}, "the class FalconForCausalLM does its attention by itself"),
        ({"model_type": "gptj"}, "the class GPTJForCausalLM does its attention by itself"),
        ({"architectures": ["RWForCausalLM"], "model_type": "falcon"}, "FalconForCausalLM does its attention"),
    ],
)
def test_what_the_configuration_tells_against_native_is_said(tmp_path: Path, config: Any, words: str) -> None:
    choice = chosen(tmp_path, config)
    assert names(choice) == ["transformers"]
    assert choice.why.startswith("native cannot run this model: ")
    assert words in choice.why
    assert choice.notes == (choice.why,)


def test_a_named_engine_is_the_only_one(tmp_path: Path) -> None:
    for name in ("native", "transformers"):
        assert names(chosen(tmp_path, MLA, engine=name)) == [name]


def test_gguf(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = dataclasses.replace(model_of(tmp_path, {}), format=WeightsFormat.GGUF)
    choice = assembly.choose_engine(Settings(), model)
    assert (names(choice), choice.why) == (["llamacpp"], "the weights are gguf, which llamacpp runs as they are")
    widened = assembly.choose_engine(Settings(), dataclasses.replace(model, form="F16"))
    assert (names(widened), "runs in F16" in widened.why) == (["llamacpp"], True)
    missing = dataclasses.replace(assembly.ENGINES["llamacpp"], needs=("no_such_module",))
    monkeypatch.setitem(assembly.ENGINES, "llamacpp", missing)
    choice = assembly.choose_engine(Settings(), model)
    assert names(choice) == ["native", "transformers"]
    assert "llamacpp, which runs them as they are, is not installed" in choice.why
    monkeypatch.setattr(assembly.EngineKind, "installed", False)
    assert names(assembly.choose_engine(Settings(), model)) == ["llamacpp"]


NO_MLA = "native cannot run this model (it keeps compressed keys and values (MLA))"
INSTEAD = "leave it out, or set it only for other models"


@pytest.mark.parametrize(
    ("config", "setting", "words"),
    [
        (MLA, "kv_cache_gb", f"{NO_MLA}, and transformers has no setting kv_cache_gb; leave it out"),
        (SEES, "max_batch", f"the engine transformers has no setting max_batch; {INSTEAD}"),
        (CAUSAL, "slots", f"the engine native has no setting slots; {INSTEAD}"),
    ],
)
def test_a_setting_that_the_engine_does_not_have_is_refused(
    tmp_path: Path, config: Any, setting: str, words: str
) -> None:
    (tmp_path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    model_of(tmp_path, config)
    with pytest.raises(InvalidSetting) as caught:
        assembly.open_parts(str(tmp_path), Settings(engine_options={setting: 1}), store=Store(tmp_path / "store"))
    assert caught.value.message == words
    assert caught.value.param == setting


@pytest.mark.parametrize(("stated", "origin"), [({}, ("catalogue", 0.2)), ({"temperature": 0.7}, ("settings", 0.7))])
async def test_what_the_catalogue_recommends_goes_to_the_worker(
    tmp_path: Path, stated: dict[str, Any], origin: tuple[str, float]
) -> None:
    found = dataclasses.replace(model_of(tmp_path, CAUSAL), sampling={"temperature": 0.2, "top_p": 0.9})
    settings = Settings(**stated)
    spec = assembly.spec_of(found, settings, Store(tmp_path / "store"))
    async with assembly.Worker(FakeEngine(), spec, settings) as worker:
        neutral = {"max_repetitions": ("neutral", 0)}
        assert worker.metadata.sampling == {"temperature": origin, **neutral}  # all that is honoured with the fake


def test_settings_that_only_one_engine_has_go_with_it(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    model_of(tmp_path, CAUSAL)
    parts = assembly.open_parts(
        str(tmp_path), Settings(engine_options={"kv_cache_gb": 1.0}), store=Store(tmp_path / "store")
    )
    assert isinstance(parts.make(), FirstFit)
    assert parts.make() is not parts.make()
    assert parts.spec.options == {"kv_cache_gb": 1.0}
