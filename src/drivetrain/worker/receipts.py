"""Makes the receipts of one loaded model: what the answer came from, told once, for every face."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from drivetrain import __version__
from drivetrain.core.capabilities import Capabilities, Reproducibility
from drivetrain.core.engine import ModelSpec
from drivetrain.core.errors import InvalidSetting
from drivetrain.core.json_values import plain
from drivetrain.core.receipt import ChoiceRecord, PromptRecord, Receipt, Settled
from drivetrain.core.request import GenerateRequest, Overflow
from drivetrain.core.results import Choice
from drivetrain.core.sealing import FORM, ids_sha256, sealed, sha256_of
from drivetrain.core.status import Metadata
from drivetrain.worker.prepare import Prepared
from drivetrain.worker.settings import RECEIPT_KEY_VARIABLE
from drivetrain.worker.settle import Defaults

KEY_SETTING = "receipt_key_file"
MIN_KEY_CHARS = 16

OF_CHATS = (
    "tools", "tool_choice", "parallel_tool_calls", "chat_template_kwargs", "reasoning_effort", "max_reasoning_tokens",
)  # fmt: skip
"""What goes with messages. In a receipt it stands in `request`, and of the tools there is a hash."""

_AS_GIVEN = (
    "min_tokens", "n", "stop_token_ids", "stop_sequences", "ignore_eos", "include_stop_str_in_output", "echo",
    "logprobs", "prompt_logprobs", *OF_CHATS[1:],
)  # fmt: skip
"""Parameters that only a request sets."""

_SAYS_NO_PLACE = re.compile(r"[\w:+-]{1,64}")
"""A setting's text that is neither a path nor an address."""


def receipt_key(file: str | None) -> bytes | None:
    """What receipts are signed with: of this file, else of the environment. Raises `InvalidSetting`."""
    if file is None:
        where, text = RECEIPT_KEY_VARIABLE, os.environ.get(RECEIPT_KEY_VARIABLE, "")
        if not text.strip():
            return None
    else:
        where = f"the file {file}"
        try:
            text = Path(file).read_text("utf-8")
        except (OSError, ValueError) as exc:
            why = exc.strerror if isinstance(exc, OSError) else "it is not text"
            raise InvalidSetting(f"the key of receipts cannot be read from {file}: {why}", param=KEY_SETTING) from exc
    key = text.strip()
    if len(key) < MIN_KEY_CHARS:
        what = f"the key of receipts in {where} has {len(key)} characters; it must have at least {MIN_KEY_CHARS}"
        raise InvalidSetting(what, param=KEY_SETTING)
    try:
        return key.encode()
    except UnicodeEncodeError:
        raise InvalidSetting(f"the key of receipts in {where} is not text", param=KEY_SETTING) from None


