"""The same weights for all: SmolLM2-135M-Instruct from the store, as GGUF or as the fp32 folder made from it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from drivetrain.engines.checkpoint.gguf import convert
from drivetrain.store.store import Store, no_progress
from servers.environment import ROOT

MODEL = "smollm2-135m"
CONTEXT = 1024
"""Tokens per request, for servers that must be told."""


def gguf() -> Path:
    return Store().pull(MODEL).path


def folder() -> Path:
    """What the native engine makes from the GGUF file and loads itself."""
    store = Store()
    model = store.pull(MODEL)
    return store.derive(model, "safetensors", lambda target: convert(model.path, target, no_progress))


def folder_for_transformers_4() -> Path:
    """The same, with two settings in the form that version 4 of transformers knows."""
    made = ROOT / "weights-transformers-4"
    if not made.is_dir():
        source = folder()
        staged = made.with_name(made.name + ".partial")
        shutil.rmtree(staged, ignore_errors=True)
        shutil.copytree(source, staged, copy_function=_linked)
        config = _unlinked(staged / "config.json")
        config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
        (staged / "config.json").write_text(json.dumps(config, indent=2))
        tokenizer = _unlinked(staged / "tokenizer_config.json")
        tokenizer["tokenizer_class"] = "PreTrainedTokenizerFast"
        (staged / "tokenizer_config.json").write_text(json.dumps(tokenizer, indent=2))
        staged.rename(made)
    return made


def _linked(source: str, target: str) -> None:
    os.symlink(source, target)


def _unlinked(link: Path) -> dict[str, Any]:
    """The content of a linked JSON file; the link is removed."""
    held: dict[str, Any] = json.loads(link.read_text())
    link.unlink()
    return held
