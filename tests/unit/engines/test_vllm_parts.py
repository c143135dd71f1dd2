"""The parts of the vllm engine that need no vLLM: settings, outputs as steps, errors, the waits before a restart."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from drivetrain.assembly import SETTINGS
from drivetrain.core.engine import ModelSpec, WeightsFormat
from drivetrain.core.errors import EngineFailed, InvalidRequest, InvalidSetting, LoadFailed, MissingExtra, Overloaded
from drivetrain.core.parameters import ENGINE_PARAMETERS
from drivetrain.core.results import FinishReason
from drivetrain.engines.vllm import errors
from drivetrain.engines.vllm.capabilities import NEEDS, capabilities_of, stated_capabilities
from drivetrain.engines.vllm.describe import of_files
from drivetrain.engines.vllm.image_places import refuse_empty_places
from drivetrain.engines.vllm.options import engine_arguments, refuse_unknown, with_images
from drivetrain.engines.vllm.outputs import id_logprobs, prompt_step, token_step
from drivetrain.worker.sources import read_settings


def test_settings_become_engine_arguments() -> None:
    given = engine_arguments(
        {
            "dtype": "float32",
            "context_length": 512,
            "kv_cache_gb": 0.5,
            "max_batch": 8,
            "prefix_cache": False,
            "vllm_args": {"tensor_parallel_size": 2},
        }
    )
    assert given["dtype"] == "float32"
    assert given["max_model_len"] == 512
    assert given["kv_cache_memory_bytes"] == 2**29
    assert given["max_num_seqs"] == 8
    assert given["enable_prefix_caching"] is False
    assert given["tensor_parallel_size"] == 2
    assert given["logprobs_mode"] == "raw_logprobs"
    assert given["structured_outputs_config"] == {"backend": "guidance"}


@pytest.mark.parametrize(("name", "value"), [("kv_cache_gb", 0.0), ("max_batch", 0), ("max_batch", True)])
def test_sizes_that_cannot_be_are_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidSetting) as caught:
        engine_arguments({name: value})
    assert caught.value.param == name


def test_what_is_not_set_is_left_to_vllm() -> None:
    assert not {"max_model_len", "kv_cache_memory_bytes"} & engine_arguments({}).keys()


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("dtype", "set dtype"),
        ("max_model_len", "set context_length"),
        ("model", "fixed"),
        ("logprobs_mode", "fixed"),
        ("structured_outputs_config", "fixed"),
    ],
)
def test_an_argument_that_is_ours_is_refused_in_vllm_args(name: str, hint: str) -> None:
    with pytest.raises(InvalidSetting, match=hint) as caught:
        engine_arguments({"vllm_args": {name: 1}})
    assert caught.value.param == "vllm_args"


def test_an_argument_that_this_vllm_lacks_is_refused_by_name() -> None:
    arguments = engine_arguments({"context_length": 9, "vllm_args": {"warp": 9}})
    with pytest.raises(InvalidSetting, match=r"vLLM 1\.0 has no engine argument warp"):
        refuse_unknown(arguments, arguments.keys() - {"warp"}, "1.0")
    with pytest.raises(InvalidSetting) as caught:
        refuse_unknown(arguments, arguments.keys() - {"max_model_len"}, "1.0")
    assert caught.value.param == "context_length"
    assert "structured_outputs_config" not in refuse_unknown(
        arguments, arguments.keys() - {"structured_outputs_config"}, "1.0"
    )
    assert "use_tqdm_on_load" not in refuse_unknown(arguments, arguments.keys() - {"use_tqdm_on_load"}, "1.0")


def test_a_parameter_that_this_vllm_lacks_is_not_declared() -> None:
    everything = capabilities_of(100, 4)
    assert NEEDS.keys() <= everything.parameters
    assert NEEDS.keys() <= ENGINE_PARAMETERS
    older = capabilities_of(100, 4, set(NEEDS.values()) - {"min_p", "_bad_words_token_ids"})
    assert everything.parameters - older.parameters == {"min_p", "bad_words_ids"}


def test_images_are_declared_for_a_model_that_sees(checkpoint: Callable[[str], Path]) -> None:
    for name in ("llava", "qwen2_vl_hub"):
        spec = ModelSpec(name="m", path=checkpoint(name), format=WeightsFormat.SAFETENSORS)
        told = of_files(spec, lambda what, share: None)
        assert told.capabilities is not None
        assert told.capabilities.vision
        assert "images" in told.capabilities.parameters
        assert told.tokenizer.chat_template is not None
    assert stated_capabilities({"vision_config": {}}, 512, {}).vision
    assert "images" not in capabilities_of(100, 4).parameters


def test_a_model_that_the_library_does_not_know_is_told_from_its_json(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(checkpoint("llava"), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps({**config, "model_type": "of_tomorrow", "architectures": ["OfTomorrowForCausalLM"]})
    )
    spec = ModelSpec(name="m", path=folder, format=WeightsFormat.SAFETENSORS)
    told = of_files(spec, lambda what, share: None)
    assert told.architecture == "of_tomorrow"
    assert told.context_length == 512
    assert told.capabilities is not None
    assert told.capabilities.vision
    (folder / "config.json").write_text("{}")
    with pytest.raises(LoadFailed, match="model_type"):
        of_files(spec, lambda what, share: None)


def test_a_place_without_an_image_is_refused() -> None:
    """9 is the model's token for images; the second range begins and ends with other ones."""
    places = [
        SimpleNamespace(offset=1, length=2, is_embed=None),
        SimpleNamespace(offset=4, length=4, is_embed=[False, True, True, False]),
    ]
    refuse_empty_places((1, 9, 9, 2, 7, 9, 9, 8, 7, 3), places)
    with pytest.raises(InvalidRequest) as caught:
        refuse_empty_places((1, 9, 9, 2, 7, 9, 9, 8, 9, 3), places)
    assert caught.value.param == "images"


