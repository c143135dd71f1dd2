"""Encoders that turn a text into one vector."""

from __future__ import annotations

import json
from pathlib import Path

from tiny import tokenizers
from tiny.weights import Builder, save

HIDDEN = 32


def bert(folder: Path) -> None:
    """BERT with the files by which sentence-transformers checkpoints ask for mean pooling, then normalising."""
    from transformers import BertConfig

    tokenizer = tokenizers.wordpiece()
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=128,
        pad_token_id=tokenizer.pad_token_id,
    )
    save(folder, "AutoModel", config)
    tokenizer.model_max_length = 128
    tokenizer.save_pretrained(folder)
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(kinds)
    ]
    _write(folder / "modules.json", modules)
    _write(folder / "sentence_bert_config.json", {"max_seq_length": 128, "do_lower_case": False})
    pooling = {"word_embedding_dimension": HIDDEN, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
    (folder / "1_Pooling").mkdir()
    _write(folder / "1_Pooling" / "config.json", pooling)


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


ARCHITECTURES: dict[str, Builder] = {"bert": bert}
