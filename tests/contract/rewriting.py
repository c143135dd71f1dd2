"""For environments that run cases of this folder by files of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

PREFIX = "test_contract_"


def rewrite_asserts(folder: Path) -> None:
    """Of the cases that the folder's `test_contract_*.py` import; to be called before they are imported."""
    pytest.register_assert_rewrite(
        *(f"contract.test_{path.stem.removeprefix(PREFIX)}" for path in sorted(folder.glob(f"{PREFIX}*.py")))
    )