def test_with_images_vllm_has_a_tokenizer_and_keeps_no_images() -> None:
    given = with_images(engine_arguments({"vllm_args": {"limit_mm_per_prompt": {"image": 2}}}))
    assert given["skip_tokenizer_init"] is False
    assert given["mm_processor_cache_gb"] == 0
    assert given["limit_mm_per_prompt"] == {"image": 2}
    assert with_images({})["limit_mm_per_prompt"] == {"video": 0, "audio": 0}
    with pytest.raises(InvalidSetting, match="fixed"):
        engine_arguments({"vllm_args": {"mm_processor_cache_gb": 4}})


def test_an_encoder_is_refused_from_its_files() -> None:
    with pytest.raises(LoadFailed, match="embeddings"):
        stated_capabilities({"architectures": ["BertModel"], "model_type": "bert"}, 512, {})


def test_vllm_args_is_a_table_or_as_text_a_json_object(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("[models.m.vllm_args]\ntensor_parallel_size = 2\n")
    assert read_settings(SETTINGS, "m", {}, environment={}, config=file).settings.value("vllm_args") == {
        "tensor_parallel_size": 2
    }
    environment = {"DRIVETRAIN_VLLM_ARGS": '{"enforce_eager": true}'}
    assert read_settings(SETTINGS, "m", {}, environment=environment).settings.value("vllm_args") == {
        "enforce_eager": True
    }
    for text in ("[1]", "enforce_eager"):
        with pytest.raises(InvalidSetting) as caught:
            read_settings(SETTINGS, "m", {}, environment={"DRIVETRAIN_VLLM_ARGS": text})
        assert caught.value.param == "vllm_args"


def test_nothing_heavy_is_imported_before_load() -> None:
    code = (
        "import sys, drivetrain.engines.vllm.engine as e; e.VllmEngine();"
        "print(sorted({'vllm', 'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_files_alone_tell_what_it_can(checkpoint: Callable[[str], Path]) -> None:
    spec = ModelSpec(
        name="m", path=checkpoint("llama"), format=WeightsFormat.SAFETENSORS, options={"context_length": 64}
    )
    told = of_files(spec, lambda what, share: None)
    assert told.context_length == 64
    assert told.architecture == "llama"
    assert told.capabilities is not None
    assert NEEDS.keys() <= told.capabilities.parameters
    assert told.eos_ids


def logprobs(**ranked: tuple[int, float]) -> dict[int, Any]:
    return {int(i[1:]): SimpleNamespace(rank=rank, logprob=value) for i, (rank, value) in ranked.items()}


def test_the_likeliest_come_in_order_and_the_sampled_one_only_if_it_is_among_them() -> None:
    entry = id_logprobs(logprobs(_9=(7, -5.0), _4=(2, -1.0), _3=(1, -0.5)), 9, 2)
    assert entry.logprob == -5.0
    assert entry.top == ((3, -0.5), (4, -1.0))
    assert id_logprobs(logprobs(_3=(1, -0.5)), 3, 0).top == ()
    assert id_logprobs(None, 3, 2).logprob is None


def completion(ids: list[int], reason: str | None = None, **more: Any) -> Any:
    return SimpleNamespace(token_ids=ids, finish_reason=reason, logprobs=None, **more)


def test_outputs_become_steps() -> None:
    step = token_step(1, completion([4, 5], "length"), None)
    assert (step.index, step.token_ids, step.reason) == (1, (4, 5), FinishReason.LENGTH)
    assert token_step(0, completion([4], "stop"), None).reason is FinishReason.STOP
    assert token_step(0, completion([4]), None).reason is None
    with pytest.raises(EngineFailed, match="abort"):
        token_step(0, completion([4], "abort"), None)


def test_the_prompt_is_told_with_what_was_asked_of_it() -> None:
    output = SimpleNamespace(
        prompt_token_ids=[8, 9], prompt_logprobs=[None, logprobs(_9=(1, -0.1))], num_cached_tokens=None
    )
    told = prompt_step(output, 1)
    assert told.cached_tokens == 0
    assert told.logprobs is not None
    assert [entry.logprob for entry in told.logprobs] == [None, -0.1]
    assert prompt_step(output, None).logprobs is None


def vllms(name: str, base: type[Exception] = Exception) -> type[Exception]:
    return type(name, (base,), {})


def test_each_class_of_vllm_has_its_own_ending() -> None:
    client = vllms("VLLMClientError")
    grammar = vllms("VLLMValidationError", client)("Grammar error: unknown name")
    assert errors.while_running(grammar).param == "constraint"
    bad = vllms("VLLMValidationError", client)("top_p is wrong")
    bad.parameter = "top_p"  # type: ignore[attr-defined]  # as vLLM's has
    translated = errors.while_running(bad)
    assert isinstance(translated, InvalidRequest)
    assert translated.param == "top_p"
    assert isinstance(errors.while_running(vllms("Newer", client)("x")), InvalidRequest)
    assert isinstance(errors.while_running(vllms("QueueOverflowError")("x")), Overloaded)
    assert errors.while_running(vllms("EngineDeadError")("x")).message == errors.DEAD
    assert isinstance(errors.while_running(ValueError("x")), EngineFailed)


def test_the_cause_of_a_general_error_is_what_is_told() -> None:
    wrapped = vllms("EngineGenerateError")()
    wrapped.__cause__ = vllms("VLLMClientError")("too long")
    assert isinstance(errors.while_running(wrapped), InvalidRequest)


def test_a_missing_vllm_is_said_with_what_to_install() -> None:
    error = errors.while_loading(ModuleNotFoundError("No module named 'vllm'", name="vllm"))
    assert isinstance(error, MissingExtra)
    assert error.extra == "vllm"


def test_too_little_memory_says_which_setting_to_raise() -> None:
    error = errors.while_loading(ValueError("To serve at least one request, 2 GiB KV cache is needed"))
    assert isinstance(error, LoadFailed)
    assert "kv_cache_gb" in error.message
