"""Reasoning and calls of tools on the page: told apart from the answer, as text, and not sent back."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from browser.driving import answered, ask, until, visit
from browser.stub import Stub
from browser.test_page import check

HOSTILE = "First <b>bold</b> <img src=x onerror=alert(1)>\nthen *two* & more. "


def test_reasoning_is_a_fold_that_closes_when_the_answer_begins(stub: Stub, page: Page) -> None:
    stub.reasoning = HOSTILE
    visit(page, stub.url)
    ask(page, "say: **Yes.**")
    fold = page.locator("details.reasoning")
    until(page, f"document.querySelector('.reasoning-text')?.textContent === {HOSTILE!r}")
    assert fold.get_attribute("open") is not None
    assert fold.locator("summary").inner_text() == "Reasoning…"
    stub.content_may_come.set()
    assert answered(page) == "Yes."
    assert fold.get_attribute("open") is None
    assert fold.locator("summary").inner_text() == "Reasoning"
    assert page.locator(".reasoning-text *").count() == 0

    # The keyboard opens it, it is heard as a control, and what is in it is whole.
    fold.locator("summary").focus()
    page.keyboard.press("Enter")
    assert fold.get_attribute("open") is not None
    expect(page.locator(".reasoning-text")).to_have_text(HOSTILE)
    check(page, "answer")

    # The answer goes back without it; a reload finds it again, closed.
    assert ask(page, "say: again")["messages"][1] == {"role": "assistant", "content": "**Yes.**"}
    answered(page)
    page.reload()
    until(page, "document.querySelectorAll('details.reasoning').length === 2")
    assert page.locator("details.reasoning[open]").count() == 0
    assert page.locator(".reasoning-text").first.text_content() == HOSTILE


def test_who_used_the_fold_keeps_it_as_it_is(stub: Stub, page: Page) -> None:
    stub.reasoning = "one two three"
    visit(page, stub.url)
    ask(page, "say: Yes.")
    summary = page.locator("details.reasoning summary")
    summary.click()
    summary.click()
    stub.content_may_come.set()
    assert answered(page) == "Yes."
    assert page.locator("details.reasoning[open]").count() == 1


def test_calls_are_shown_as_code(stub: Stub, page: Page) -> None:
    stub.calls = [
        {"index": 0, "id": "a", "type": "function", "function": {"name": "get_weather", "arguments": ""}},
        {"index": 0, "function": {"arguments": '{"city": '}},
        {"index": 0, "function": {"arguments": '"<i>Paris</i>"}'}},
        {"index": 1, "id": "b", "type": "function", "function": {"name": "clock", "arguments": "{}"}},
    ]
    visit(page, stub.url)
    ask(page, "say: Let me see.")
    assert answered(page) == "Let me see."
    assert page.locator(".call figcaption span:first-child").all_text_contents() == [
        "Call of get_weather",
        "Call of clock",
    ]
    assert page.locator(".call code").all_text_contents() == ['{"city": "<i>Paris</i>"}', "{}"]
    assert page.locator(".call i").count() == 0
    until(page, "document.querySelector('#announcer').textContent.endsWith('Call of get_weather. Call of clock.')")
    check(page, "answer")
    page.locator(".call .tool").first.click()
    until(page, lambda: page.evaluate("navigator.clipboard.readText()") == '{"city": "<i>Paris</i>"}')
    assert "tool_calls" not in str(ask(page, "say: more")["messages"])
    answered(page)
