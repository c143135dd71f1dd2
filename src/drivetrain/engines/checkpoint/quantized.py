"""How a folder's weights are quantized, which packages the transformers library needs for that, and whether its files
agree with its configuration. Read from the files alone: no torch here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from drivetrain.core.errors import LoadFailed, one_line
from drivetrain.safetensors_header import stored_types

FLOATS = frozenset({"F64", "F32", "F16", "BF16"})


@dataclass(frozen=True, slots=True)
class Method:
    """`packages`: what pip calls a package, and its module. `may_store_floats`: files without any other type of tensor
    may be quantized all the same, or nobody here knows.
    """

    title: str
    packages: Mapping[str, str] = field(default_factory=dict)
    may_store_floats: bool = False


METHODS: Mapping[str, Method] = {
    "aqlm": Method("AQLM", {"aqlm[gpu,cpu]": "aqlm"}),
    "auto-round": Method("AutoRound", {"auto-round": "auto_round"}),
    "awq": Method("AWQ", {"gptqmodel": "gptqmodel"}),
    "bitnet": Method("BitNet", may_store_floats=True),
    "bitsandbytes": Method("bitsandbytes", {"bitsandbytes": "bitsandbytes"}),
    "compressed-tensors": Method(
        "compressed-tensors", {"compressed-tensors": "compressed_tensors"}, may_store_floats=True
    ),
    "eetq": Method("EETQ", {"kernels": "kernels"}),
    "fbgemm_fp8": Method("fbgemm fp8"),
    "fouroversix": Method("Four Over Six", {"fouroversix": "fouroversix"}, may_store_floats=True),
    "fp8": Method("fp8"),
    "fp_quant": Method("FP-Quant", {"fp_quant": "fp_quant"}, may_store_floats=True),
    "gemma": Method("Gemma's own", may_store_floats=True),
    "gguf": Method("GGUF", {"gguf": "gguf"}),
    "gptq": Method("GPTQ", {"optimum": "optimum", "gptqmodel": "gptqmodel"}),
    "higgs": Method(
        "HIGGS", {"flute-kernel": "flute", "fast_hadamard_transform": "fast_hadamard_transform"}, may_store_floats=True
    ),
    "hqq": Method("HQQ", {"hqq": "hqq"}, may_store_floats=True),
    "metal": Method("MLX", {"kernels": "kernels"}, may_store_floats=True),
    "mxfp4": Method("mxfp4"),
    "mxfp8": Method("mxfp8"),
    "nvfp4": Method("nvfp4", {"kernels": "kernels"}),
    "quanto": Method("quanto", {"optimum-quanto": "optimum.quanto"}, may_store_floats=True),
    "quark": Method("Quark", {"amd-quark": "quark"}, may_store_floats=True),
    "sinq": Method("SINQ", {"sinq": "sinq"}, may_store_floats=True),
    "spqr": Method("SpQR", {"spqr_quant[gpu]": "spqr_quant"}, may_store_floats=True),
    "torchao": Method("torchao", {"torchao": "torchao"}, may_store_floats=True),
    "vptq": Method("VPTQ", {"vptq": "vptq"}, may_store_floats=True),
}
"""Those of the library's quantizers; a test holds the packages against what these ask for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """What `quantization_config` says, beside what is in the files."""

    method: str
    in_words: str
    over_floats: bool
    """Whether the files hold floats only: then nothing is quantized, whatever the configuration says."""
    needs: tuple[str, ...]
    """Packages, as pip calls them."""
    missing: tuple[str, ...]

    @property
    def install(self) -> str:
        return f"pip install {' '.join(map(_quoted, self.missing))}"

    @property
    def note(self) -> str:
        """For float weights, which are used though the configuration contradicts them."""
        return (
            f"config.json says that the weights are quantized ({self.in_words}), but they are floats: used as they are"
        )

    def refuse_unless_ready(self) -> None:
        """What lacks before the library can load the weights."""
        from transformers import __version__
        from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

        if self.missing:
            raise LoadFailed(f"the weights are quantized ({self.in_words}); to load them, run: {self.install}")
        if not any(name.startswith(self.method or "-") for name in AUTO_QUANTIZATION_CONFIG_MAPPING):
            raise LoadFailed(
                f"the weights are quantized ({self.in_words}), which transformers {__version__} does not load; a newer"
                " one may (pip install -U transformers), else take the model in another form"
            )


def of_folder(folder: Path) -> Quantization | None:
    """None: the configuration says of no quantization. Raises `LoadFailed` where it says so in no usable way."""
    config = json.loads((folder / "config.json").read_bytes())
    stated = next(_stated(config), None)
    if stated is None:
        return None
    if not isinstance(stated, dict):
        raise LoadFailed("quantization_config in config.json is not a JSON object; correct it, or copy the model again")
    method = _method(stated)
    known = METHODS.get(method, Method(method, may_store_floats=bool(method)))
    types = stored_types(folder)
    over_floats = bool(types) and types <= FLOATS and not known.may_store_floats
    needs = {} if over_floats else known.packages
    return Quantization(
        method=method,
        in_words=_in_words(method, stated),
        over_floats=over_floats,
        needs=tuple(needs),
        missing=tuple(package for package, module in needs.items() if not _installed(module)),
    )


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # nor is what it would be in
        return False


def without_quantization(config: Any) -> None:
    """Make the library's configuration one of the float weights that there are."""
    for part in (config, config.get_text_config()):
        if hasattr(part, "quantization_config"):
            del part.quantization_config


def _stated(config: Mapping[str, Any]) -> Iterator[Any]:
    """Where the library looks."""
    for part in (config, config.get("text_config")):
        if isinstance(part, dict) and part.get("quantization_config") is not None:
            yield part["quantization_config"]


def _method(stated: Mapping[str, Any]) -> str:
    if stated.get("load_in_4bit") or stated.get("load_in_8bit"):
        return "bitsandbytes"
    return one_line(str(stated.get("quant_method") or ""), 40)


def _in_words(method: str, stated: Mapping[str, Any]) -> str:
    known = METHODS.get(method)
    title = known.title if known is not None else method or "by a method that quant_method does not name"
    return ", ".join([title, *_details(method, stated)])


def _details(method: str, stated: Mapping[str, Any]) -> Iterator[str]:
    if method == "bitsandbytes":
        yield "4 bits" if stated.get("load_in_4bit") else "8 bits"
    elif method == "compressed-tensors":
        yield from _compressed(stated)
    if isinstance(bits := stated.get("bits"), int):
        yield f"{bits} bits"
    if isinstance(size := stated.get("group_size"), int) and size > 0:
        yield f"in groups of {size}"
    block = stated.get("weight_block_size")
    if isinstance(block, list) and block and all(isinstance(size, int) for size in block):
        yield f"in blocks of {'×'.join(map(str, block))}"


def _compressed(stated: Mapping[str, Any]) -> Iterator[str]:
    groups = stated.get("config_groups")
    for group in groups.values() if isinstance(groups, dict) else ():
        for what in ("weights", "input_activations"):
            scheme = group.get(what) if isinstance(group, dict) else None
            if isinstance(scheme, dict) and isinstance(scheme.get("num_bits"), int):
                number = one_line(str(scheme.get("type", "int")), 20)
                yield f"{what.removeprefix('input_')} {number}{scheme['num_bits']}"


def _quoted(package: str) -> str:
    return f"'{package}'" if "[" in package else package
