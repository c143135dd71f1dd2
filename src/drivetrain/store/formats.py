"""What a folder or file of weights is, and whether it is complete. Only safetensors and GGUF: they contain no code.

Only headers and small JSON files are read. Messages name files relative to the model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drivetrain import safetensors_header
from drivetrain.core.engine import WeightsFormat
from drivetrain.core.errors import LoadFailed, one_line
from drivetrain.safetensors_header import INDEX, SINGLE, lfs_pointer
from drivetrain.store import gguf_header

CONFIG = "config.json"
ADAPTER = "adapter_config.json"
MAX_JSON_BYTES = 64 * 1024 * 1024

PULL_AGAIN = "fetch it again (drivetrain pull, or copy the whole file)"

_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
_SHARD = re.compile(r".+-\d{5}-of-\d{5}\.safetensors")


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """`path` is what an engine loads: the folder for safetensors, the file for GGUF. `files` are the weights."""

    format: WeightsFormat
    path: Path
    files: tuple[str, ...]


def detect(path: Path) -> ModelFiles:
    """What is at the path. Raises `LoadFailed` unless it is complete, as far as headers and sizes can tell."""
    try:
        if path.is_dir():
            return _detect_folder(path)
        if path.is_file():
            return _detect_file(path)
    except OSError as exc:
        raise LoadFailed(f"the model cannot be read: {exc.strerror or type(exc).__name__}") from exc
    raise LoadFailed(f"{path.name} is neither a folder nor a file of weights")


def read_config(folder: Path, name: str = CONFIG) -> dict[str, Any]:
    """A JSON object of the model folder. Raises `LoadFailed` if it is anything else."""
    try:
        with (folder / name).open("rb") as file:
            raw = file.read(MAX_JSON_BYTES + 1)
        _refuse_pointer(folder / name)
    except OSError as exc:
        raise LoadFailed(f"{name} cannot be read: {exc.strerror or type(exc).__name__}") from exc
    if len(raw) > MAX_JSON_BYTES:
        raise LoadFailed(f"{name} is larger than any real one; {PULL_AGAIN}")
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError) as exc:
        raise LoadFailed(f"{name} is not valid JSON ({one_line(str(exc))}); {PULL_AGAIN}") from exc
    if not isinstance(data, dict):
        raise LoadFailed(f"{name} is not a JSON object; {PULL_AGAIN}")
    return data


def config_requests_remote_code(config: Mapping[str, Any]) -> list[str]:
    """Every class that the config, or one nested in it, would import from the model's own Python files (`auto_map`)."""
    wanted: list[str] = []
    parts: list[Mapping[str, Any]] = [config]
    while parts:
        part = parts.pop()
        auto_map = part.get("auto_map")
        if isinstance(auto_map, Mapping):
            wanted.extend(f"{role}={_names(target)}" for role, target in auto_map.items())
        elif auto_map:
            wanted.append(f"auto_map={_names(auto_map)}")
        parts.extend(value for key, value in part.items() if key != "auto_map" and isinstance(value, Mapping))
    return sorted(wanted)


def _names(target: Any) -> str:
    if isinstance(target, (list, tuple)):
        return ",".join(str(item) for item in target if item is not None)
    return str(target)


def _detect_file(path: Path) -> ModelFiles:
    if path.suffix == ".safetensors":
        raise LoadFailed(f"{path.name} is one file of a model; give the folder that also holds its {CONFIG}")
    if path.suffix in _PICKLES:
        raise LoadFailed(_pickle_message(path.name))
    _refuse_pointer(path)
    if path.suffix.lower() != ".gguf" and not gguf_header.is_gguf(path):
        raise LoadFailed(f"{path.name} is not a model; give a folder with safetensors weights, or a .gguf file")
    _check_gguf(path)
    return ModelFiles(WeightsFormat.GGUF, path, (path.name,))


def _detect_folder(folder: Path) -> ModelFiles:
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_file())
    ggufs = [name for name in names if name.lower().endswith(".gguf")]
    weights = [*ggufs, *(name for name in names if name.endswith(".safetensors"))]
    if ADAPTER in names and not ggufs and (CONFIG not in names or _are_of_an_adapter(names, weights)):
        raise LoadFailed(_adapter_message(folder))
    if INDEX in names or any(name.endswith(".safetensors") for name in names):
        return _detect_safetensors(folder, names)
    if ggufs:
        return _detect_gguf(folder, ggufs)
    pickles = [name for name in names if name.endswith(_PICKLES)]
    if pickles:
        raise LoadFailed(_pickle_message(pickles[0]))
    if not names:
        raise LoadFailed("the model folder is empty; give one with safetensors weights, or a .gguf file")
    raise LoadFailed("the model folder holds no weights; give one with safetensors weights, or a .gguf file")


