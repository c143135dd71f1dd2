"""A receipt: what made an answer, in enough detail to make it again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ReceiptWish:
    """What a request asks for. `full` adds all that a replay needs: prompt ids, and what the answer was held to.

    `ignored` names the fields that a lenient server left out of the request.
    """

    full: bool = False
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Settled:
    """A parameter as it was in force, as JSON has it.

    `origin` is who said so: `request`, `settings`, `generation_config`, `catalogue`, `family`, `model`, `neutral`,
    `context` (the rest of it), `infill` (ends that came with a suffix), `chosen` (a seed for this receipt) or `engine`.
    """

    value: Any
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRecord:
    """The ids that the model read. `sha256` is that of `ids_sha256`; `images` has one for each image file."""

    sha256: str
    tokens: int
    truncated: int = 0
    ids: tuple[int, ...] | None = None
    images: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ChoiceRecord:
    """All sampled ids, with the one that ended the choice."""

    index: int
    token_ids: tuple[int, ...]
    finish_reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """One for each prompt, made by the worker. All hashes are sha256, as hex.

    `weights` is the store's digest of the model (`sha256:…`; `quick-…` for weights outside the store, which notices a
    change but proves nothing; None: another server has them). `settings` are those of the engine that were set.
    `template` is the hash of the model's own chat template, if chats are rendered by it; else `family` names the form.
    `constraint` and `tools` are hashes of what the request said. `request`, in a full receipt, is what cannot be made
    from the prompt's ids and the parameters.

    `digest` is over all that is not itself or the `signature`, which is by the worker's key. See `sealing.py`.
    """

    form: int
    request_id: str
    created: int
    model: str
    weights: str | None
    engine: str
    device: str
    dtype: str
    settings: Mapping[str, Any]
    versions: Mapping[str, str]
    family: str
    template: str | None
    prompt: PromptRecord
    parameters: Mapping[str, Settled]
    constraint: str | None
    tools: str | None
    choices: tuple[ChoiceRecord, ...]
    ignored: tuple[str, ...] = ()
    request: Mapping[str, Any] | None = None
    digest: str = ""
    signature: str | None = None

    @property
    def is_replayable(self) -> bool:
        """Whether it holds all that a replay needs, images that were named by a path or a URL aside."""
        return self.prompt.ids is not None

    @property
    def seed(self) -> int | None:
        """None: the engine takes none, so that only greedy answers can be expected again."""
        settled = self.parameters.get("seed")
        return None if settled is None else int(settled.value)
