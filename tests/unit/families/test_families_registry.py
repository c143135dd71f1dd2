"""Which family a model gets by its architecture and its name, and what an unknown name is told."""

from __future__ import annotations

import pytest

from drivetrain.core.errors import InvalidSetting
from drivetrain.families import registry

NAMES = (
    "alpaca",
    "chatml",
    "deepseek",
    "deepseek-v3",
    "deepseek-vl",
    "deepseek-vl2",
    "falcon",
    "falcon-chat",
    "gemma",
    "gorilla",
    "guanaco",
    "guanaco-alpaca",
    "llama2",
    "llama3",
    "mistral",
    "phi3",
    "plain",
    "qwen",
    "vicuna",
    "zephyr",
)

BY_NAME = [
    ("guanaco-7b", "guanaco"),
    ("TheBloke/guanaco-33B-GGUF", "guanaco"),
    ("llama-2-7b-guanaco-chat", "guanaco"),
    ("guanaco-alpaca-7b", "guanaco-alpaca"),
    ("gorilla-7b-hf-v1", "gorilla"),
    ("gorilla-llm/gorilla-falcon-7b-hf-v0", "falcon"),
    ("gorilla-llm/gorilla-openfunctions-v2", "plain"),
    ("alpaca-7b", "alpaca"),
    ("vicuna-13b-v1.5", "vicuna"),
    ("lmsys/vicuna-7b-v1.5-16k", "vicuna"),
    ("Llama-2-7b-chat-hf", "llama2"),
    ("Llama-2-7b-hf", "plain"),
    ("Meta-Llama-3-8B-Instruct", "llama3"),
    ("Llama-3.1-8B-Instruct", "llama3"),
    ("meta-llama/Llama-3.2-1B-Instruct/", "llama3"),
    ("zephyr-7b-beta", "zephyr"),
    ("stablelm-zephyr-3b", "plain"),
    ("TinyLlama-1.1B-Chat-v1.0", "zephyr"),
    ("deepseek-vl2-tiny", "deepseek-vl2"),
    ("deepseek-ai/deepseek-vl2", "deepseek-vl2"),
    ("deepseek-vl-1.3b-chat", "deepseek-vl"),
    ("deepseek-llm-7b-chat", "deepseek"),
    ("DeepSeek-V2-Lite-Chat", "deepseek"),
    ("DeepSeek-V2.5", "deepseek-v3"),
    ("DeepSeek-R1-Distill-Llama-8B", "deepseek-v3"),
    ("deepseek-ai/deepseek-coder-6.7b-instruct", "plain"),
    ("Mistral-7B-Instruct-v0.2", "mistral"),
    ("Mixtral-8x7B-Instruct-v0.1", "mistral"),
    ("mistralai/Pixtral-12B-2409", "plain"),
    ("gemma-2-2b-it", "gemma"),
    ("gemma-7b-it", "gemma"),
    ("google/paligemma-3b-mix-224", "plain"),
    ("gemma-4-e2b-it", "plain"),
    ("Phi-3-mini-4k-instruct", "phi3"),
    ("Phi-3.5-mini-instruct", "phi3"),
    ("falcon-7b-instruct", "falcon"),
    ("tiiuae/falcon-180B-chat", "falcon-chat"),
    ("Falcon3-7B-Instruct", "plain"),
    ("Qwen2.5-0.5B-Instruct", "qwen"),
    ("Qwen/Qwen3-8B", "qwen"),
    ("smollm2-135m", "chatml"),
    ("HuggingFaceTB/SmolLM2-135M-Instruct", "chatml"),
    ("Hermes-3-Llama-3.1-8B", "chatml"),
    ("gpt2", "plain"),
    ("", "plain"),
]

