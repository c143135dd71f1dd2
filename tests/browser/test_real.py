"""The page on `drivetrain serve smollm2-135m`: a real model from the first click to the pictures in the README."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page

from browser.conftest import command
from browser.driving import answered, ask, loaded, painted, setting, until, visit

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

LONG = "Tell me a long story about a small engine."
WALKING = "List three benefits of walking every day."
SKY = "Why is the sky blue? Answer in two sentences."
PATIENCE_S = 300
"""Beside other work on two cores, the model says two tokens a second."""

MAX_PICTURE_BYTES = 200_000


@pytest.fixture(scope="module")
def served_model(smollm2: str) -> Iterator[str]:
    with command(smollm2) as address:
        yield address


def running(page: Page, address: str) -> tuple[int, int]:
    """Requests in slots: as `/status` says, and as `/metrics` does."""
    status = page.request.get(f"{address}/status").json()
    assert status["waiting"] == 0
    found = re.search(
        r"^drivetrain_requests_running\{.*\} (\d+)\.0$", page.request.get(f"{address}/metrics").text(), re.MULTILINE
    )
    assert found
    return int(status["running"]), int(found[1])


def test_a_conversation_with_a_real_model(served_model: str, page: Page, shots: Path) -> None:
    page.emulate_media(color_scheme="light")
    visit(page, served_model)

    # It sends, and the answer grows on the page while the model is still at it.
    setting(page, "Shortest answer").fill("1000")  # A small model may soon have said all.
    body = ask(page, LONG)
    assert body["min_tokens"] == 1000
    assert "temperature" not in body
    until(page, "document.querySelector('.prose').textContent.length > 40", PATIENCE_S)
    first = page.locator(".prose").inner_text()
    until(page, f"document.querySelector('.prose').textContent.length > {len(first) + 40}", PATIENCE_S)
    assert page.locator(".prose").inner_text().startswith(first[:20])
    assert page.locator(".answer").get_attribute("aria-busy") == "true"
    assert running(page, served_model) == (1, 1)

    # Stopped half-way, it keeps what it said, and the slot is free.
    page.get_by_role("button", name="Stop").click()
    until(page, lambda: running(page, served_model) == (0, 0))
    assert page.request.get(f"{served_model}/ready").status == 200
    ended = page.request.get(f"{served_model}/status").json()["models"]["smollm2-135m"]["endings"]
    assert ended == {"cancelled": 1}
    kept = page.locator(".prose").inner_text()
    assert len(kept) > len(first)
    assert "Stopped" in page.locator(".answer").inner_text()
    page.get_by_role("button", name="Reset Shortest answer").click()

    # A new temperature goes with the next message.
    page.get_by_role("button", name="New chat").click()
    setting(page, "Longest answer").fill("120")
    setting(page, "Temperature").fill("0")
    body = ask(page, WALKING)
    assert body["temperature"] == 0
    assert "min_tokens" not in body
    walking = answered(page, PATIENCE_S)
    assert page.locator(".prose li").count() >= 3

    # The token view has a probability for each token, and what else might have come.
    look_at_token(page, 2)
    spelled = "".join(page.locator(".token").all_text_contents()).lower()
    assert spelled.count("walk") == walking.lower().count("walk") > 0
    page.get_by_role("button", name="Tokens", exact=True).click()

    # A reload finds all of it again.
    page.reload()
    loaded(page)
    assert page.locator(".bubble").all_inner_texts() == [WALKING]
    assert page.locator(".prose").all_inner_texts() == [walking]
    assert setting(page, "Temperature").input_value() == "0"
    page.get_by_role("button", name=LONG, exact=True).click()
    assert page.locator(".prose").inner_text() == kept
    page.get_by_role("button", name=WALKING, exact=True).click()

    # The live panel sees the next answer being made.
    page.get_by_role("tab", name="Live").click()
    page.wait_for_selector(".state[data-state=ready]")
    until(page, lambda: samples(page, "Tokens per second") >= 5)  # A line before, and one after.
    assert [message["role"] for message in ask(page, SKY)["messages"]] == ["user", "assistant", "user"]
    answered(page, PATIENCE_S)
    before = samples(page, "Tokens per second")
    until(page, lambda: samples(page, "Tokens per second") >= min(before + 5, 90))
    assert " to 0.0 in the last " not in chart(page, "Tokens per second")
    assert chart(page, "Running requests").startswith("Running requests: 0, ")
    assert running(page, served_model) == (0, 0)

    look_at_token(page, 4)
    painted(page)
    picture(page, shots / "page.png")
    page.get_by_role("button", name="Tokens", exact=True).last.click()
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 390, "height": 780})
    painted(page)
    picture(page, shots / "page-phone.png")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def chart(page: Page, title: str) -> str:
    """What a chart of the live panel says of itself: its latest value, the range, and of how many seconds."""
    return page.get_by_role("img", name=title).get_attribute("aria-label") or ""


def samples(page: Page, title: str) -> int:
    found = re.search(r" in the last (\d+) seconds", chart(page, title))
    return int(found[1]) if found else 0


def look_at_token(page: Page, number: int) -> None:
    """Open the token view of the last answer, and there the card of one token."""
    page.get_by_role("button", name="Tokens", exact=True).last.click()
    page.locator(".token").nth(number).focus()
    card = page.locator("#token-card")
    card.wait_for(state="visible")
    assert card.locator("li").count() == 5
    assert "%" in card.inner_text()


def picture(page: Page, path: Path) -> None:
    page.screenshot(path=path)
    assert path.stat().st_size < MAX_PICTURE_BYTES
