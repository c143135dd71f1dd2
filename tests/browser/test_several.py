"""The page on a server of several models: choosing one, also one that its first message loads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page

from browser.driving import answered, ask, setting, until
from drivetrain.scale.fleet.policy import FleetLimits
from server.fleet_serving import ServedFleet, fake_offer, serving_fleet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def served() -> Iterator[ServedFleet]:
    offers = [fake_offer("first", aliases=("gpt",)), fake_offer("second")]
    with serving_fleet(*offers, limits=FleetLimits(max_loaded=1)) as served:
        yield served


def visit(page: Page, served: ServedFleet) -> None:
    page.goto(f"http://127.0.0.1:{served.port}/")
    until(page, "!document.querySelector('#message').disabled && document.querySelector('#model select')")


def test_choosing_a_model_that_is_not_loaded(served: ServedFleet, page: Page) -> None:
    visit(page, served)
    chooser = page.get_by_role("combobox", name="Model")
    assert chooser.locator("option").all_inner_texts() == ["first", "second · not loaded"]
    assert "first is ready" in page.locator(".welcome").inner_text()
    setting(page, "Temperature").fill("0")

    chooser.select_option("second")
    until(page, "document.querySelector('.welcome').innerText.includes('second will be loaded by your first message')")
    assert served.states()["second"] == "unloaded", "nobody loads a model for a look at it"
    assert setting(page, "Temperature").count() == 0

    assert ask(page, "Hello")["model"] == "second"
    answered(page)
    setting(page, "Temperature").wait_for()
    assert served.states() == {"first": "unloaded", "gpt": "unloaded", "second": "ready"}
    chooser.focus()
    until(page, lambda: chooser.locator("option").all_inner_texts() == ["first · not loaded", "second"])


def test_the_choice_is_remembered(served: ServedFleet, page: Page) -> None:
    visit(page, served)
    page.get_by_role("combobox", name="Model").select_option("second")
    until(page, "document.title.startsWith('second')")
    page.reload()
    until(page, "document.title.startsWith('second')")
    assert page.get_by_role("combobox", name="Model").input_value() == "second"
