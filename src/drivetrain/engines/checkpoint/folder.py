"""What lies in a folder, read by the transformers library: nothing is fetched, and weights are whole or refused.

A GGUF file that was not converted yet can be read in the same way, except its weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from drivetrain.core.engine import ModelSpec
from drivetrain.core.errors import LoadFailed
from drivetrain.engines.checkpoint import declared
from drivetrain.engines.checkpoint.gguf import safetensors_made
from drivetrain.engines.checkpoint.kinds import StatedConfig
from drivetrain.engines.checkpoint.leftovers import refuse_leftovers


@dataclass(frozen=True, slots=True, kw_only=True)
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

    def config(self) -> Any:
        from transformers import AutoConfig

        return AutoConfig.from_pretrained(self.path, **self._where)

    def tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.path, **self._where)

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
