"""What an answer's text may be: written from right to left, or JSON that was asked for."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import Page

from browser.driving import answered, ask, loaded, setting, visit
from browser.stub import Stub
from browser.test_page import check

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MIXED = """# שלום

مرحبا بالعالم, hello

- فعل
- [x] תודה

> ציטוט

English again
"""


def test_each_block_has_its_own_direction(stub: Stub, page: Page) -> None:
    visit(page, stub.url)
    ask(page, f"say: {MIXED}")
    answered(page)
    directions = page.eval_on_selector_all(
        ".prose > *", "all => all.map(e => [e.localName, getComputedStyle(e).direction])"
    )
    assert directions == [["h3", "rtl"], ["p", "rtl"], ["ul", "rtl"], ["blockquote", "rtl"], ["p", "ltr"]]
    item = page.locator(".prose li").last.bounding_box()
    box = page.locator(".prose .box").bounding_box()
    assert item
    assert box
    assert box["x"] > item["x"] + item["width"] / 2  # The mark of the task stands at its beginning.
    ask(page, "say: سلام")
    answered(page)
    assert page.locator(".bubble").last.evaluate("(e) => getComputedStyle(e).direction") == "ltr"  # "say" comes first
    page.locator("#message").fill("سلام")
    assert page.locator("#message").evaluate("(e) => getComputedStyle(e).direction") == "rtl"
    check(page, "right to left")


def test_json_that_was_asked_for_is_set_out(stub: Stub, page: Page) -> None:
    visit(page, stub.url)
    setting(page, "JSON schema").fill("{}")
    text = '{"n": 12345678901234567890, "list": [1, {"a": "b, {c}"}], "none": [], "b": "<b>x</b> *y*"}'
    ask(page, f"say: {text}")
    shown = answered(page)
    assert shown == (
        '{\n  "n": 12345678901234567890,\n  "list": [\n    1,\n    {\n      "a": "b, {c}"\n    }\n  ],\n'
        '  "none": [],\n  "b": "<b>x</b> *y*"\n}'
    )
    assert json.loads(shown) == json.loads(text)
    assert page.locator(".prose b, .prose em").count() == 0
    check(page, "json")
    page.reload()
    loaded(page)
    assert page.locator(".prose .json").inner_text() == shown
    ask(page, "say: {half")
    assert answered(page) == "{half"
