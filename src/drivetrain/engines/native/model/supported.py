"""Which models this engine refuses, as far as their configuration tells. No torch here.

Importing a class to ask it takes seconds, so refused causal classes are also listed by name. A test checks both tables
against the installed library; a class in neither is examined when it is loaded (`probe.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from drivetrain.core.errors import UnfitEngine
from drivetrain.engines.checkpoint.kinds import IN_WORDS, ModelKind, StatedConfig, kind_of, stated_kind

ADVICE = "use `--engine transformers` for it"

STATE_SPACE = ("mamba", "linear_attention", "conv", "recurrent", "gated_delta")
LARGEST_POSITION = ("longrope", "dynamic")


def unfit(why: str) -> UnfitEngine:
    return UnfitEngine(f"the native engine cannot run this model: {why}; {ADVICE}", why=why)


def stated_reason(config: Mapping[str, Any]) -> str | None:
    """Why not, as far as a configuration's JSON tells. The library may know more from its defaults."""
    wrapped = StatedConfig(config)
    return _kind_reason(stated_kind(config)) or next(_reasons(wrapped.get_text_config()), None) or known_reason(wrapped)


def check_config(config: Any) -> None:
    """Raise `UnfitEngine` for what the library's config tells before any weight is read."""
    if why := _kind_reason(kind_of(config)) or next(_reasons(config.get_text_config()), None):
        raise unfit(why)


def _kind_reason(kind: ModelKind) -> str | None:
    return None if kind is ModelKind.CAUSAL else IN_WORDS[kind]


def _reasons(text: Any) -> Iterator[str]:
    """What a causal model's configuration asks for that this engine does not do."""
    layer_types = getattr(text, "layer_types", None)
    kinds = {str(kind) for kind in layer_types} if isinstance(layer_types, (list, tuple)) else set()
    if odd := sorted(kind for kind in kinds if any(word in kind for word in STATE_SPACE)):
        yield f"it has layers of the kind {odd[0]}, which keep a state that is no list of keys"
    if getattr(text, "attention_chunk_size", None) and ("chunked_attention" in kinds or not kinds):
        yield "it attends in chunks"
    if getattr(text, "kv_lora_rank", None):
        yield "it keeps compressed keys and values (MLA)"
    if getattr(text, "num_kv_shared_layers", None):
        yield "some of its layers share their keys and values"
    for rope in _ropes(text):
        if rope in LARGEST_POSITION:
            yield f"its positions are scaled by the longest text of a batch ({rope})"


def _ropes(text: Any) -> Iterator[str]:
    """The kinds of rotary positions, of the model or of each kind of its layers."""
    for name in ("rope_parameters", "rope_scaling"):
        rope = getattr(text, name, None)
        if isinstance(rope, dict):
            for part in (rope, *(value for value in rope.values() if isinstance(value, dict))):
                yield str(part.get("rope_type", part.get("type", "")))


OWN_ATTENTION = {
    "bailing_hybrid": "BailingHybridForCausalLM",
    "bamba": "BambaForCausalLM",
    "bart": "BartForCausalLM",
    "big_bird": "BigBirdForCausalLM",
    "bigbird_pegasus": "BigBirdPegasusForCausalLM",
    "biogpt": "BioGptForCausalLM",
    "blenderbot": "BlenderbotForCausalLM",
    "blenderbot-small": "BlenderbotSmallForCausalLM",
    "bloom": "BloomForCausalLM",
    "blt": "BltForCausalLM",
    "codegen": "CodeGenForCausalLM",
    "cpmant": "CpmAntForCausalLM",
    "falcon": "FalconForCausalLM",
    "falcon_h1": "FalconH1ForCausalLM",
    "falcon_mamba": "FalconMambaForCausalLM",
    "git": "GitForCausalLM",
    "gpt_neo": "GPTNeoForCausalLM",
    "gpt_neox_japanese": "GPTNeoXJapaneseForCausalLM",
    "gptj": "GPTJForCausalLM",
    "inkling2_text": "Inkling2ForCausalLM",
    "inkling_text": "InklingForCausalLM",
    "jamba": "JambaForCausalLM",
    "kimi_linear": "KimiLinearForCausalLM",
    "mamba": "MambaForCausalLM",
    "mamba2": "Mamba2ForCausalLM",
    "marian": "MarianForCausalLM",
    "mbart": "MBartForCausalLM",
    "megatron-bert": "MegatronBertForCausalLM",
    "mpt": "MptForCausalLM",
    "musicgen": "MusicgenForCausalLM",
    "musicgen_melody": "MusicgenMelodyForCausalLM",
    "mvp": "MvpForCausalLM",
    "nemotron_h": "NemotronHForCausalLM",
    "olmo_hybrid": "OlmoHybridForCausalLM",
    "openai-gpt": "OpenAIGPTLMHeadModel",
    "pegasus": "PegasusForCausalLM",
    "plbart": "PLBartForCausalLM",
    "prophetnet": "ProphetNetForCausalLM",
    "qwen3_5": "Qwen3_5ForCausalLM",
    "qwen3_5_moe": "Qwen3_5MoeForCausalLM",
    "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
    "qwen3_5_text": "Qwen3_5ForCausalLM",
    "qwen3_next": "Qwen3NextForCausalLM",
    "qwen4_exp": "Qwen4ExpForCausalLM",
    "qwen4_exp_text": "Qwen4ExpForCausalLM",
    "reformer": "ReformerModelWithLMHead",
    "rembert": "RemBertForCausalLM",
    "roformer": "RoFormerForCausalLM",
    "rwkv": "RwkvForCausalLM",
    "stablelm": "StableLmForCausalLM",
    "trocr": "TrOCRForCausalLM",
    "whisper": "WhisperForCausalLM",
    "xglm": "XGLMForCausalLM",
    "xlm": "XLMWithLMHeadModel",
    "xlnet": "XLNetLMHeadModel",
    "xlstm": "xLSTMForCausalLM",
    "zamba": "ZambaForCausalLM",
    "zamba2": "Zamba2ForCausalLM",
}
"""Model type and class of those that do their attention by themselves."""

TAKES_NO = {
    "gemma4_assistant": ("Gemma4AssistantForCausalLM", "logits_to_keep"),
    "gemma4_unified_assistant": ("Gemma4UnifiedAssistantForCausalLM", "logits_to_keep"),
    "moss_transcribe_diarize": ("MossTranscribeDiarizeForConditionalGeneration", "position_ids"),
}
"""Model type, class, and what its `forward` should take."""

_OF_TYPE = {**OWN_ATTENTION, **{model_type: name for model_type, (name, _) in TAKES_NO.items()}}
_WHY = {
    **{name: f"the class {name} does its attention by itself" for name in OWN_ATTENTION.values()},
    **{name: f"the class {name} takes no {parameter}" for name, parameter in TAKES_NO.values()},
}


def known_reason(config: Any) -> str | None:
    """Why the class is refused that a configuration names, or that the library has for its model type.

    A class that a model brings itself (`auto_map`) is not known before it is loaded.
    """
    named = getattr(config, "architectures", None)
    first = str(named[0]) if isinstance(named, (list, tuple)) and named else ""
    if first in _WHY or hasattr(config, "auto_map"):
        return _WHY.get(first)
    return _WHY.get(_OF_TYPE.get(str(getattr(config, "model_type", "")), ""))
