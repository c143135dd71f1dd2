"""What vLLM raises, in the words of the contract. The only place that translates."""

from __future__ import annotations

from drivetrain.core.errors import (
    DrivetrainError,
    EngineFailed,
    InvalidRequest,
    InvalidSetting,
    LoadFailed,
    MissingExtra,
    Overloaded,
)
from drivetrain.core.parameters import PARAMETERS
from drivetrain.engines.base.error_text import clean, one_line
from drivetrain.engines.checkpoint import errors as checkpoint

KINDS: dict[str, type[DrivetrainError]] = {
    "VLLMError": EngineFailed,
    "VLLMServerError": EngineFailed,
    "GenerationError": EngineFailed,
    "RetryableRequestError": EngineFailed,
    "EngineGenerateError": EngineFailed,
    "EngineDeadError": EngineFailed,
    "GracefulHTTPError": EngineFailed,
    "ProfilerAlreadyActiveError": EngineFailed,
    "QueueOverflowError": Overloaded,
    "MaxQueuedTokensError": Overloaded,
    "VLLMClientError": InvalidRequest,
    "VLLMValidationError": InvalidRequest,
    "VLLMNotFoundError": InvalidRequest,
    "LoRAAdapterNotFoundError": InvalidRequest,
    "VLLMUnprocessableEntityError": InvalidRequest,
}
"""By the name of vLLM's class; a test holds it against all that vLLM has."""

DEAD = "vLLM's engine process has ended; try once more in a minute"

_OF_GRAMMARS = ("grammar", "structured output")

_TOO_LITTLE_CACHE = ("KV cache", "gpu_memory_utilization", "gpu-memory-utilization")


def while_running(exc: BaseException) -> DrivetrainError:
    if isinstance(exc, DrivetrainError):
        return exc
    name = _named(exc)
    if name == "EngineGenerateError" and isinstance(exc.__cause__, Exception):
        return while_running(exc.__cause__)
    if name is None:
        return checkpoint.while_running(exc)
    kind = KINDS[name]
    error: DrivetrainError
    if name == "EngineDeadError":
        error = EngineFailed(DEAD)
    elif issubclass(kind, InvalidRequest):
        parameter = getattr(exc, "parameter", None)
        if any(words in str(exc).lower() for words in _OF_GRAMMARS):
            parameter = "constraint"
        error = InvalidRequest(
            f"vLLM refuses this request: {clean(str(exc))}", param=parameter if parameter in PARAMETERS else None
        )
    elif issubclass(kind, Overloaded):
        error = Overloaded("vLLM's own queue is full; come back later")
    else:
        error = EngineFailed(f"vLLM failed on this request: {one_line(exc)}")
    error.__cause__ = exc
    return error


def of_images(exc: Exception) -> DrivetrainError:
    """What vLLM says of a prompt with images before it computes: as a rule that they do not fit together."""
    if isinstance(exc, DrivetrainError) or _named(exc) is not None or checkpoint.is_out_of_memory(exc):
        return while_running(exc)
    error = InvalidRequest(
        f"vLLM cannot fit these images to this prompt, which needs a place for each ({one_line(exc)})",
        param="images",
    )
    error.__cause__ = exc
    return error


def while_loading(exc: BaseException) -> DrivetrainError:
    """What goes wrong in vLLM's process is told in its log; here comes only that it did."""
    if isinstance(exc, ImportError) and (exc.name or "").partition(".")[0] == "vllm":
        error: DrivetrainError = MissingExtra("the vllm engine", extra="vllm")
    elif isinstance(exc, TypeError) and "EngineArgs" in str(exc):
        error = InvalidSetting(f"vllm_args: {clean(str(exc))}", param="vllm_args")
    elif any(text in str(exc) for text in _TOO_LITTLE_CACHE):
        error = LoadFailed(
            f"vLLM has not enough memory for keys and values ({one_line(exc)});"
            " set a larger kv_cache_gb or a smaller context_length"
        )
    elif "Engine core initialization failed" in str(exc):
        error = LoadFailed(
            "vLLM could not start with this model; the reason stands above, in vLLM's own lines on stderr"
            " (often: kv_cache_gb is too small for context_length, or vllm_args do not fit the machine)"
        )
    elif type(exc).__name__ == "ValidationError":  # pydantic's, of vLLM's configuration
        error = LoadFailed(f"vLLM refuses this model or its arguments: {one_line(exc)}")
    else:
        return checkpoint.while_loading(exc, engine="vllm")
    error.__cause__ = exc
    return error


def _named(exc: BaseException) -> str | None:
    """The nearest of vLLM's classes that is known."""
    return next((cls.__name__ for cls in type(exc).__mro__ if cls.__name__ in KINDS), None)
