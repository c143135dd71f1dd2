"""The settings of a worker: its own, declared here, and in `SettingsTable` those that engines declare as well."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

from drivetrain.core.capabilities import Limits
from drivetrain.core.errors import InvalidSetting
from drivetrain.core.kinds import Boolean, Integer, Kind, ListOf, Number, OneOf, String
from drivetrain.core.parameters import PARAMETERS
from drivetrain.core.request import Overflow
from drivetrain.core.settings import Setting

RECEIPT_KEY_VARIABLE = "DRIVETRAIN_RECEIPT_KEY"
"""The key of receipts itself, where no file has it."""


class Group(StrEnum):
    """Sampling defaults and limits also have request fields or caps of the same name."""

    MODEL = "model"
    ENGINE = "engine"
    SERVING = "serving"
    SAMPLING = "sampling defaults"
    LIMITS = "limits"


_MOST = 10**15
_COUNT = Integer(1, _MOST)
_SECONDS = Number(0.001, _MOST)
_LIMIT = {f.name: f.default for f in fields(Limits)}


def _setting(group: Group, one: Setting) -> Any:
    return field(default=one.default, metadata={"setting": one, "group": group})


def _model(meaning: str, default: Any = None) -> Any:
    return _setting(Group.MODEL, Setting(String(), meaning, default))


def _serving(kind: Kind, meaning: str, default: Any, otherwise: str = "") -> Any:
    return _setting(Group.SERVING, Setting(kind, meaning, default, otherwise))


def _sampling(name: str) -> Any:
    """As the request has it, but that nothing is its default here."""
    return _setting(Group.SAMPLING, Setting(PARAMETERS[name].kind, PARAMETERS[name].meaning))


def _limit(name: str, meaning: str, kind: Kind = _COUNT) -> Any:
    return _setting(Group.LIMITS, Setting(kind, meaning, _LIMIT[name]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """None means: decided when the model is loaded, or by what is asked later in the chain of defaults."""

    engine: str = _model("the engine, or auto", "auto")
    name: str | None = _model("the model's public name")
    family: str | None = _model("prompt form to use instead of the model's own chat template")

    engine_options: Mapping[str, Any] = field(default_factory=dict)
    """The engine's own settings that were set, by name."""

    max_running: int | None = _serving(
        _COUNT, "requests that run at once", None, otherwise="as many as the engine can take"
    )
    max_waiting: int = _serving(Integer(0, _MOST), "requests that may wait; any more are refused as overloaded", 64)
    timeout_s: float = _serving(_SECONDS, "seconds until a request times out, unless it sets its own timeout", 600.0)
    drain_s: float = _serving(
        Number(0, _MOST), "seconds that running requests get to finish when the worker stops", 30.0
    )
    reader_timeout_s: float = _serving(_SECONDS, "seconds after which a reader that takes no event is cancelled", 60.0)
    restart: bool = _serving(Boolean(), "load the model again when the engine dies or hangs", True)
    stall_s: float = _serving(
        _SECONDS, "seconds without progress, while requests run, before the engine counts as failed", 600.0
    )
    max_unread: int = _serving(_COUNT, "steps that a reader may leave unread before it is cancelled", 8192)
    stream_interval: int = _serving(_COUNT, "tokens per delta of a stream", 1)
    overflow: str = _serving(OneOf(Overflow), "what to do if the prompt and answer do not fit", Overflow.ERROR.value)
    media_hosts: tuple[str, ...] = _serving(
        ListOf(String()), "hosts that images may be fetched from; write host:port for ports other than 80 and 443", ()
    )
    max_decoded_pixels: int = _serving(
        _COUNT, "pixels of decoded images held at once; requests that would exceed it wait", 200_000_000
    )

    receipt_key_file: str | None = _serving(
        String(),
        "a file with the key that receipts are signed with",
        None,
        otherwise=f"{RECEIPT_KEY_VARIABLE} in the environment",
    )

    max_tokens: int | None = _setting(
        Group.SAMPLING, Setting(_COUNT, "the most tokens to generate, unless a request sets it")
    )
    temperature: float | None = _sampling("temperature")
    top_p: float | None = _sampling("top_p")
    top_k: int | None = _sampling("top_k")
    min_p: float | None = _sampling("min_p")
    repetition_penalty: float | None = _sampling("repetition_penalty")
    max_repetitions: int | None = _sampling("max_repetitions")

    max_n: int = _limit("max_n", "choices per request")
    max_stops: int = _limit("max_stops", "stops per request", Integer(0, _MOST))
    max_stop_chars: int = _limit("max_stop_chars", "characters per stop")
    max_logprobs: int = _limit("max_logprobs", "alternatives per token", Integer(0, _MOST))
    max_constraint_chars: int = _limit(
        "max_constraint_chars", "characters of a schema, regex or grammar", Integer(1, _MOST)
    )
    max_tools: int = _limit("max_tools", "tools per request")
    max_messages: int = _limit("max_messages", "messages per request; together they may have 8 times as many parts")
    max_prompt_chars: int = _limit("max_prompt_chars", "characters per prompt")
    max_ids: int = _limit("max_ids", "token ids in one list or map of a request, except the prompt")
    max_embed_inputs: int = _limit("max_embed_inputs", "texts per embeddings request, documents per reranking request")
    max_images: int = _limit("max_images", "images per request", Integer(0, _MOST))
    max_image_bytes: int = _limit("max_image_bytes", "bytes per image")
    max_image_pixels: int = _limit("max_image_pixels", "pixels per image")
    max_request_pixels: int = _limit("max_request_pixels", "pixels of all images in a request together")
    max_answer_bytes: int = _limit(
        "max_answer_bytes", "bytes that one answer may take, with its choices, tokens and logprobs"
    )
    max_timeout_s: float = _limit("max_timeout_s", "the longest timeout a request may ask for", _SECONDS)

    @property
    def default_timeout_s(self) -> float:
        """Of a request that names none."""
        return min(self.timeout_s, self.max_timeout_s)

    @property
    def limits(self) -> Limits:
        return Limits(**{f.name: getattr(self, f.name) for f in fields(Limits)})

    @property
    def sampling(self) -> dict[str, Any]:
        return {name: value for name in SAMPLING_NAMES if (value := getattr(self, name)) is not None}

    def value(self, name: str) -> Any:
        """Of any setting of the table."""
        return getattr(self, name) if name in _OWN else self.engine_options.get(name)


