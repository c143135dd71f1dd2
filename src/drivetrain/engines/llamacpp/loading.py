"""From a GGUF file to what the engine needs to know of it: launch figures, tokenizer, description."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from drivetrain.core.capabilities import Capabilities
from drivetrain.core.engine import EngineInfo, ModelSpec, Progress
from drivetrain.core.errors import LoadFailed, NotStored
from drivetrain.core.parameters import TOKEN_PARAMETERS, WORKER_PARAMETERS
from drivetrain.engines.llama_server.completion import HONOURED
from drivetrain.engines.llamacpp.child.connection import ChildConnection
from drivetrain.engines.llamacpp.child.host import SPLITS
from drivetrain.engines.llamacpp.child.process import Launch, ServerProcess
from drivetrain.engines.llamacpp.generation import RunningServer
from drivetrain.engines.llamacpp.gguf import as_text, read_metadata
from drivetrain.engines.llamacpp.idle import SlotWatch
from drivetrain.engines.llamacpp.images.image_token import image_token
from drivetrain.engines.llamacpp.images.mmproj import BATCH
from drivetrain.engines.llamacpp.images.prompt import ImagePrompts
from drivetrain.engines.llamacpp.options import (
    Options,
    architecture,
    of_architecture,
    read_options,
    stated_sampling,
)
from drivetrain.engines.llamacpp.slots import SlotPool
from drivetrain.engines.llamacpp.tokenizer import LlamaCppTokenizer, ServerSplit, Split
from drivetrain.engines.llamacpp.vocabulary import Vocabulary
from drivetrain.engines.llamacpp.widening import weights_made, weights_to_run
from drivetrain.telemetry.memory import host_memory

SPARE_BYTES = 2 * 2**30
LEAST_SPARE_BYTES = 2**28
"""Of memory. Four requests of the default model take some 10 MB."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GgufModel:
    """A GGUF file that was looked at, and how it is to be run: from it or, with the same metadata, from `weights`."""

    path: Path
    weights: Path
    metadata: Mapping[str, Any]
    vocabulary: Vocabulary
    options: Options
    notes: tuple[str, ...] = ()

    @property
    def sees(self) -> bool:
        return self.options.vision.path is not None

    @property
    def launch(self) -> Launch:
        return Launch(
            model=str(self.weights),
            slots=self.options.slots,
            context_length=self.options.context_length,
            spare_bytes=self.spare_bytes,
            threads=self.options.threads,
            yield_cores=self.options.yield_cores,
            gpu_layers=self.options.gpu_layers,
            mmproj=None if self.options.vision.path is None else str(self.options.vision.path),
            batch=None if self.options.vision.path is None else BATCH,
        )

    @property
    def spare_bytes(self) -> int:
        """What its process may take beside the weights, the cache and the buffers, which are all there at the end of
        the load.

        Left are bodies, grammars and samplers. But pictures, and the copies that llama.cpp keeps of a window or a state
        to go back to, are as large as the model makes them; they may have half of what the weights leave free. None has
        more than that.
        """
        free = host_memory().available_bytes
        if not free:  # it is not known
            return SPARE_BYTES
        half = max(LEAST_SPARE_BYTES, (free - self.weights.stat().st_size) // 2)
        return half if self.sees or _copies_states(self.metadata) else min(SPARE_BYTES, half)

    @property
    def connections(self) -> int:
        """At once: one a slot, one that asks which slots are idle, and those that split texts."""
        return self.options.slots + 1 + SPLITS

    @property
    def splitting_launch(self) -> Launch:
        return replace(
            self.launch,
            slots=1,
            context_length=64,
            gpu_layers=0,
            mmproj=None,
            batch=None,
            unread=True,
            yield_cores=False,
        )

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            parameters=WORKER_PARAMETERS | TOKEN_PARAMETERS | HONOURED | ({"images"} if self.sees else set()),
            vision=self.sees,
            embeddings=True,
            context_length=self.options.context_length,
            max_concurrency=self.options.slots,
        )

    @property
    def embedding_launch(self) -> Launch:
        """A pooled text is one batch, so the batch is as long as the context. Memory is used by what comes."""
        length = self.options.context_length
        return replace(self.launch, slots=1, batch=length, mmproj=None, pooling=self.options.pooling)

    @property
    def image_token(self) -> str | None:
        if not self.sees:
            return None
        vocabulary, name = self.vocabulary, as_text(self.metadata.get("general.name")) or self.path.stem
        tokens = {"bos_token": vocabulary.bos_id, "eos_token": vocabulary.eos_id}
        return image_token(
            self.chat_template,
            named={key: vocabulary.spellings[i] for key, i in tokens.items() if i is not None},
            specials=vocabulary.special_strings,
            model=name,
            kind=architecture(self.metadata),
        )

    @property
    def chat_template(self) -> str | None:
        return as_text(self.metadata.get("tokenizer.chat_template"))

    def tokenizer(self, split: Split) -> LlamaCppTokenizer:
        return LlamaCppTokenizer(self.vocabulary, split, chat_template=self.chat_template, image_token=self.image_token)

    def serve(self, process: ServerProcess, info: EngineInfo, count_step: Callable[[], None]) -> RunningServer:
        assert isinstance(info.tokenizer, LlamaCppTokenizer)
        token, prompts = info.image_token, None
        if token is not None:
            prompts = ImagePrompts(info.tokenizer, marker=process.marker, token=token)
        connection = ChildConnection(process.host, process.port, process.key, process.sockets)
        return RunningServer(
            connection=connection,
            vocabulary=self.vocabulary,
            slots=SlotPool(self.options.slots),
            count_step=count_step,
            computing=process.computing,
            watch=SlotWatch(connection, lambda: process.alive, process.kill),
            image_prompts=prompts,
        )


