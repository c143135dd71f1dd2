"""Encoder-decoder text models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tiny import tokenizers
from tiny.weights import Builder, save

HIDDEN = 48


def t5(folder: Path) -> None:
    """As T5 1.1: gated activations, no scaling before the head, relative positions, `<pad>` starts the decoder.

    `tie_word_embeddings=False` turns off only that scaling: the library ties the head of every T5.
    """
    from transformers import T5Config

    tokenizer = tokenizers.unigram()
    ids = {
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "decoder_start_token_id": tokenizer.pad_token_id,
    }
    config = T5Config(
        vocab_size=len(tokenizer),
        d_model=HIDDEN,
        d_kv=12,
        d_ff=96,
        num_layers=2,
        num_decoder_layers=2,
        num_heads=4,
        relative_attention_num_buckets=16,
        relative_attention_max_distance=64,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
        **ids,
    )
    save(folder, "AutoModelForSeq2SeqLM", config, generation=ids, embedding=0.15, sharpen=3.0)
    tokenizer.save_pretrained(folder)


def bart(folder: Path) -> None:
    """`</s>` starts the decoder, `<s>` is forced next, and `</s>` at the limit: all by the generation config."""
    from transformers import BartConfig

    tokenizer = tokenizers.byte_level(add_bos=True, add_eos=True)
    ids: dict[str, Any] = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "decoder_start_token_id": tokenizer.eos_token_id,
        "forced_eos_token_id": tokenizer.eos_token_id,
    }
    config = BartConfig(
        vocab_size=len(tokenizer),
        d_model=HIDDEN,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=96,
        decoder_ffn_dim=96,
        max_position_embeddings=512,
        **ids,
    )
    generation = {**ids, "forced_bos_token_id": tokenizer.bos_token_id}
    save(folder, "AutoModelForSeq2SeqLM", config, generation=generation, gain=3.0, embedding=0.3)
    tokenizer.save_pretrained(folder)


ARCHITECTURES: dict[str, Builder] = {"t5": t5, "bart": bart}
