"""What the JSON files of a safetensors folder state, for installations without transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drivetrain.assembly import EngineKind
from drivetrain.core.engine import Description
from drivetrain.core.errors import LoadFailed, MissingExtra
from drivetrain.core.prompt import Prompt
from drivetrain.core.tokenizer import LONGEST_PIECE, Detokenizer
from drivetrain.engines.base.kind import StatedCapabilities
from drivetrain.engines.checkpoint import declared
from drivetrain.engines.checkpoint.folder import tokenizer_problem
from drivetrain.engines.checkpoint.kinds import StatedConfig
from drivetrain.store.formats import MAX_JSON_BYTES, config_requests_remote_code, read_config
from drivetrain.text.infill import INFILL_NAMES


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedTokenizer:
    """What the files state of a tokenizer. Anything that needs its vocabulary raises `MissingExtra`."""

    bos_token: str | None = None
    eos_token: str | None = None
    pad_token: str | None = None
    chat_template: str | None = None
    response_template: Mapping[str, Any] | None = None
    special_ids: Mapping[str, int]

    @property
    def waits(self) -> bool:
        return False

    @property
    def vocab_size(self) -> int:
        raise _needs_library()

    @property
    def longest_piece(self) -> int:
        return LONGEST_PIECE

    @property
    def special_strings(self) -> frozenset[str]:
        return frozenset(text for text in self.special_ids if text.strip())

    def encode(self, prompt: Prompt) -> list[int]:
        raise _needs_library()

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        raise _needs_library()

    def token_text(self, token_id: int) -> str:
        return next((text for text, known in self.special_ids.items() if known == token_id), "")

    def token_bytes(self, token_id: int) -> bytes:
        return self.token_text(token_id).encode()

    def id_of(self, token: str) -> int | None:
        return self.special_ids.get(token)

    def is_special(self, token_id: int) -> bool:
        return token_id in self.special_ids.values()

    def detokenizer(self, prefix: Sequence[int] = ()) -> Detokenizer:
        raise _needs_library()


def nothing_stated(kind: EngineKind) -> Description:
    """For a GGUF file, whose metadata only the extra can read."""
    what = "the template, tokenizer, context length and sampling of a GGUF file are inside it; to read them: "
    return Description(
        tokenizer=StatedTokenizer(special_ids={}),
        architecture="",
        capabilities=None,
        context_length=None,
        eos_ids=frozenset(),
        default_sampling={},
        missing=(what + kind.install,),
    )


def by_files(
    folder: Path, kind: EngineKind, capabilities_of: StatedCapabilities, options: Mapping[str, Any]
) -> Description:
    """Raises `LoadFailed` for files that exist but cannot be read."""
    config = read_config(folder)
    if config_requests_remote_code(config) and not options.get("trust_remote_code"):
        raise LoadFailed(
            "this model asks to run code of its own, which is off; if you trust its author, set trust_remote_code"
        )
    tokenizer_config = _optional(folder, "tokenizer_config.json")
    structure = _optional(folder, "generation_config.json")
    tokenizer = _tokenizer(folder, tokenizer_config)
    stated = StatedConfig(config)
    limit = StatedConfig({"model_max_length": tokenizer_config.get("model_max_length")})
    context_length = declared.context_length(stated, limit, options.get("context_length"))
    capabilities = capabilities_of(config, context_length, options)
    return Description(
        tokenizer=tokenizer,
        architecture=str(config.get("model_type", "")),
        capabilities=capabilities,
        context_length=context_length,
        eos_ids=_eos_ids(structure, stated, tokenizer),
        default_sampling=declared.stated_sampling(StatedConfig(structure), capabilities.parameters),
        missing=(
            f"token ids need the tokenizer of transformers: {kind.install}",
            *([why] if (why := tokenizer_problem(folder)) else []),
        ),
    )


def _eos_ids(structure: Mapping[str, Any], config: StatedConfig, tokenizer: StatedTokenizer) -> frozenset[int]:
    by_name = tokenizer.id_of(tokenizer.eos_token or "")
    try:
        return declared.eos_ids(
            StatedConfig({"eos_token_id": structure.get("eos_token_id")}),
            config,
            StatedConfig({"eos_token_id": by_name}),
        )
    except (TypeError, ValueError) as exc:
        raise LoadFailed("eos_token_id of the model's configuration is not a token id or a list of them") from exc


def _tokenizer(folder: Path, stated: Mapping[str, Any]) -> StatedTokenizer:
    response_template = stated.get("response_template")
    return StatedTokenizer(
        bos_token=_token(stated.get("bos_token")),
        eos_token=_token(stated.get("eos_token")),
        chat_template=_template(folder, stated),
        response_template=response_template if isinstance(response_template, dict) else None,
        special_ids=_special_ids(folder, stated),
    )


def _template(folder: Path, stated: Mapping[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            with path.open("rb") as file:
                return file.read(MAX_JSON_BYTES).decode("utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            raise LoadFailed("chat_template.jinja cannot be read; pull or copy the model again") from exc
    template = stated.get("chat_template") or _optional(folder, "chat_template.json").get("chat_template")
    if isinstance(template, list):  # several, by name
        named = {item.get("name"): item.get("template") for item in template if isinstance(item, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _special_ids(folder: Path, stated: Mapping[str, Any]) -> dict[str, int]:
    """The special tokens and their ids, from either of the two files that list them."""
    listed = stated.get("added_tokens_decoder")
    if isinstance(listed, dict):
        entries: list[Any] = [
            {"id": int(i), **entry} for i, entry in listed.items() if i.isdecimal() and isinstance(entry, dict)
        ]
    else:
        entries = _optional(folder, "tokenizer.json").get("added_tokens") or []
    return {
        entry["content"]: entry["id"]
        for entry in entries
        if isinstance(entry, dict)
        and isinstance(entry.get("content"), str)
        and (entry.get("special") or entry["content"] in INFILL_NAMES)
        and isinstance(entry.get("id"), int)
    }


def _token(value: Any) -> str | None:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _optional(folder: Path, name: str) -> dict[str, Any]:
    return read_config(folder, name) if (folder / name).is_file() else {}


def _needs_library() -> MissingExtra:
    return MissingExtra("the tokenizer", extra="transformers")
