"""From a GGUF file to what the engine needs to know of it: launch figures, tokenizer, description."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from drivetrain.core.capabilities import Capabilities
from drivetrain.core.engine import EngineInfo, ModelSpec
from drivetrain.core.errors import LoadFailed
from drivetrain.core.parameters import TOKEN_PARAMETERS, WORKER_PARAMETERS
from drivetrain.engines.llamacpp.connection import Connection
from drivetrain.engines.llamacpp.generation import Served
from drivetrain.engines.llamacpp.gguf import as_text, read_metadata
from drivetrain.engines.llamacpp.options import (
    Options,
    architecture,
    of_architecture,
    read_options,
    stated_sampling,
)
from drivetrain.engines.llamacpp.payload import HONOURED
from drivetrain.engines.llamacpp.process import Launch, ServerProcess
from drivetrain.engines.llamacpp.slots import SlotPool
from drivetrain.engines.llamacpp.tokenizer import LlamaCppTokenizer, ServerSplit
from drivetrain.engines.llamacpp.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class Model:
    """A GGUF file that was looked at, and how it is to be run."""

    path: Path
    metadata: Mapping[str, Any]
    vocabulary: Vocabulary
    options: Options

    @property
    def launch(self) -> Launch:
        return Launch(
            model=str(self.path),
            slots=self.options.slots,
            context_length=self.options.context_length,
            threads=self.options.threads,
            gpu_layers=self.options.gpu_layers,
        )

    @property
    def splitting_launch(self) -> Launch:
        return replace(self.launch, slots=1, context_length=64, gpu_layers=0, unread=True)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            parameters=WORKER_PARAMETERS | TOKEN_PARAMETERS | HONOURED,
            embeddings=True,
            context_length=self.options.context_length,
            max_concurrency=self.options.slots,
        )

    @property
    def embedding_launch(self) -> Launch:
        """A pooled text is one batch, so the batch is as long as the context. Memory is used by what comes."""
        length = self.options.context_length
        return replace(self.launch, slots=1, batch=length, pooling=self.options.pooling)

    def serve(self, process: ServerProcess, count_step: Callable[[], None]) -> Served:
        return Served(
            connection=Connection(process.host, process.port, process.key),
            vocabulary=self.vocabulary,
            slots=SlotPool(self.options.slots),
            count_step=count_step,
            alive=lambda: process.alive,
        )


def open_model(spec: ModelSpec) -> Model:
    """Reads the file's metadata. Raises `LoadFailed` or `InvalidSetting` before any process is started."""
    metadata = read_metadata(spec.path)
    if of_architecture(metadata, "attention.causal") is False:
        raise LoadFailed(
            f"this is an encoder ({architecture(metadata)}) that gives embeddings only; the llamacpp engine serves "
            "models that generate text"
        )
    return Model(spec.path, metadata, Vocabulary(metadata), read_options(spec.options, metadata))


async def describe(model: Model, process: ServerProcess) -> EngineInfo:
    """What a running server and the file tell together."""
    connection = Connection(process.host, process.port, process.key)
    props = await connection.ask("GET", "/props")
    got = int(props["default_generation_settings"]["n_ctx"])
    if got < model.options.context_length:
        raise LoadFailed(f"llama.cpp gives each slot a context of {got}, less than {model.options.context_length}")
    split = ServerSplit(process.host, process.port, process.key)
    template = as_text(model.metadata.get("tokenizer.chat_template"))
    tokenizer = LlamaCppTokenizer(model.vocabulary, split, chat_template=template)
    return EngineInfo(
        engine="llamacpp",
        capabilities=model.capabilities,
        tokenizer=tokenizer,
        eos_ids=model.vocabulary.eos_ids,
        vocab_size=model.vocabulary.size,
        architecture=architecture(model.metadata),
        device=process.device,
        dtype=str(props.get("model_ftype") or "unknown"),
        embedding_size=int(of_architecture(model.metadata, "embedding_length") or 0),
        pooling=model.options.pooling,
        default_sampling=stated_sampling(model.metadata),
        versions={"xllamacpp": process.version},
    )
