"""The page on a server of several models: choosing one, also one that its first message loads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Page, Request

from browser.driving import answered, ask, painted, setting, until
from browser.test_page import check
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


@pytest.fixture
def both() -> Iterator[ServedFleet]:
    with serving_fleet(fake_offer("first"), fake_offer("second"), limits=FleetLimits(max_loaded=2)) as served:
        yield served


def whole(page: Page, count: int) -> None:
    until(page, f"document.querySelectorAll('.answer:not(.running) .figures').length === {count}")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_two_models_answer_side_by_side(
    both: ServedFleet, page: Page, scheme: Literal["light", "dark"], shots: Path
) -> None:
    asked: list[str] = []

    def note(request: Request) -> None:
        if request.url.endswith("/chat/completions"):
            asked.append(json.loads(request.post_data or "{}")["model"])

    page.on("request", note)
    page.emulate_media(color_scheme=scheme)
    visit(page, both)
    toggle = page.get_by_role("button", name="Two models side by side")
    toggle.click()
    until(page, "document.activeElement.ariaPressed === 'true'")
    assert page.get_by_role("combobox", name="Second model").input_value() == "second"
    ask(page, "Hello there")
    whole(page, 2)
    assert sorted(asked) == ["first", "second"]
    assert page.locator(".error-note").count() == 0
    assert page.locator(".side-head strong").all_inner_texts() == ["first", "second"]
    assert page.locator(".side").nth(0).get_by_text("Goes on from here").is_visible()
    left, right = (page.locator(".side").nth(i).bounding_box() for i in range(2))
    assert left
    assert right
    assert abs(left["y"] - right["y"]) < 1
    assert right["x"] >= left["x"] + left["width"]
    painted(page)
    page.screenshot(path=shots / f"pair-1280-{scheme}.png")
    check(page, "side by side")

    # The conversation goes on from the one that is chosen; a reload finds both.
    page.get_by_role("button", name="Go on with this one").focus()
    page.keyboard.press("Enter")
    assert page.locator(".side").nth(1).get_by_text("Goes on from here").is_visible()
    assert page.evaluate("document.activeElement.innerText") == "Go on with this one"
    second = page.locator(".side").nth(1).locator(".prose").inner_text()
    toggle.click()
    until(page, "document.activeElement.ariaPressed === 'false'")
    assert page.get_by_role("combobox", name="Second model").count() == 0
    assert ask(page, "And then?")["messages"][1] == {"role": "assistant", "content": second}
    whole(page, 3)
    page.reload()
    until(page, "document.querySelectorAll('.side').length === 2 && document.querySelectorAll('.answer').length === 3")

    # On a phone they stand one above the other.
    page.set_viewport_size({"width": 390, "height": 780})
    left, right = (page.locator(".side").nth(i).bounding_box() for i in range(2))
    assert left
    assert right
    assert right["y"] >= left["y"] + left["height"]
    painted(page)
    page.screenshot(path=shots / f"pair-390-{scheme}.png")
    check(page, "one above the other")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_stop_stops_both(both: ServedFleet, page: Page) -> None:
    visit(page, both)
    page.get_by_role("button", name="Two models side by side").click()
    page.get_by_role("combobox", name="Second model").wait_for()
    page.route("**/v1/chat/completions", lambda route: None)  # Neither ever answers.
    ask(page, "Hello there")
    page.get_by_role("button", name="Stop").click()
    until(page, "document.querySelectorAll('.quiet-note').length === 2")
    assert page.get_by_role("button", name="Send").count() == 1
    page.unroute("**/v1/chat/completions")
    page.get_by_role("button", name="Two models side by side").click()
    until(page, "document.querySelectorAll('#model select').length === 1")
    page.get_by_role("button", name="Regenerate").click()
    assert answered(page)
    assert page.locator(".side").count() == 0
