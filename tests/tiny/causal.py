"""Decoder-only text models."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tiny import tokenizers
from tiny.weights import Builder, save

HIDDEN = 48
SIZES: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}
GROUPED: dict[str, Any] = {**SIZES, "num_key_value_heads": 2}
TIED: dict[str, Any] = {"embedding": 0.12, "sharpen": 3.0}
GEMMA: dict[str, Any] = {
    **GROUPED,
    "head_dim": 16,
    "query_pre_attn_scalar": 16,
    "sliding_window": 16,
    "embedding": 0.03,  # the model scales it by the root of the hidden size
    "sharpen": 10.0,
}
EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "output_router_logits": False}

Tokenizer = Callable[[], Any]

INFILL = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<file_sep>")

_byte_level = partial(tokenizers.byte_level, chat_template=tokenizers.CHATML)
_byte_level_bos = partial(_byte_level, add_bos=True)
# `<|endoftext|>` because the class that the library forces on every "qwen2" folder adds it where it is missing.
_qwen = partial(
    _byte_level,
    split=tokenizers.QWEN2_SPLIT,
    normalize=True,
    eos=tokenizers.IM_END,
    extra=("<|endoftext|>",),
)
_fallback = partial(tokenizers.byte_fallback, chat_template=tokenizers.CHATML)
_gemma = partial(_fallback, prefix_space=False)


def _infilling() -> Any:
    """With the tokens of Qwen2.5-Coder, which its files do not mark as special."""
    from tokenizers import AddedToken

    made = _fallback(800 - len(INFILL))
    made.add_tokens([AddedToken(token, special=False, normalized=False) for token in INFILL])
    return made


def build(
    folder: Path,
    family: str,
    make_tokenizer: Tokenizer,
    *,
    round_to: int = 1,
    embedding: float = 0.5,
    sharpen: float = 1.0,
    **sizes: Any,
) -> None:
    """`round_to` pads the output head past the tokenizer's ids, as most published checkpoints do."""
    import transformers

    tokenizer = make_tokenizer()
    ids = {"bos_token_id": tokenizer.bos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = getattr(transformers, f"{family}Config")(
        vocab_size=-(-len(tokenizer) // round_to) * round_to, eos_token_id=tokenizer.eos_token_id, **ids, **sizes
    )
    ends = [tokenizer.convert_tokens_to_ids(token) for token in (tokenizers.EOS, tokenizers.IM_END)]
    generation = {**ids, "eos_token_id": ends}
    save(folder, "AutoModelForCausalLM", config, generation=generation, embedding=embedding, sharpen=sharpen)
    tokenizer.save_pretrained(folder)


def _of(family: str, make_tokenizer: Tokenizer, **options: Any) -> Builder:
    return partial(build, family=family, make_tokenizer=make_tokenizer, **options)


ARCHITECTURES: dict[str, Builder] = {
    "llama": _of("Llama", _fallback, **GROUPED),
    "mistral": _of("Mistral", partial(_fallback, metaspace=True), **GROUPED, sliding_window=16),
    "qwen2": _of("Qwen2", _qwen, **GROUPED, tie_word_embeddings=True, round_to=64, **TIED),
    "qwen3": _of("Qwen3", _qwen, **GROUPED, head_dim=16),
    "gemma2": _of("Gemma2", _gemma, **GEMMA),
    "gemma3_text": _of(
        "Gemma3Text",
        _gemma,
        **GEMMA,
        layer_types=["sliding_attention", "full_attention"],
    ),
    "phi3": _of("Phi3", _fallback, **GROUPED, sliding_window=None),
    "gpt2": _of("GPT2", _byte_level, n_embd=HIDDEN, n_layer=2, n_head=4, n_positions=512, **TIED),
    "gpt_neox": _of("GPTNeoX", _byte_level, **SIZES),
    "olmo2": _of("Olmo2", _byte_level, **GROUPED),
    "falcon": _of(
        "Falcon",
        _byte_level,
        hidden_size=HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_kv_heads=2,
        new_decoder_architecture=True,
        alibi=False,
        bias=False,
        max_position_embeddings=512,
        **TIED,
    ),
    "bloom": _of("Bloom", _byte_level, hidden_size=HIDDEN, n_layer=2, n_head=4, **TIED),
    "mixtral": _of("Mixtral", _fallback, **GROUPED, **EXPERTS, num_local_experts=4, sliding_window=None),
    "qwen2_moe": _of(
        "Qwen2Moe",
        _qwen,
        **GROUPED,
        **EXPERTS,
        num_experts=4,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=64,
    ),
    "opt": _of(
        "OPT",
        _byte_level_bos,
        hidden_size=HIDDEN,
        word_embed_proj_dim=HIDDEN,
        ffn_dim=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=512,
        **TIED,
    ),
}

INFILLING: dict[str, Builder] = {"llama-infill": _of("Llama", _infilling, **GROUPED)}
"""An architecture of those above with another vocabulary."""
