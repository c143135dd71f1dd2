"""The receipt of an answer about an image has the hash of its file, and a full one the image itself."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contract.rigs import TransformersRig
from drivetrain.core.errors import InvalidRequest
from drivetrain.core.parameters import MAX_RECEIPT_CHARS
from drivetrain.core.sealing import document, opened
from drivetrain.tools.replay.reading import Entry
from drivetrain.tools.replay.replaying import Terms, replay_all
from drivetrain.tools.replay.verdict import Verdict
from tiny import pictures

PNG = pictures.png(pictures.circle())


@pytest.mark.slow
async def test_an_answer_about_an_image_comes_again(checkpoint: Callable[[str], Path]) -> None:
    async with TransformersRig(checkpoint, "llava").open() as worker:
        asked: dict[str, Any] = {"prompt": "<image> What is this?", "images": [PNG], "max_tokens": 6}
        hashes = (await worker.generate(**asked, receipt=True)).receipt
        made = (await worker.generate(**asked, temperature=1.0, receipt="full")).receipt
        assert hashes is not None
        assert made is not None
        assert hashes.prompt.images == made.prompt.images == (hashlib.sha256(PNG).hexdigest(),)
        assert hashes.request is None
        assert opened(document(made))[0] == made
        terms = Terms(2, 0.001)
        (found,) = await replay_all(worker, [Entry("x", made)], terms, "it", lambda what, share: None)
        assert found.verdict is Verdict.IDENTICAL
        other = {**(made.request or {}), "prompt": "<image> And this?"}
        changed = Entry("x", replace(made, request=other))
        (found,) = await replay_all(worker, [changed], terms, "it", lambda what, share: None)
        assert found.verdict is Verdict.OTHER_PROMPT
        with pytest.raises(InvalidRequest, match="characters of messages and images") as caught:
            await worker.generate(**{**asked, "images": [b"x" * MAX_RECEIPT_CHARS]}, receipt="full")
        assert caught.value.param == "receipt"