def _are_of_an_adapter(names: list[str], weights: list[str]) -> bool:
    found = [*weights, *(name for name in names if name.startswith("pytorch_model") and name.endswith(_PICKLES))]
    return all(name.startswith("adapter_model") for name in found)


def _detect_safetensors(folder: Path, names: list[str]) -> ModelFiles:
    if CONFIG not in names:
        raise LoadFailed(f"the model folder has no {CONFIG}; give a complete folder in Hugging Face form")
    read_config(folder)
    weights = _weight_files(folder, names)
    for name in weights:
        _refuse_pointer(folder / name)
        if problem := safetensors_header.problem(folder / name):
            raise LoadFailed(f"{name} {problem}; {PULL_AGAIN}")
    return ModelFiles(WeightsFormat.SAFETENSORS, folder, tuple(weights))


def _weight_files(folder: Path, names: list[str]) -> list[str]:
    if SINGLE in names:
        return [SINGLE]
    if INDEX in names:
        shards = _shards(read_config(folder, INDEX))
        if missing := [shard for shard in shards if shard not in names]:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise LoadFailed(f"{missing[0]}{more} of {INDEX} is missing; {PULL_AGAIN}")
        return shards
    found = [name for name in names if name.endswith(".safetensors")]
    if any(_SHARD.fullmatch(name) for name in found):
        raise LoadFailed(f"{INDEX} is missing beside the shards; {PULL_AGAIN}")
    return found


def _shards(index: Mapping[str, Any]) -> list[str]:
    weight_map = index.get("weight_map")
    shards: Iterable[Any] = weight_map.values() if isinstance(weight_map, dict) else ()
    unique = {shard for shard in shards if isinstance(shard, str)}
    if not unique or not all(re.fullmatch(r"[\w.-]+\.safetensors", shard) for shard in unique):
        raise LoadFailed(f"{INDEX} does not name the weight files; {PULL_AGAIN}")
    return sorted(unique)


def _detect_gguf(folder: Path, ggufs: list[str]) -> ModelFiles:
    models = [name for name in ggufs if "mmproj" not in name.lower()] or ggufs
    if len(models) > 1:
        raise LoadFailed(f"the model folder holds {len(models)} GGUF files; give one of them, such as {models[0]}")
    _check_gguf(folder / models[0])
    return ModelFiles(WeightsFormat.GGUF, folder / models[0], (models[0],))


def _refuse_pointer(path: Path) -> None:
    """A clone without Git LFS has pointers in place of the large files."""
    if pointer := lfs_pointer(path):
        raise LoadFailed(f"{path.name} {pointer}; run `git lfs pull` in the folder, or {PULL_AGAIN}")


def _adapter_message(folder: Path) -> str:
    stated = read_config(folder, ADAPTER)
    kind, base = stated.get("peft_type"), stated.get("base_model_name_or_path")
    what = "a LoRA adapter" if kind == "LORA" else "an adapter"
    if isinstance(base, str) and base.strip():
        hub_id = re.fullmatch(r"[\w.-]+/[\w.-]+", base)
        what += f" of {one_line(base if hub_id else _last_part(base), 100)}"
    return (
        f"the model folder holds only {what}, which is no model by itself; merge it into its base model once (with"
        " peft: merge_and_unload, then save_pretrained; the tokenizer too) and give the folder that this makes"
    )


def _last_part(path: str) -> str:
    return re.split(r"[/\\]", path.strip().rstrip("/\\"))[-1]


def _check_gguf(path: Path) -> None:
    _refuse_pointer(path)
    if problem := gguf_header.problem(path):
        raise LoadFailed(f"{path.name} {problem}; {PULL_AGAIN}")


def _pickle_message(name: str) -> str:
    return (
        f"{name} holds pickled weights, which can run code; only safetensors and GGUF are read: convert it once, where "
        "you trust it, with transformers (from_pretrained, then save_pretrained)"
    )
