"""Branches: an edit and another answer are new versions beside the old ones, and nothing is overwritten."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import Page

from browser.conftest import Watch
from browser.driving import answered, ask, loaded, setting, until, visit
from browser.stub import Stub
from browser.test_page import check

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def shown(page: Page) -> list[str]:
    """The texts on screen, in turn."""
    return page.locator(".bubble, .prose").all_inner_texts()


def test_edit_and_regenerate(stub: Stub, page: Page) -> None:
    visit(page, stub.url)
    ask(page, "say: one")
    answered(page)
    ask(page, "say: two")
    assert answered(page) == "two"
    page.get_by_role("button", name="Regenerate").click()
    until(page, "document.querySelectorAll('.answer').length === 2")
    answered(page)
    assert [m["content"] for m in stub.bodies[-1]["messages"]] == ["say: one", "one", "say: two"]
    edit(page, "say: three")
    until(page, "document.querySelectorAll('.answer').length === 1")
    assert answered(page) == "three"
    assert [m["content"] for m in stub.bodies[-1]["messages"]] == ["say: three"]


def edit(page: Page, text: str, which: int = 0) -> None:
    page.locator(".message.user").nth(which).hover()
    page.get_by_role("button", name="Edit").nth(which).click()
    page.get_by_role("textbox", name="Edit your message").fill(text)
    page.keyboard.press("Enter")


def test_an_edit_keeps_what_was_there(stub: Stub, page: Page) -> None:
    visit(page, stub.url)
    for text in ("say: one", "say: two"):
        ask(page, text)
        answered(page)
    assert page.locator(".versions").count() == 0
    edit(page, "say: three")
    until(page, "document.querySelectorAll('.answer').length === 1")
    assert answered(page) == "three"
    assert page.locator(".versions").inner_text() == "2/2"

    # Back by keyboard: the whole branch is there, and the focus stays where it was.
    page.get_by_role("button", name="Previous version").focus()
    page.keyboard.press("Enter")
    assert shown(page) == ["say: one", "one", "say: two", "two"]
    assert page.evaluate("document.activeElement.ariaLabel") == "Previous version"
    assert page.evaluate("document.activeElement.ariaDisabled") == "true"
    until(page, "document.querySelector('#announcer').textContent === 'Version 1 of 2'")
    check(page, "versions")
    page.keyboard.press("Enter")
    assert shown(page) == ["say: one", "one", "say: two", "two"]

    # What is asked next belongs to the branch on screen; a reload finds that branch.
    assert [m["content"] for m in ask(page, "say: four")["messages"]] == [
        "say: one",
        "one",
        "say: two",
        "two",
        "say: four",
    ]
    answered(page)
    page.reload()
    loaded(page)
    assert shown(page) == ["say: one", "one", "say: two", "two", "say: four", "four"]
    page.get_by_role("button", name="Next version").click()
    assert shown(page) == ["say: three", "three"]
    page.get_by_role("button", name="Previous version").click()
    assert len(shown(page)) == 6


def test_another_answer_stands_beside_the_first(stub: Stub, page: Page) -> None:
    visit(page, stub.url)
    ask(page, "Explain it")
    first = answered(page)
    page.get_by_role("button", name="Regenerate").click()
    until(page, "document.querySelector('.answer.running')")
    page.get_by_role("button", name="Stop").click()
    answered(page)
    assert page.locator(".answer .versions").inner_text() == "2/2"
    second = page.locator(".prose").inner_text()
    assert second != first
    page.get_by_role("button", name="Previous version").click()
    assert page.locator(".prose").inner_text() == first
    assert len(ask(page, "say: on")["messages"]) == 3
    answered(page)
    page.get_by_role("button", name="Next version").click()
    assert page.locator(".prose").all_inner_texts() == [second]


def test_a_failed_answer_is_replaced(stub: Stub, page: Page, watch: Watch) -> None:
    watch.allowed = ("429",)
    visit(page, stub.url)
    stub.refusals = 1
    ask(page, "say: again")
    page.wait_for_selector(".error-note")
    page.get_by_role("button", name="Try again").click()
    assert answered(page) == "again"
    assert page.locator(".versions").count() == 0


def test_an_answer_names_its_model(stub: Stub, page: Page) -> None:
    visit(page, stub.url)
    ask(page, "say: hello")
    answered(page)
    assert page.locator(".figures").inner_text().startswith("stub-1b · 1 token")
    assert page.get_by_role("article", name="Answer of stub-1b").count() == 1


def test_what_older_versions_kept_is_found(stub: Stub, page: Page) -> None:
    """A list of messages without numbers, as it was before there were branches."""
    visit(page, stub.url)
    messages = [{"role": role, "content": text} for role, text in (("user", "a"), ("assistant", "b"), ("user", "c"))]
    old = {"id": "old", "title": "From before", "system": "", "created": 1, "updated": 1, "messages": messages}
    page.evaluate("(text) => localStorage.setItem('drivetrain:conversation:old', text)", json.dumps(old))
    page.evaluate("localStorage.setItem('drivetrain:current', '\"old\"')")
    page.reload()
    loaded(page)
    assert shown(page) == ["a", "b", "c"]
    edit(page, "say: d", which=1)
    answered(page)
    assert shown(page) == ["a", "b", "say: d", "d"]
    page.get_by_role("button", name="Previous version").click()
    assert shown(page) == ["a", "b", "c"]


def test_a_draft_is_kept_for_each_conversation(stub: Stub, page: Page) -> None:
    visit(page, stub.url)
    box = page.locator("#message")
    box.fill("not yet sent")
    page.reload()
    loaded(page)
    assert box.input_value() == "not yet sent"
    ask(page, "say: one")
    answered(page)
    box.fill("a second thought\n")
    page.get_by_role("button", name="New chat").click()
    assert box.input_value() == ""
    box.fill("something else")
    page.locator(".conversations .open").first.click()
    assert box.input_value() == "a second thought\n"
    page.reload()
    loaded(page)
    assert box.input_value() == "a second thought\n"
    page.get_by_role("button", name="New chat").click()
    assert box.input_value() == "something else"
    ask(page, "say: two")
    answered(page)
    page.reload()
    loaded(page)
    assert box.input_value() == ""
    page.locator(".conversations .open").nth(1).click()
    page.get_by_role("button", name="Delete “say: one”").click()
    assert "second thought" not in page.evaluate("JSON.stringify(localStorage)")


def test_a_notice_stands_above_the_message_box(stub: Stub, page: Page) -> None:
    for size in ({"width": 1280, "height": 860}, {"width": 390, "height": 780}):
        page.set_viewport_size(size)  # type: ignore[arg-type]
        visit(page, stub.url)
        page.locator("#message").fill("one\n" * 9)
        page.evaluate("import('/elements.js').then((m) => m.toast('A notice', { label: 'Undo', run() {} }))")
        notice, composer = page.locator("#toast").bounding_box(), page.locator("#composer").bounding_box()
        assert notice
        assert composer
        assert notice["y"] + notice["height"] < composer["y"]
        assert abs(notice["x"] + notice["width"] / 2 - composer["x"] - composer["width"] / 2) < 2
        check(page, "notice")


def test_settings_are_folded_until_they_are_opened(stub: Stub, page: Page) -> None:
    visit(page, stub.url)
    assert page.locator("#panel-settings details").count() == 5
    assert page.locator("#panel-settings details[open]").count() == 0
    page.get_by_text("Randomness", exact=True).click()
    page.get_by_role("textbox", name="Temperature", exact=True).fill("0.5")
    page.reload()
    loaded(page)
    assert page.locator("#panel-settings details[open] > summary").all_inner_texts() == ["Randomness"]
    assert setting(page, "Temperature").input_value() == "0.5"


def test_a_cut_answer_says_where(stub: Stub, page: Page) -> None:
    stub.finish = "length"
    visit(page, stub.url)
    ask(page, "say: one two three")
    answered(page)
    assert page.locator(".quiet-note").inner_text() == "Cut off at 3 tokens."
