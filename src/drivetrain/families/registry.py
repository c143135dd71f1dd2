"""All families by name, and the best guess for a model.

The guess is the last resort. Its caller (`families/choose.py`) asks first for a family that the settings name, then for
the chat template that came with the tokenizer. Only a model without both is guessed here, in this order:

1. its architecture and its name together, for fine-tunes of another family's models (Zephyr is a `mistral`);
2. its architecture, the config's `model_type`;
3. its name, the last part of a path or Hugging Face id;
4. the plain text form.
"""

from __future__ import annotations

import difflib
import re
from types import MappingProxyType

from drivetrain.core.errors import InvalidSetting
from drivetrain.families.alpaca import Alpaca
from drivetrain.families.base import Family
from drivetrain.families.chatml import ChatML
from drivetrain.families.deepseek import DeepSeek, DeepSeekV3
from drivetrain.families.deepseek_vl import DeepSeekVL
from drivetrain.families.deepseek_vl2 import DeepSeekVL2
from drivetrain.families.falcon import Falcon, FalconChat
from drivetrain.families.gemma import Gemma
from drivetrain.families.gorilla import Gorilla
from drivetrain.families.guanaco import Guanaco, GuanacoAlpaca
from drivetrain.families.llama2 import Llama2
from drivetrain.families.llama3 import Llama3
from drivetrain.families.mistral import Mistral
from drivetrain.families.phi3 import Phi3
from drivetrain.families.plain import Plain
from drivetrain.families.qwen import Qwen
from drivetrain.families.vicuna import Vicuna
from drivetrain.families.zephyr import Zephyr

_PLAIN = Plain()

# The first match wins: fine-tunes and the more specific names stand before the models that they were made from.
_FAMILIES: tuple[Family, ...] = (
    GuanacoAlpaca(),
    Guanaco(),
    Gorilla(),
    Vicuna(),
    DeepSeekVL2(),
    DeepSeekVL(),
    DeepSeekV3(),
    DeepSeek(),
    Zephyr(),
    ChatML(),
    Alpaca(),
    Llama2(),
    Llama3(),
    FalconChat(),
    Falcon(),
    Qwen(),
    Gemma(),
    Phi3(),
    Mistral(),
    _PLAIN,
)

_BY_NAME = MappingProxyType({family.name: family for family in _FAMILIES})


def get(name: str) -> Family:
    """The family of that name. Raises InvalidSetting, with the close ones and the whole list."""
    family = _BY_NAME.get(name)
    if family is not None:
        return family
    close = difflib.get_close_matches(name.lower().replace("_", "-"), _BY_NAME)
    meant = f"; did you mean {' or '.join(close)}?" if close else ""
    raise InvalidSetting(f"no family is named {name!r}{meant} (known: {', '.join(names())})", param="family")


def names() -> tuple[str, ...]:
    return tuple(sorted(_BY_NAME))


def guess(*, architecture: str, name: str) -> tuple[Family, str]:
    """The family that fits best, and why, in words for the logs and `inspect`."""
    named = [(family, match.group()) for family in _FAMILIES if (match := _match(family, name))]
    for family, found in named:
        if architecture in family.architectures_if_named:
            return family, f'model architecture {architecture}, and the name contains "{found}"'
    for family in _FAMILIES:
        if architecture in family.architectures:
            return family, f"model architecture {architecture}"
    for family, found in named:
        return family, f'the name contains "{found}"'
    return _PLAIN, "nothing known fits: plain text form"


def _match(family: Family, name: str) -> re.Match[str] | None:
    # The owner in an id says little about the form: not all of mistralai's models share one.
    last = name.lower().rstrip("/").rpartition("/")[2]
    return next((match for pattern in family.name_patterns if (match := re.search(pattern, last))), None)
