"""Each page from its top to its end, as a reader would paste it: `make test-docs`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import tiny
from docs.fences import ROOT, blocks, pages
from docs.session import Session
from drivetrain.store.layout import default_root
from tiny import pictures

CHECKPOINTS = {"my-model": "llama", "my-encoder": "bert", "my-vlm": "llava", "vicuna-7b-v1.5": "llama"}
FILES = {
    "door.json": '{"type": "object", "properties": {"colour": {"enum": ["red", "green"]}}, "required": ["colour"]}',
    "question.txt": "Is water wet?",
    "tools.json": '[{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]',
}
"""What a reader has already, by the names that the pages give it."""


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    made = Session(tmp_path, Path(os.environ["DRIVETRAIN_DOCS"]), default_root())
    for name, kind in CHECKPOINTS.items():
        (made.folder / name).symlink_to(tiny.checkpoint(kind, ROOT / ".cache" / "tiny"))
    for name, text in FILES.items():
        (made.folder / name).write_text(text)
    (made.folder / "cat.png").write_bytes(pictures.png(pictures.circle()))
    (made.folder / "code.gguf").symlink_to(next((default_root() / "models" / "smollm2-135m").glob("*.gguf")))
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in pages()])
def test_the_page_runs(session: Session, page: Path) -> None:
    for block in blocks(page):
        if block.excuse is None:
            session.run(block)
