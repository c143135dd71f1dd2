"""`drivetrain replay --verify`: whether receipts are as they were made, and whether their weights are here."""

from __future__ import annotations

from collections.abc import Sequence

from drivetrain.cli.terminal import output
from drivetrain.cli.terminal.boundary import FAILED, USAGE_ERROR
from drivetrain.core.errors import DrivetrainError
from drivetrain.core.receipt import Receipt
from drivetrain.store.store import Store
from drivetrain.tools.replay.reading import Entry

SAME, OTHER, ABSENT, UNKNOWN = "the same", "other", "not here", "not known"
SHOWN = 20


def verify(entries: Sequence[Entry], model: str | None) -> int:
    """A line for each kind of receipts, then those that are not valid. Weights are read whole, once."""
    weights: dict[tuple[str, str | None], str] = {}
    rows: dict[tuple[str, ...], int] = {}
    for entry in entries:
        if (receipt := entry.receipt) is not None:
            key = (model or receipt.model, receipt.weights)
            if key not in weights:
                weights[key] = _weights(receipt, model)
            row = (receipt.model, receipt.engine, str(entry.signature), weights[key])
            rows[row] = rows.get(row, 0) + 1
    if rows:
        head = ["model", "engine", "signature", "weights", "receipts"]
        output.line(output.table(head, [[*row, str(count)] for row, count in rows.items()]))
    broken = [entry for entry in entries if entry.receipt is None]
    for entry in broken[:SHOWN]:
        output.line(f"INVALID {entry.where}: {entry.fault}")
    if len(broken) > SHOWN:
        output.line(f"and {len(broken) - SHOWN} more")
    output.line(f"of {len(entries)} receipts {len(entries) - len(broken)} are valid")
    return USAGE_ERROR if broken or ABSENT in weights.values() else FAILED if OTHER in weights.values() else 0


def _weights(receipt: Receipt, model: str | None) -> str:
    if receipt.weights is None:
        return UNKNOWN
    store = Store()
    try:
        found = store.resolve(model or receipt.model)
        return SAME if store.holds(found, receipt.weights) else OTHER
    except DrivetrainError:
        return ABSENT
