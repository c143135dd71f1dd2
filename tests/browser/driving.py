"""Driving the page: what a user does, and waiting for what it leads to. Nothing here waits for a length of time."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Locator, Page

TIMEOUT_S = 60.0
"""Nothing takes this long; a machine that does other things too may be twenty times slower than it is alone."""


def until(page: Page, condition: str | Callable[[], Any], seconds: float = TIMEOUT_S) -> None:
    """Wait for a condition: one of the page, or one of ours, while the page and its events go on.

    Playwright's own way calls eval, which the page's policy forbids.
    """
    end = time.monotonic() + seconds
    while not (page.evaluate(condition) if isinstance(condition, str) else condition()):
        assert time.monotonic() < end, f"never came true: {condition}"
        page.wait_for_timeout(20)


def painted(page: Page) -> None:
    """Wait until what was asked for is drawn, the scroll to the end of an answer too."""
    page.evaluate(
        """async () => {
            for (let i = 0; i < 4; i++) await new Promise((resolve) => requestAnimationFrame(resolve));
            await Promise.all([...document.images].map((image) => image.decode().catch(() => {})));
        }"""
    )


def visit(page: Page, address: str) -> None:
    """Open the page and wait for the model."""
    page.goto(f"{address}/")
    loaded(page)


def loaded(page: Page) -> None:
    until(page, "!document.querySelector('#message').disabled && document.querySelector('.model-name')")


def show(page: Page, name: str) -> None:
    """Bring the list of conversations or the inspector into view, which are drawers on a phone."""
    opener = page.locator("#sidebar-open" if name == "sidebar" else "#inspector-toggle")
    if opener.is_visible() and opener.get_attribute("aria-expanded") == "false":
        opener.click()
    page.locator(f"#{name}").wait_for(state="visible")


def hide(page: Page) -> None:
    """Close the drawer that covers the page, if one does."""
    if page.locator("#scrim").is_visible():
        page.keyboard.press("Escape")
    page.locator("#scrim").wait_for(state="hidden")


def unfold(page: Page) -> None:
    """Open every group of the settings."""
    for fold in page.locator("#panel-settings details").all():
        if fold.get_attribute("open") is None:
            fold.locator("summary").click()


def setting(page: Page, name: str) -> Locator:
    """The field of a setting, its group open."""
    unfold(page)
    return page.get_by_role("textbox", name=name, exact=True)


def ask(page: Page, text: str) -> dict[str, Any]:
    """Send with Enter; the body of the request that left."""
    page.locator("#message").fill(text)
    with page.expect_request("**/v1/chat/completions") as sent:
        page.keyboard.press("Enter")
    body = json.loads(sent.value.post_data or "{}")
    assert isinstance(body, dict)
    return body


def answered(page: Page, seconds: float = TIMEOUT_S) -> str:
    """Wait for the last answer to be whole; its text as shown."""
    page.wait_for_selector(".answer:last-child:not(.running) .tools .tool", timeout=1000 * seconds)
    return page.locator(".answer").last.locator(".prose").inner_text()
