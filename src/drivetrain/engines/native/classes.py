"""Causal classes of transformers that this engine refuses, by name: to ask a class itself takes seconds of imports.

A test holds both tables against the installed library. A class that is in neither is asked when it is loaded.
"""

from __future__ import annotations

from typing import Any

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
"""Model type and class: it does its attention by itself."""

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

    Which class a model brings itself (`auto_map`) is not known before it is loaded.
    """
    named = getattr(config, "architectures", None)
    first = str(named[0]) if isinstance(named, (list, tuple)) and named else ""
    if first in _WHY or hasattr(config, "auto_map"):
        return _WHY.get(first)
    return _WHY.get(_OF_TYPE.get(str(getattr(config, "model_type", "")), ""))
