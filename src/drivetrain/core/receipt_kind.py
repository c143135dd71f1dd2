"""How a request asks for a receipt."""

from __future__ import annotations

from typing import Any

from drivetrain.core.kinds import Kind, Schema
from drivetrain.core.receipt import ReceiptWish

FULL = "full"


class Receipts(Kind):
    """False means None."""

    takes = f"true, false or {FULL}"

    def judge(self, name: str, value: Any) -> ReceiptWish | None:
        if isinstance(value, ReceiptWish):
            return value
        if isinstance(value, bool):
            return ReceiptWish() if value else None
        if value == FULL:
            return ReceiptWish(full=True)
        raise self.refuse(name, value)

    def schema(self) -> Schema:
        return {"anyOf": [{"type": "boolean"}, {"const": FULL}]}
