"""Models with a head that gives one number for a pair of texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tiny import tokenizers
from tiny.weights import Builder, save

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "num_labels": 1,
}


def bert(folder: Path, **more: Any) -> None:
    """The two texts have types, as in BERT."""
    from tokenizers.processors import TemplateProcessing
    from transformers import BertConfig

    tokenizer = tokenizers.wordpiece()
    ids = [(token, tokenizer.convert_tokens_to_ids(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ids
    )
    config = BertConfig(
        vocab_size=len(tokenizer),
        max_position_embeddings=128,
        pad_token_id=tokenizer.pad_token_id,
        **{**SIZES, **more},
    )
    save(folder, "AutoModelForSequenceClassification", config)
    tokenizer.model_max_length = 128
    tokenizer.save_pretrained(folder)


def xlm_roberta(folder: Path) -> None:
    """No types, and positions that begin behind the padding's: 128 of 130 can be used."""
    from tokenizers.processors import TemplateProcessing
    from transformers import XLMRobertaConfig

    tokenizer = tokenizers.unigram()
    eos = (tokenizers.EOS, tokenizer.eos_token_id)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="</s> $A </s>", pair="</s> $A </s> </s> $B </s>", special_tokens=[eos]
    )
    config = XLMRobertaConfig(
        vocab_size=len(tokenizer),
        max_position_embeddings=130,
        type_vocab_size=1,
        pad_token_id=1,
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        **SIZES,
    )
    save(folder, "AutoModelForSequenceClassification", config)
    tokenizer.save_pretrained(folder)


def qwen3(folder: Path) -> None:
    """A decoder with a head on its last token."""
    from transformers import Qwen3Config

    tokenizer = tokenizers.byte_level(
        split=tokenizers.QWEN2_SPLIT, normalize=True, eos=tokenizers.IM_END, extra=("<|endoftext|>",),
        chat_template=tokenizers.CHATML,
    )  # fmt: skip
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        pad_token_id=tokenizer.pad_token_id,
        **SIZES,
    )
    save(folder, "AutoModelForSequenceClassification", config)
    tokenizer.save_pretrained(folder)


def classes(folder: Path) -> None:
    bert(folder, num_labels=3)


ARCHITECTURES: dict[str, Builder] = {
    "bert_scorer": bert,
    "xlm_roberta_scorer": xlm_roberta,
    "qwen3_scorer": qwen3,
    "bert_classes": classes,
}