def open_model(spec: ModelSpec) -> GgufModel:
    """Reads the file's metadata. Raises `LoadFailed` or `InvalidSetting` before any process is started.

    The weights are those that are there already; `prepared` makes them first.
    """
    metadata = read_metadata(spec.path)
    if of_architecture(metadata, "attention.causal") is False:
        raise LoadFailed(
            f"this is an encoder ({architecture(metadata)}) that gives embeddings only; the llamacpp engine serves "
            "models that generate text"
        )
    options = read_options(spec.options, metadata, spec.path)
    return GgufModel(spec.path, weights_made(spec), metadata, Vocabulary(metadata), options)


def prepared(spec: ModelSpec, progress: Progress) -> GgufModel:
    """What is wrong with the file or the settings is said before anything is made of it.

    Where what is made of it cannot be kept, the file runs as it is, and that is told.
    """
    model = open_model(spec)
    try:
        return replace(model, weights=weights_to_run(spec, progress))
    except NotStored as exc:
        note = f"the weights run as their file has them, not in {spec.form}, so answers may differ: {exc.message}"
        _log.warning("%s: %s", spec.name, note)
        return replace(model, weights=spec.path, notes=(note,))


def _copies_states(metadata: Mapping[str, Any]) -> bool:
    kinds = ("attention.sliding_window", "ssm.", "wkv.", "shortconv.", "kda.")
    beginnings = tuple(f"{architecture(metadata)}.{kind}" for kind in kinds)
    return any(key.startswith(beginnings) for key in metadata)


def library_file() -> Path | None:
    """The library of llama.cpp, with the llguidance that it has built in, found without loading it."""
    package = find_spec("xllamacpp")
    places = package.submodule_search_locations if package is not None else None
    return next((file for place in places or () for file in sorted(Path(place).glob("*.so"))), None)


async def describe(model: GgufModel, process: ServerProcess) -> EngineInfo:
    """What a running server and the file tell together."""
    connection = ChildConnection(process.host, process.port, process.key)
    props = await connection.ask("GET", "/props")
    got = int(props["default_generation_settings"]["n_ctx"])
    if got < model.options.context_length:
        raise LoadFailed(f"llama.cpp gives each slot a context of {got}, less than {model.options.context_length}")
    if model.sees and (not props["modalities"]["vision"] or props.get("media_marker") != process.marker):
        raise LoadFailed("llama.cpp has loaded the mmproj file and does not see with it")
    tokenizer = model.tokenizer(ServerSplit(process.host, process.port, process.key, process.sockets))
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
        image_token=model.image_token,
        default_sampling=stated_sampling(model.metadata),
        notes=(*model.notes, *model.options.vision.notes, *process.notes),
        versions={"xllamacpp": process.version},
        grammar_library=library_file(),
    )
