"""The reports of the tools in a real browser, opened as files: no error, no request, nothing beyond the edge."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from browser.conftest import Watch
from browser.driving import painted
from recorded_reports import PAGES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

AUDIT = (Path(__file__).parent / "audit.js").read_text()


@pytest.fixture(params=["light", "dark"])
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"color_scheme": request.param, "accept_downloads": True}


@pytest.fixture(params=PAGES)
def report(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / f"{request.param}.html"
    path.write_text(PAGES[request.param](), "utf-8")
    return path


@pytest.fixture
def opened(report: Path, page: Page, watch: Watch) -> Iterator[Page]:
    page.goto(report.as_uri())
    yield page
    assert watch.addresses == [report.as_uri()]


CUT = "(all) => all.filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.ariaLabel)"


@pytest.mark.parametrize("width", [390, 1200])
def test_it_fits_and_can_be_read(opened: Page, width: int, report: Path, shots: Path, options: dict[str, Any]) -> None:
    opened.set_viewport_size({"width": width, "height": 900})
    for folds in ("as-it-is", "open"):
        if folds == "open":
            opened.evaluate("document.querySelectorAll('details').forEach((fold) => (fold.open = true))")
        painted(opened)
        assert opened.evaluate("document.documentElement.scrollWidth") <= width
        found = opened.evaluate(AUDIT)
        for name in ("nameless", "pale", "doubled", "dangling", "small"):
            assert found[name] == [], name
        opened.screenshot(path=shots / f"{report.stem}-{width}-{options['color_scheme']}-{folds}.png")
    if width < 640 and not report.stem.startswith("hostile"):
        cut = opened.locator(".scroll").evaluate_all(CUT)
        assert cut == [], "on a phone, whatever stands at the end of a row is seen too"
    boxes = opened.evaluate(
        """[...document.querySelectorAll(".chart text")].map((text) => text.getBoundingClientRect())
            .map((box) => [box.height, box.left, box.right])"""
    )
    for height, left, right in boxes:  # a name may be longer than any screen is wide
        assert height >= 11
        assert left >= 0
        assert right <= width or report.stem.startswith("hostile")


@pytest.mark.parametrize("report", ["bench"], indirect=True)
@pytest.mark.parametrize("options", ["light"], indirect=True)
def test_the_data_can_be_saved(opened: Page, tmp_path: Path) -> None:
    with opened.expect_download() as started:
        opened.locator("#data").click()
    started.value.save_as(tmp_path / "data.json")
    assert json.loads((tmp_path / "data.json").read_text())["command"].startswith("drivetrain bench")
