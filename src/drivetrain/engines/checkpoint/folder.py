"""What lies in a folder, read by the transformers library: nothing is fetched, and weights are whole or refused.

A GGUF file that was not converted yet can be read in the same way, except its weights.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from drivetrain.core.engine import ModelSpec
from drivetrain.core.errors import LoadFailed, one_line
from drivetrain.engines.base import error_text
from drivetrain.engines.checkpoint import declared, quantized
from drivetrain.engines.checkpoint.gguf import safetensors_made
from drivetrain.engines.checkpoint.kinds import StatedConfig
from drivetrain.engines.checkpoint.leftovers import refuse_leftovers
from drivetrain.engines.checkpoint.quantized import Quantization
from drivetrain.safetensors_header import lfs_pointer


@dataclass(frozen=True, kw_only=True)
class CheckpointFolder:
    path: Path
    trust_remote_code: bool
    gguf_file: str | None = None

    @classmethod
    def before_loading(cls, spec: ModelSpec, *, trust_remote_code: bool) -> Self:
        """The folder with the weights, else the GGUF file of which it will be made."""
        folder = safetensors_made(spec)
        if folder is not None:
            return cls(path=folder, trust_remote_code=trust_remote_code)
        return cls(path=spec.path.parent, trust_remote_code=trust_remote_code, gguf_file=spec.path.name)

    def quantization(self) -> Quantization | None:
        """Of the weights: the configuration may claim one that they do not have. Of a GGUF file nothing is told."""
        found = self._stated_quantization
        return None if found is None or found.over_floats else found

    def notes(self) -> tuple[str, ...]:
        """What of the files is not honoured, for whoever runs the model."""
        found = self._stated_quantization
        return (found.note,) if found is not None and found.over_floats else ()

    @cached_property
    def _stated_quantization(self) -> Quantization | None:
        """Read once: it takes the head of every file of weights."""
        return quantized.of_folder(self.path) if self.gguf_file is None else None

    def config(self) -> Any:
        """The library's. It asks for no quantization that the weights do not have."""
        from transformers import AutoConfig

        found = self._stated_quantization
        try:
            config = AutoConfig.from_pretrained(self.path, **self._where)
        except ValueError as exc:
            if self.gguf_file is None and (why := unknown_type(self.path)):
                raise LoadFailed(why) from exc
            raise
        if found is not None and found.over_floats:
            quantized.without_quantization(config)
        return config

    def tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        try:
            return AutoTokenizer.from_pretrained(self.path, **self._where)
        except (ValueError, OSError, KeyError, TypeError, AttributeError) as exc:
            if self.gguf_file is not None or "trust_remote_code" in str(exc):
                raise
            why = f"the tokenizer cannot be loaded ({error_text.one_line(exc)}); copy its files again"
            raise LoadFailed(tokenizer_problem(self.path) or why) from exc

    def processor(self) -> Any:
        from transformers import AutoProcessor

        try:
            return AutoProcessor.from_pretrained(self.path, **self._where)
        except (OSError, ValueError) as exc:
            raise LoadFailed(
                "the model sees images, but its processor files are missing or broken; pull or copy the model again"
            ) from exc

    def generation_config(self, config: Any) -> Any:
        """That of the folder, else what the library makes of the model's configuration."""
        from transformers import GenerationConfig

        if self.gguf_file is None:
            declared.check_generation_config(self.path)
            if (self.path / "generation_config.json").is_file():
                return GenerationConfig.from_pretrained(self.path, local_files_only=True)
        if isinstance(config, StatedConfig):
            return GenerationConfig()
        return GenerationConfig.from_model_config(config)

    def model(self, model_class: Any, config: Any, dtype: Any, *, may_lack: str | None = None) -> Any:
        """Raises `LoadFailed` for weights that are missing (not those named like `may_lack`), misshapen, left over."""
        declared.check_generation_config(self.path)
        if (found := self.quantization()) is not None:
            found.refuse_unless_ready()
        model, problems = model_class.from_pretrained(
            self.path,
            config=config,
            dtype=dtype,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            **self._where,
        )
        declared.refuse_holes(problems, but=may_lack)
        refuse_leftovers(problems, model)
        return model

    @property
    def _where(self) -> dict[str, Any]:
        gguf = {} if self.gguf_file is None else {"gguf_file": self.gguf_file}
        return {"local_files_only": True, "trust_remote_code": self.trust_remote_code, **gguf}


_TOKENIZER = re.compile(r"tok|vocab|merges|sentencepiece|spiece|bpe|tekken|spm", re.IGNORECASE)
"""In the names of the files of which one, or some together, are a tokenizer."""

_OF_IT = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
"""Say something of a tokenizer, but are none."""


def tokenizer_problem(folder: Path) -> str | None:
    """Why a folder's tokenizer cannot be loaded, as far as its files tell."""
    names = [path.name for path in sorted(folder.iterdir()) if path.is_file() and _TOKENIZER.search(path.name)]
    for name in names:
        if pointer := lfs_pointer(folder / name):
            return f"{name} {pointer}; run `git lfs pull` in the folder, or copy the whole file"
        if name.endswith(".json") and not _is_json(folder / name):
            return f"{name} is not readable JSON; copy it again from where the model came from"
    if not set(names) - set(_OF_IT):
        return (
            "the model folder has no tokenizer (such as tokenizer.json or tokenizer.model); copy it from the model"
            " that this one was made of"
        )
    return None


def _is_json(path: Path) -> bool:
    try:
        json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return True


def unknown_type(folder: Path) -> str | None:
    """Why the library has no configuration for a folder, if its model type is the reason."""
    from transformers import CONFIG_MAPPING, __version__

    stated = json.loads((folder / "config.json").read_bytes())
    model_type = stated.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        return "config.json names no model_type, so nothing says what the weights are; copy the model again"
    if model_type in CONFIG_MAPPING or "auto_map" in stated:
        return None
    return (
        f"config.json names the model type {one_line(model_type, 40)!r}, which transformers {__version__} does not"
        " know; a newer one may (pip install -U transformers), and so may `--engine vllm`"
    )