_OWN = {f.name: f for f in fields(Settings) if f.metadata}
SAMPLING_NAMES = tuple(name for name, own in _OWN.items() if own.metadata["group"] is Group.SAMPLING)


class SettingsTable:
    """Every setting by its name: the worker's own, and those of the engines. `engines` has theirs, by engine."""

    def __init__(self, engines: Mapping[str, Mapping[str, Setting]]) -> None:
        self.groups: dict[Group, dict[str, Setting]] = {group: {} for group in Group}
        for name, own in _OWN.items():
            self.groups[own.metadata["group"]][name] = own.metadata["setting"]
        *others, last = "auto", *engines
        model, engine = self.groups[Group.MODEL], self.groups[Group.ENGINE]
        model["engine"] = replace(model["engine"], meaning=f"{', '.join(others)} or {last}")
        for settings in engines.values():
            for name, one in settings.items():
                if name in _OWN or engine.setdefault(name, one) != one:
                    raise ValueError(f"the setting {name} is declared twice")
        self.all = {name: one for group in self.groups.values() for name, one in group.items()}

    def find(self, name: str) -> Setting:
        """Raises `InvalidSetting`."""
        if name not in self.all:
            close = difflib.get_close_matches(name, self.all, 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise InvalidSetting(f"there is no setting {name}{hint}", param=name)
        return self.all[name]
