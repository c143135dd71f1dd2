"""A receipt is read as it was made, however its JSON was written, and not at all if anything in it was changed."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.core.errors import InvalidRequest, InvalidSetting
from drivetrain.core.receipt import ChoiceRecord, PromptRecord, Receipt, ReceiptWish, Settled
from drivetrain.core.receipt_kind import Receipts
from drivetrain.core.sealing import FORM, Signature, canonical, document, ids_sha256, opened, read, sealed, sha256_of

KEY = b"a key that nobody knows"
RECEIPT = Receipt(
    form=FORM,
    request_id="chatcmpl-1",
    created=1_700_000_000,
    model="größe",
    weights="sha256:ab",
    engine="native",
    device="cpu",
    dtype="float32",
    settings={"quantize": "int8"},
    versions={"drivetrain": "0.1.0"},
    family="template",
    template=None,
    prompt=PromptRecord(sha256=ids_sha256([1, 2, 3]), tokens=3, ids=(1, 2, 3)),
    parameters={
        "temperature": Settled(1.0, "neutral"),
        "top_p": Settled(0.95, "request"),
        "seed": Settled(7, "chosen"),
    },
    constraint=None,
    tools=None,
    choices=(ChoiceRecord(0, (5, 6), "stop"), ChoiceRecord(1, (), "length")),
)


def test_it_comes_back_as_it_was() -> None:
    made = sealed(RECEIPT, None)
    assert opened(read(json.dumps(document(made)))) == (made, Signature.NONE)
    assert (made.seed, made.is_replayable) == (7, True)
    assert replace(made, parameters={}).seed is None


def test_the_digest_outlives_other_ways_to_write_json() -> None:
    made = document(sealed(RECEIPT, KEY))
    for text in (
        json.dumps(made, indent=4, sort_keys=True),
        json.dumps(made, ensure_ascii=False, separators=(",", ":")).replace('"value":1.0', '"value":1'),
        json.dumps(dict(reversed(made.items()))).replace("0.95", "9.5e-1"),
    ):
        assert opened(read(text), KEY)[1] is Signature.VALID


def test_every_changed_byte_is_refused() -> None:
    """Of all bytes some are white space, which means nothing, so there is none here."""
    text = json.dumps(document(sealed(RECEIPT, None)), separators=(",", ":"), ensure_ascii=False).encode()
    chance = random.Random(5)
    for place in range(len(text)):
        other = chance.choice([byte for byte in range(33, 127) if byte != text[place]])
        changed = text[:place] + bytes([other]) + text[place + 1 :]
        with pytest.raises((InvalidSetting, UnicodeDecodeError)):
            opened(read(changed.decode()))


@pytest.mark.parametrize(
    ("key", "signed_with", "words"),
    [(KEY, None, "it is not signed, and a key is set"), (KEY, b"another key", "its signature is not by this key")],
)
def test_with_a_key_only_its_own_signature_will_do(key: bytes, signed_with: bytes | None, words: str) -> None:
    with pytest.raises(InvalidSetting, match=words):
        opened(document(sealed(RECEIPT, signed_with)), key)


def test_a_signature_without_a_key_is_not_taken_for_checked() -> None:
    assert opened(document(sealed(RECEIPT, KEY)))[1] is Signature.UNCHECKED


@pytest.mark.parametrize(
    "text",
    ["", "[]", "1", "{", '{"form":1,"form":1}', '{"a":NaN}', "[" * 100_000, '{"form":2}', '{"form":1}', "\ud800"],
)
def test_what_is_no_receipt_is_refused_in_words(text: str) -> None:
    with pytest.raises(InvalidSetting, match="the receipt is not valid: ") as caught:
        opened(read(text))
    assert caught.value.param == "receipt"
    assert len(caught.value.message) < 300


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("choices", []), ("choices", [{"index": 1, "token_ids": [], "finish_reason": "stop"}]),
        ("choices", [{"index": 0, "token_ids": [-1], "finish_reason": "stop"}]),
        ("choices", [{"index": 0, "token_ids": ["1"], "finish_reason": "stop"}]),
        ("choices", [{"index": 0, "token_ids": [True], "finish_reason": "stop"}]), ("choices", {"0": 1}),
        ("prompt", {"sha256": "ab", "tokens": 1, "ids": [1]}), ("prompt", []), ("prompt", None), ("parameters", [1]),
        ("parameters", {"n": 1}), ("parameters", {"n": {"value": 1}}), ("model", 5), ("engine", None),
    ],
)  # fmt: skip
def test_what_was_sealed_with_something_else_in_it_is_refused(field: str, value: Any) -> None:
    """A digest is no secret: anybody can write one."""
    forged = {**document(RECEIPT), field: value}
    forged["digest"] = "sha256:" + sha256_of(without_seal(forged))
    with pytest.raises(InvalidSetting, match="a field is missing"):
        opened(forged)


def without_seal(found: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name not in ("digest", "signature")}


JSON_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(JSON_VALUES)
def test_the_canonical_form_is_that_of_what_is_read_back(value: Any) -> None:
    assert canonical(json.loads(canonical(value).decode("utf-8", "surrogatepass"))) == canonical(value)


def test_how_a_request_asks() -> None:
    kind = Receipts()
    asked = [kind.judge("receipt", value) for value in (True, False, "full", ReceiptWish(full=True))]
    assert asked == [ReceiptWish(), None, ReceiptWish(full=True), ReceiptWish(full=True)]
    others: tuple[Any, ...] = ("", "yes", 1, 0, None, [], {}, "FULL", 1.0)
    for value in others:
        with pytest.raises(InvalidRequest, match="receipt must be true, false or full"):
            kind.judge("receipt", value)
