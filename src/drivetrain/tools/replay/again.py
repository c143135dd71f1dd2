"""From a receipt to the request that makes its answer again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from drivetrain.core.capabilities import Capabilities
from drivetrain.core.errors import DrivetrainError, InvalidRequest
from drivetrain.core.json_values import shaped
from drivetrain.core.parameters import CHAT_ONLY, PARAMETERS
from drivetrain.core.receipt import Receipt
from drivetrain.core.request import GenerateRequest
from drivetrain.core.sampling import MIN_TEMPERATURE, Sampling

_CHANGES_NO_ID = frozenset(
    {
        "echo",
        "logprobs",
        "prompt_logprobs",
        "context_length",
        "overflow",
        "parallel_tool_calls",
        "reproducibility",
    }
)
"""What says how an answer is given, or what its prompt was made of. The ids do not depend on it."""

_NOT_REPEATED = _CHANGES_NO_ID.union(CHAT_ONLY)
"""What goes with messages stands in the receipt's `request`, where it matters."""

_HELD = frozenset({"messages", "prompt", "images", "constraint", *CHAT_ONLY, "parallel_tool_calls"})
"""What a receipt's `request` may hold; see `worker/receipts.py`."""

_NEUTRAL: Mapping[str, Any] = {
    field.name: neutral for field in fields(Sampling) if (neutral := PARAMETERS[field.name].neutral) is not None
}


def request_of(receipt: Receipt, capabilities: Capabilities) -> dict[str, Any]:
    """With the recorded ids as its prompt, unless the answer was held to what only its messages tell.

    Every value is stated, so that no default of the replaying worker comes through. Raises `InvalidRequest` for a
    receipt that does not hold what is needed.
    """
    if receipt.prompt.ids is None:
        raise InvalidRequest("it holds no prompt ids; ask for a full receipt to replay it", param="receipt")
    held = _held(receipt)
    if not held.keys() & {"messages", "prompt"}:
        held["prompt_token_ids"] = receipt.prompt.ids
    settled = {
        name: one.value
        for name, one in receipt.parameters.items()
        if name in PARAMETERS and name not in _NOT_REPEATED and one.value is not None
    }
    if "seed" not in capabilities.parameters and is_greedy(receipt):
        settled.pop("seed", None)
    neutral = {name: value for name, value in _NEUTRAL.items() if name in capabilities.parameters}
    return {**neutral, **settled, **held}


def _held(receipt: Receipt) -> dict[str, Any]:
    if receipt.request is None:
        return {}
    try:
        if not receipt.request.keys() <= _HELD:
            raise InvalidRequest("its request has more than what an answer is held to", param="receipt")
        request: GenerateRequest = shaped(GenerateRequest, receipt.request)
        _refuse_foreign(request)
    except DrivetrainError:
        raise
    except Exception:  # noqa: BLE001 - anybody can write a receipt
        raise InvalidRequest("its request is not one that this version can read", param="receipt") from None
    return request.given()


def _refuse_foreign(request: GenerateRequest) -> None:
    """Anybody can write a receipt: nothing that it names is opened or fetched."""
    images = [*(request.images or ()), *(image for message in request.messages or () for image in message.images)]
    if any(image.data is None and not (image.url or "")[:5].lower().startswith("data:") for image in images):
        what = "it names an image by a path or a URL; only images that it holds are shown to a model again"
        raise InvalidRequest(what, param="receipt")


def is_greedy(receipt: Receipt) -> bool:
    temperature, top_k = (_number(receipt, name) for name in ("temperature", "top_k"))
    return top_k == 1 or (temperature is not None and temperature < MIN_TEMPERATURE)


def _number(receipt: Receipt, name: str) -> float | None:
    settled = receipt.parameters.get(name)
    return settled.value if settled is not None and isinstance(settled.value, (int, float)) else None
