"""A document reads the same however large it is and wherever it is spelled; a large one leaves the loop alone."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.server import encoding
from drivetrain.server.encoding import SLICE, Each, encoded

documents = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.lists(inner).map(tuple),
    max_leaves=40,
)


@given(documents, st.integers(1, 8))
def test_slices_make_the_document(document: Any, size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoding, "SLICE", size)
        assert (
            asyncio.run(encoded(document)) == json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
        )


@pytest.mark.parametrize("number", [0, 1, 5, SLICE, 5 * SLICE])
async def test_each_is_the_list_of_what_it_spells(number: int) -> None:
    document = {"a": Each(range(number), lambda i: {"i": i, "in": Each((i,), str)}), "b": 1}
    whole = {"a": [{"i": i, "in": [str(i)]} for i in range(number)], "b": 1}
    assert json.loads(await encoded(document)) == whole


async def test_a_large_document_is_spelled_on_a_thread_and_made_piece_by_piece() -> None:
    """While it goes on, the loop turns; and never are more entries alive than a slice has."""
    here, alive, most, spelled_here = threading.get_ident(), 0, 0, 0

    class Entry(dict[str, int]):
        def __init__(self, i: int) -> None:
            nonlocal alive, most, spelled_here
            super().__init__(i=i, j=i)
            alive += 1
            most = max(most, alive)
            spelled_here += threading.get_ident() == here

        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    document = {"choices": [{"content": Each(range(50 * SLICE), Entry)} for _ in range(2)]}
    turns = 0
    spelling = asyncio.create_task(encoded(document))
    while not spelling.done():
        turns += 1
        await asyncio.sleep(0)
    assert len(json.loads(await spelling)["choices"][1]["content"]) == 50 * SLICE
    assert spelled_here <= SLICE  # as far as it takes to see that it is large
    assert most <= SLICE
    assert turns > 10


async def test_what_is_not_json_is_refused() -> None:
    for document in ({"a": float("nan")}, [[float("inf")] * 3] * SLICE):
        with pytest.raises(ValueError, match="JSON"):
            await encoded(document)