class ReceiptMaker:
    """One per loaded model."""

    def __init__(
        self,
        *,
        spec: ModelSpec,
        metadata: Metadata,
        template: str | None,
        defaults: Defaults,
        capabilities: Capabilities,
        overflow: Overflow,
        key: bytes | None,
    ) -> None:
        """`template` is the text of the chat template, if chats are rendered by it."""
        self._key = key
        self._metadata = metadata
        self._defaults = defaults
        self._capabilities = capabilities
        self._overflow = overflow
        self._weights = spec.weights
        self._template = None if template is None else hashlib.sha256(template.encode()).hexdigest()
        self._settings = _shown_settings(spec.options)
        self._versions = {"drivetrain": __version__, "python": platform.python_version(), **metadata.versions}

    def make(
        self,
        request: GenerateRequest,
        prepared: Prepared,
        *,
        request_id: str,
        prompt_ids: tuple[int, ...],
        choices: Sequence[Choice],
    ) -> Receipt:
        """Of an answer that is whole."""
        wish, known, pictures = request.receipt, self._metadata, prepared.pictures
        assert wish is not None
        receipt = Receipt(
            form=FORM,
            request_id=request_id,
            created=int(time.time()),
            model=known.name,
            weights=self._weights,
            engine=known.engine,
            device=known.device,
            dtype=known.dtype,
            settings=self._settings,
            versions=self._versions,
            family=known.family,
            template=self._template,
            prompt=PromptRecord(
                sha256=ids_sha256(prompt_ids),
                tokens=len(prompt_ids),
                truncated=prepared.truncated,
                ids=prompt_ids if wish.full else None,
                images=tuple(pictures.hashes) if pictures is not None else (),
            ),
            parameters=self._parameters(request, prepared),
            constraint=None if request.constraint is None else sha256_of(plain(request.constraint)),
            tools=sha256_of(plain(request.tools)) if request.tools else None,
            choices=tuple(ChoiceRecord(c.index, c.token_ids, str(c.finish_reason)) for c in choices),
            ignored=wish.ignored,
            request=_beside_ids(request, prepared) if wish.full else None,
        )
        return sealed(receipt, self._key)

    def _parameters(self, request: GenerateRequest, prepared: Prepared) -> dict[str, Settled]:
        made = prepared.request
        found = {
            name: Settled(plain(value), origin) for name, (origin, value) in self._defaults.settled(request).items()
        }
        given = {name: value for name in _AS_GIVEN if (value := getattr(request, name)) is not None}
        found |= {name: Settled(plain(value), "request") for name, value in given.items()}
        found["max_tokens"] = Settled(made.max_tokens, self._of_length(request, made.max_tokens))
        found["stop"] = Settled(list(prepared.rules.strings), self._of_stops(request, prepared))
        found["context_length"] = Settled(made.context_length, "model" if request.context_length is None else "request")
        found["overflow"] = self._of_overflow(request)
        if own := prepared.rules.eos_ids.difference(
            self._metadata.eos_ids
        ):  # a replay has ids only: it must end there too
            found["stop_token_ids"] = Settled(sorted(own.union(request.stop_token_ids or ())), "infill")
        if "seed" in self._capabilities.parameters:
            found["seed"] = Settled(made.seeds[0], "chosen" if request.seed is None else "request")
        demanded = request.reproducibility is Reproducibility.EXACT
        found["reproducibility"] = Settled(
            self._capabilities.reproducibility.value, "request" if demanded else "engine"
        )
        return found

    def _of_overflow(self, request: GenerateRequest) -> Settled:
        if request.overflow is not None:
            return Settled(request.overflow.value, "request")
        if request.suffix and self._overflow is not Overflow.SHORTEN_ANSWER:  # a gap's texts are never cut
            return Settled(Overflow.ERROR.value, "infill")
        return Settled(self._overflow.value, "settings")

    def _of_length(self, request: GenerateRequest, value: int | None) -> str:
        source, default = self._defaults.max_tokens_from()
        if request.max_tokens is not None:
            return "request" if value == request.max_tokens else "context"
        return source if value == default else "context"

    def _of_stops(self, request: GenerateRequest, prepared: Prepared) -> str:
        if request.stop is not None:
            return "request"
        return "family" if self._metadata.stop else "model" if prepared.rules.strings else "neutral"


def _beside_ids(request: GenerateRequest, prepared: Prepared) -> dict[str, Any] | None:
    """What a replay needs besides the prompt's ids and the parameters: the images, and what the answer was held to."""
    names: tuple[str, ...] = ()
    if prepared.request.media is not None or (prepared.reading is not None and prepared.request.grammar is not None):
        names = ("messages", "prompt", "images", "constraint", *OF_CHATS)
    elif request.constraint is not None:
        names = ("constraint",)
    given = {name: value for name in names if (value := getattr(request, name)) is not None}
    return plain(given) if given else None


def _shown_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those that were set, without paths and addresses."""
    return {name: value for name, value in options.items() if _is_shown(value)}


def _is_shown(value: Any) -> bool:
    return isinstance(value, (bool, int, float)) or (
        isinstance(value, str) and _SAYS_NO_PLACE.fullmatch(value) is not None
    )
