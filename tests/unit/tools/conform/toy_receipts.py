"""The toy's receipts, written by hand: none of our own code makes them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def sealed(receipt: dict[str, Any]) -> dict[str, Any]:
    """With a digest of all the rest."""
    rest = {name: value for name, value in receipt.items() if name != "digest"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return {**rest, "digest": f"sha256:{sha256(text)}"}


def receipt_of(
    body: dict[str, Any], answer_id: str, origin: str, prompt: list[int], choices: Sequence[Any]
) -> dict[str, Any]:
    """Of one prompt, and the choices that answer it."""
    ids = ",".join(map(str, prompt))
    record: dict[str, Any] = {"sha256": sha256(ids), "tokens": len(prompt), "truncated": 0}
    if body["receipt"] == "full":
        record["ids"] = prompt
    parameters: dict[str, Any] = {
        name: {"value": body[name], "origin": "request"} for name in ("temperature", "n") if name in body
    }
    parameters["seed"] = {"value": body["seed"], "origin": origin}
    kept = [{"index": i, "token_ids": one.ids, "finish_reason": one.reason} for i, one in enumerate(choices)]
    return sealed(
        {
            "form": 1, "request_id": answer_id, "created": 1_700_000_000, "model": "toy", "weights": None,
            "engine": "toy", "device": "none", "dtype": "none", "settings": {}, "versions": {"toy": "1"},
            "family": "plain", "template": None, "prompt": record, "parameters": parameters, "constraint": None,
            "tools": None, "choices": kept,
        }
    )  # fmt: skip
