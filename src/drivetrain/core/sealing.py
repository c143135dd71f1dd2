"""What keeps a receipt as it was made: one canonical form, a digest over it, and a signature by a key.

The form is JSON with sorted keys and no white space, and a whole number is an integer however it was written: so a
receipt may pass through programs that write JSON in their own way, and still have its digest.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any, NoReturn

from drivetrain.core.errors import InvalidSetting
from drivetrain.core.json_values import plain, shaped
from drivetrain.core.kinds import shown
from drivetrain.core.receipt import Receipt

FORM = 1
MAX_CHARS = 64 * 2**20
"""Of the text of one receipt."""

_DIGEST, _SIGNATURE = "sha256:", "hmac-sha256:"
_SEAL = frozenset({"digest", "signature"})


class Signature(StrEnum):
    """What is known of who made a receipt."""

    NONE = "unsigned"
    VALID = "valid"
    UNCHECKED = "no key to check it with"


def canonical(value: Any) -> bytes:
    text = json.dumps(_normal(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "surrogatepass")


def sha256_of(value: Any) -> str:
    """Of a value of JSON, in its canonical form."""
    return hashlib.sha256(canonical(value)).hexdigest()


def ids_sha256(ids: Sequence[int]) -> str:
    """Of token ids, in decimal with commas between them."""
    return hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()


def document(receipt: Receipt) -> dict[str, Any]:
    """The receipt as JSON has it."""
    made: dict[str, Any] = plain(receipt)
    return made


def sealed(receipt: Receipt, key: bytes | None) -> Receipt:
    """With its digest and, if there is a key, its signature."""
    content = _content(document(receipt))
    return replace(receipt, digest=_digest(content), signature=None if key is None else _signature(content, key))


def read(text: str) -> dict[str, Any]:
    """The document in a text. Raises `InvalidSetting`."""
    fault = ""
    try:
        if len(text) > MAX_CHARS:
            fault = f"it has {len(text):,} characters"
        elif isinstance(found := json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant), dict):
            return found
        else:
            fault = f"it is {shown(found)}"
    except json.JSONDecodeError as exc:
        fault = f"it is not JSON: {exc.msg} at line {exc.lineno}, column {exc.colno}"
    except (ValueError, RecursionError) as exc:
        fault = str(exc) if isinstance(exc, ValueError) else "it is nested too deeply"
    raise _invalid(fault)


def opened(found: Mapping[str, Any], key: bytes | None = None) -> tuple[Receipt, Signature]:
    """The receipt in a document, if it is as it was made. Raises `InvalidSetting`.

    With a key, a receipt without a signature is refused too: who forges one would leave it out.
    """
    if found.get("form") != FORM:
        raise _invalid(f"its form is {shown(found.get('form'))}; this version reads {FORM}")
    try:
        content = canonical(_content(found))
    except (ValueError, RecursionError, TypeError):
        raise _invalid("it holds what a receipt cannot hold") from None
    if not _same(found.get("digest"), _DIGEST + hashlib.sha256(content).hexdigest()):
        raise _invalid("its digest is not that of its contents: it was changed, or is cut off")
    signature = found.get("signature")
    known = Signature.NONE if signature is None else Signature.UNCHECKED
    if key is not None:
        if signature is None:
            raise _invalid("it is not signed, and a key is set")
        if not _same(signature, _SIGNATURE + hmac.new(key, content, hashlib.sha256).hexdigest()):
            raise _invalid("its signature is not by this key")
        known = Signature.VALID
    return _shaped(found), known


def _shaped(found: Mapping[str, Any]) -> Receipt:
    """Anybody can write a digest under anything."""
    try:
        receipt: Receipt = shaped(Receipt, found)
        _check(receipt)
    except Exception:  # noqa: BLE001 - whatever it holds instead of what a receipt holds
        raise _invalid("a field is missing, or is not what it should be") from None
    return receipt


def _check(receipt: Receipt) -> None:
    ids = [receipt.prompt.ids or (), *(choice.token_ids for choice in receipt.choices)]
    numbers = [receipt.prompt.tokens, *(choice.index for choice in receipt.choices), *(i for each in ids for i in each)]
    texts = [receipt.model, receipt.engine, receipt.request_id, receipt.prompt.sha256, *receipt.parameters]
    texts += [choice.finish_reason for choice in receipt.choices]
    texts += [receipt.device, receipt.dtype, receipt.family, receipt.digest, receipt.weights or ""]
    if not all(isinstance(each, Mapping) for each in (receipt.settings, receipt.versions, receipt.parameters)):
        raise TypeError
    if any(type(number) is not int or number < 0 for number in numbers) or not all(isinstance(t, str) for t in texts):
        raise TypeError
    if [choice.index for choice in receipt.choices] != list(range(len(receipt.choices))) or not receipt.choices:
        raise ValueError
    if receipt.prompt.ids is not None and receipt.prompt.sha256 != ids_sha256(receipt.prompt.ids):
        raise ValueError
    if not all(isinstance(settled.origin, str) for settled in receipt.parameters.values()):
        raise TypeError


def _content(found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name not in _SEAL}


def _digest(content: Any) -> str:
    return _DIGEST + sha256_of(content)


def _signature(content: Any, key: bytes) -> str:
    return _SIGNATURE + hmac.new(key, canonical(content), hashlib.sha256).hexdigest()


def _same(given: Any, right: str) -> bool:
    return isinstance(given, str) and given.isascii() and hmac.compare_digest(given, right)


def _normal(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {name: _normal(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)) and not set(map(type, value)) <= {int, str}:
        return [_normal(item) for item in value]
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        raise ValueError("a key is there twice")
    return unique


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"it contains {name}, which is not valid JSON")


def _invalid(fault: str) -> InvalidSetting:
    return InvalidSetting(f"the receipt is not valid: {fault}", param="receipt")