BY_ARCHITECTURE = [
    ("qwen2", "qwen"),
    ("qwen3", "qwen"),
    ("qwen2_vl", "qwen"),
    ("gemma", "gemma"),
    ("gemma2", "gemma"),
    ("gemma3", "gemma"),
    ("phi3", "phi3"),
    ("deepseek_v2", "deepseek"),
    ("deepseek_v3", "deepseek-v3"),
    ("deepseek_vl", "deepseek-vl"),
    ("deepseek_vl_hybrid", "deepseek-vl"),
    ("deepseek_vl_v2", "deepseek-vl2"),
    ("mistral", "mistral"),
    ("mixtral", "mistral"),
    ("falcon", "falcon"),
    ("llama", "plain"),
    ("gpt2", "plain"),
]

FINE_TUNES = [
    ("mistral", "HuggingFaceH4/zephyr-7b-beta", "zephyr"),
    ("mistral", "teknium/OpenHermes-2.5-Mistral-7B", "chatml"),
    ("falcon", "tiiuae/falcon-180B-chat", "falcon-chat"),
    ("falcon", "gorilla-falcon-7b-hf-v0", "falcon"),
    ("deepseek_v2", "deepseek-ai/DeepSeek-V2.5", "deepseek-v3"),
    ("qwen2", "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", "deepseek-v3"),
    ("gemma", "HuggingFaceH4/zephyr-7b-gemma-v0.1", "gemma"),
]


def test_the_families_by_name() -> None:
    assert registry.names() == NAMES
    assert all(registry.get(name).name == name for name in registry.names())


@pytest.mark.parametrize(("name", "family"), BY_NAME)
def test_guess_by_name(name: str, family: str) -> None:
    found, why = registry.guess(architecture="llama", name=name)
    assert found.name == family
    if family == "plain":
        assert why == "nothing known fits: plain text form"
    else:
        assert why.startswith(("the name contains ", "model architecture llama, and the name contains "))


@pytest.mark.parametrize(("architecture", "family"), BY_ARCHITECTURE)
def test_guess_by_architecture(architecture: str, family: str) -> None:
    found, why = registry.guess(architecture=architecture, name="my-model")
    assert found.name == family
    if family != "plain":
        assert why == f"model architecture {architecture}"


@pytest.mark.parametrize(("architecture", "name", "family"), FINE_TUNES)
def test_guess_for_fine_tunes_of_another_familys_models(architecture: str, name: str, family: str) -> None:
    assert registry.guess(architecture=architecture, name=name)[0].name == family


def test_the_architecture_comes_before_the_name() -> None:
    found, why = registry.guess(architecture="qwen2", name="vicuna-7b")
    assert found.name == "qwen"
    assert why == "model architecture qwen2"


def test_the_reason_quotes_what_was_found() -> None:
    assert registry.guess(architecture="llama", name="lmsys/Vicuna-7b")[1] == 'the name contains "vicuna"'
    both = registry.guess(architecture="mistral", name="zephyr-7b-beta")[1]
    assert both == 'model architecture mistral, and the name contains "zephyr"'


def test_no_architecture_is_claimed_twice() -> None:
    claimed = [x for name in registry.names() for x in registry.get(name).architectures]
    assert len(claimed) == len(set(claimed))
    assert "llama" not in claimed


@pytest.mark.parametrize(
    ("unknown", "close"), [("guanako", "guanaco"), ("Llama3", "llama3"), ("deepseek_vl2", "deepseek-vl2")]
)
def test_an_unknown_name_is_told_the_close_ones_and_the_list(unknown: str, close: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        registry.get(unknown)
    assert f"no family is named '{unknown}'; did you mean" in refused.value.message
    assert close in refused.value.message.partition("did you mean")[2].partition("?")[0]
    assert ", ".join(registry.names()) in refused.value.message
    assert refused.value.param == "family"


def test_an_unknown_name_that_is_like_nothing() -> None:
    with pytest.raises(InvalidSetting, match=r"^no family is named 'xyzzy' \(known: alpaca, chatml, "):
        registry.get("xyzzy")
