"""What the engine declares about a model, once it is loaded or from its files alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drivetrain.core.engine import Description, EngineInfo, ModelSpec, Progress
from drivetrain.core.tokenizer import Tokenizer
from drivetrain.engines.checkpoint import declared, errors
from drivetrain.engines.checkpoint.folder import CheckpointFolder
from drivetrain.engines.checkpoint.pooling import embedding_size
from drivetrain.engines.checkpoint.quiet import quiet_library
from drivetrain.engines.native.capabilities import HONOURED, capabilities_of
from drivetrain.engines.native.model.supported import check_config, known_reason, unfit
from drivetrain.engines.native.settings import NativeSettings

if TYPE_CHECKING:
    from drivetrain.engines.native.model.loading import NativeModel

_NOT_DONE = (
    *(name for name in declared.SAMPLING if name not in HONOURED),
    "forced_bos_token_id",
    "forced_eos_token_id",
)


def of_loaded(loaded: NativeModel, context_length: int, max_batch: int, pooling: str, compiled: str) -> EngineInfo:
    import torch
    import transformers

    model = loaded.model
    notes = loaded.notes + declared.not_honoured(loaded.structure, _NOT_DONE)
    if context_length < loaded.context_length:
        notes += (
            f"the model has a context of {loaded.context_length:,} tokens; the memory of the KV cache allows"
            f" {context_length:,} (raise kv_cache_gb for more)",
        )
    if loaded.num_quantized is not None:
        notes += (f"quantize int8: {loaded.num_quantized} linear layers have weights of 8 bits, all else is float32",)
    if compiled:
        notes += (compiled,)
    return EngineInfo(
        engine="native",
        capabilities=capabilities_of(context_length, max_batch),
        tokenizer=_tokenizer(loaded.tokenizer),
        eos_ids=loaded.eos_ids,
        vocab_size=model.get_input_embeddings().num_embeddings,
        architecture=model.config.model_type,
        device=str(model.device),
        dtype=str(model.dtype).removeprefix("torch."),
        embedding_size=embedding_size(model.config),
        pooling=pooling,
        default_sampling=declared.stated_sampling(loaded.structure, HONOURED),
        notes=notes,
        versions={"torch": torch.__version__, "transformers": transformers.__version__},
    )


def of_files(spec: ModelSpec, progress: Progress) -> Description:
    """Reads configuration and tokenizer but no weights. Raises what loading these would raise."""
    try:
        return _of_files(spec, progress)
    except Exception as exc:
        raise errors.while_loading(exc, engine="native") from exc


def _of_files(spec: ModelSpec, progress: Progress) -> Description:
    settings = NativeSettings.of(spec.options)
    folder = CheckpointFolder.before_loading(spec, trust_remote_code=settings.trust_remote_code)
    progress("reading the configuration", None)
    with quiet_library():
        config = folder.config()
        check_config(config)
        if why := known_reason(config):
            raise unfit(why)
        progress("reading the tokenizer", None)
        tokenizer = folder.tokenizer()
        structure = folder.generation_config(config)
    context_length = declared.context_length(config, tokenizer, settings.context_length)
    return Description(
        tokenizer=_tokenizer(tokenizer),
        architecture=config.model_type,
        capabilities=capabilities_of(context_length, settings.max_batch),
        context_length=context_length,
        eos_ids=declared.eos_ids(structure, config, tokenizer),
        default_sampling=declared.stated_sampling(structure, HONOURED),
        missing=(
            *declared.not_honoured(structure, _NOT_DONE),
            "whether the class can run in the native engine is tried when it is loaded; so is what memory allows",
        ),
    )


def _tokenizer(tokenizer: Any) -> Tokenizer:
    from drivetrain.text.hf_tokenizer import HfTokenizer

    return HfTokenizer(tokenizer, chat_template=None)
