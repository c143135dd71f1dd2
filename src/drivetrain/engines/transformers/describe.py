"""What the engine declares about a model, once it is loaded or from its files alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from inspect import signature
from typing import Any

from drivetrain.core.capabilities import Capabilities, RerankWay
from drivetrain.core.engine import Description, EngineInfo, ModelSpec, Pair, Progress
from drivetrain.core.parameters import ENGINE_PARAMETERS, TOKEN_PARAMETERS, WORKER_PARAMETERS
from drivetrain.engines.base.settings import Dtype
from drivetrain.engines.checkpoint import declared, errors
from drivetrain.engines.checkpoint.folder import CheckpointFolder
from drivetrain.engines.checkpoint.kinds import ModelKind, kind_of, stated_kind
from drivetrain.engines.checkpoint.pooling import embedding_size
from drivetrain.engines.checkpoint.quiet import quiet_library
from drivetrain.engines.checkpoint.settings import CheckpointSettings
from drivetrain.engines.transformers.loading import TransformersModel
from drivetrain.text.hf_tokenizer import HfTokenizer


def capabilities_of(kind: ModelKind, context_length: int, *, exact: bool) -> Capabilities:
    refused = {"images"} if kind is not ModelKind.VISION else set()
    if not exact:
        refused.add("reproducibility")
    if kind is ModelKind.SEQ2SEQ:
        refused.add("prompt_logprobs")
    return Capabilities(
        parameters=WORKER_PARAMETERS | TOKEN_PARAMETERS | (ENGINE_PARAMETERS - refused),
        vision=kind is ModelKind.VISION,
        embeddings=kind in (ModelKind.CAUSAL, ModelKind.ENCODER),
        generation=kind not in (ModelKind.ENCODER, ModelKind.SCORER),
        rerank=RerankWay.HEAD if kind is ModelKind.SCORER else None,
        context_length=context_length,
        max_concurrency=1,
    )


def stated_capabilities(config: Mapping[str, Any], context_length: int, options: Mapping[str, Any]) -> Capabilities:
    """From the JSON of a folder's configuration, without the library."""
    return capabilities_of(stated_kind(config), context_length, exact=_states_exact(CheckpointSettings.of(options)))


def _states_exact(settings: CheckpointSettings) -> bool:
    """Whether it will be exact on any machine."""
    return settings.device == "cpu" and settings.dtype in (Dtype.AUTO, Dtype.FLOAT32) and not settings.yield_cores


def _is_exact(device: Any, dtype: Any, *, yields: bool, alike: bool) -> bool:
    """Whether an answer never differs from itself. Requests run one by one, so no other one changes the products; but a
    change of the number of threads does, unless MKL rounds `alike`, which it can do for one and two of them."""
    import torch

    threads = torch.get_num_threads()
    steady = not yields or threads == 1 or (threads == 2 and alike and torch.backends.mkl.is_available())
    return bool(device.type == "cpu" and dtype == torch.float32 and steady)


Score = Callable[[Sequence[Pair]], Awaitable[list[float]]]


class Scorer:
    """As `PairScorer`: the texts are encoded by the model's own tokenizer, and scored by its engine."""

    def __init__(self, loaded: TransformersModel, tokenizer: HfTokenizer, score: Score) -> None:
        self._takes_types = _takes_types(loaded)
        self._tokenizer = tokenizer
        self._score = score

    def encode(self, first: str, second: str) -> Pair:
        ids, types = self._tokenizer.encode_pair(first, second)
        return Pair(tuple(ids), tuple(types) if self._takes_types else None)

    async def score(self, pairs: Sequence[Pair]) -> list[float]:
        return await self._score(pairs)


def _takes_types(loaded: TransformersModel) -> bool:
    """Some tokenizers give types that their models do not have."""
    named = "token_type_ids" in loaded.tokenizer.model_input_names
    taken = "token_type_ids" in signature(loaded.model.forward).parameters
    return named and taken and getattr(loaded.model.config, "type_vocab_size", 2) > 1


def of_loaded(loaded: TransformersModel, score: Score, *, yields: bool, alike: bool) -> EngineInfo:
    import torch
    import transformers

    model, kind = loaded.model, loaded.kind
    tokenizer = _tokenizer(loaded.tokenizer, loaded.processor)
    exact = _is_exact(model.device, model.dtype, yields=yields, alike=alike)
    capabilities = capabilities_of(kind, loaded.context_length, exact=exact)
    return EngineInfo(
        engine="transformers",
        capabilities=capabilities,
        tokenizer=tokenizer,
        eos_ids=loaded.eos_ids,
        vocab_size=model.get_input_embeddings().num_embeddings,
        architecture=model.config.model_type,
        device=str(model.device),
        dtype=str(model.dtype).removeprefix("torch."),
        encoder_decoder=kind is ModelKind.SEQ2SEQ,
        embedding_size=embedding_size(model.config),
        pooling=loaded.pooling if capabilities.embeddings else None,
        scorer=Scorer(loaded, tokenizer, score) if kind is ModelKind.SCORER else None,
        default_sampling=declared.stated_sampling(loaded.structure),
        notes=loaded.notes + declared.not_honoured(loaded.structure),
        versions={"torch": torch.__version__, "transformers": transformers.__version__},
    )


def of_files(spec: ModelSpec, progress: Progress) -> Description:
    """Reads configuration and tokenizer but no weights. Raises what loading would raise.

    A GGUF file that is not converted yet is read as it is; its tokenizer then takes some seconds.
    """
    try:
        return _of_files(spec, progress)
    except Exception as exc:
        raise errors.while_loading(exc, engine="transformers") from exc


def _of_files(spec: ModelSpec, progress: Progress) -> Description:
    settings = CheckpointSettings.of(spec.options)
    folder = CheckpointFolder.before_loading(spec, trust_remote_code=settings.trust_remote_code)
    progress("reading the configuration", None)
    with quiet_library():
        config = folder.config()
        kind = kind_of(config)
        progress("reading the tokenizer", None)
        processor = folder.processor() if kind is ModelKind.VISION else None
        tokenizer = processor.tokenizer if processor is not None else folder.tokenizer()
        structure = folder.generation_config(config)
    context_length = declared.context_length(config, tokenizer, settings.context_length)
    return Description(
        tokenizer=_tokenizer(tokenizer, processor),
        architecture=config.model_type,
        capabilities=capabilities_of(kind, context_length, exact=_states_exact(settings)),
        context_length=context_length,
        eos_ids=declared.eos_ids(structure, config, tokenizer),
        default_sampling=declared.stated_sampling(structure),
        missing=declared.not_honoured(structure),
    )


def _tokenizer(tokenizer: Any, processor: Any) -> HfTokenizer:
    template = getattr(processor, "chat_template", None)
    return HfTokenizer(tokenizer, chat_template=template if isinstance(template, str) else None)
