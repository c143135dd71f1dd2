"""What the browser keeps: searching it, other names, files of it, presets, text files with a message."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from browser.driving import answered, ask, loaded, setting, until, visit
from browser.stub import Stub
from browser.test_page import check

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def titles(page: Page) -> list[str]:
    return [text.split("\n")[0] for text in page.locator(".conversations .open").all_inner_texts()]


def test_search_finds_titles_texts_and_other_branches(stub: Stub, page: Page) -> None:
    visit(page, stub.url)
    assert page.locator("#search").is_hidden()
    ask(page, "say: the first branch")
    answered(page)
    page.locator(".message.user").hover()
    page.get_by_role("button", name="Edit").click()
    page.get_by_role("textbox", name="Edit your message").fill("say: Zwölf Boxkämpfer")
    page.keyboard.press("Enter")
    answered(page)
    page.get_by_role("button", name="New chat").click()
    ask(page, "say: <b>bold</b>")
    answered(page)
    box = page.get_by_role("searchbox", name="Search conversations")
    for words, expected in (
        ("ZWÖLF", 1),
        ("first branch", 1),
        ("branch first", 1),
        ("<b>", 1),
        ("say", 2),
        ("[", 0),
        ("  ", 2),
    ):
        box.fill(words)
        assert len(titles(page)) == expected, words
    box.fill("nowhere")
    assert page.locator("#search-none").is_visible()
    check(page, "nothing found")

    # What was found is shown, in its branch.
    box.fill("first")
    assert page.locator(".excerpt").inner_text() == "say: the first branch"
    check(page, "found")
    page.locator(".conversations .open").click()
    assert page.locator(".bubble").inner_text() == "say: the first branch"
    box.focus()
    page.keyboard.press("Escape")
    assert box.input_value() == ""
    assert len(titles(page)) == 2


def test_a_conversation_gets_another_name(stub: Stub, page: Page) -> None:
    stub.token_delay_s = 0.02
    visit(page, stub.url)
    ask(page, "Explain it")
    page.get_by_role("button", name="Rename “Explain it”").click()  # While its answer is still coming.
    name = page.get_by_role("textbox", name="New name")
    assert name.input_value() == "Explain it"
    check(page, "renaming")
    name.fill("  Drivetrains <i>  ")
    page.keyboard.press("Enter")
    assert titles(page) == ["Drivetrains <i>"]
    assert page.evaluate("document.activeElement.ariaLabel") == "Rename “Drivetrains <i>”"
    answered(page)
    page.keyboard.press("Enter")
    name.fill("never mind")
    page.keyboard.press("Escape")
    assert titles(page) == ["Drivetrains <i>"]
    page.get_by_role("button", name="Rename").click()
    name.fill(" ")
    page.locator("#message").focus()
    assert titles(page) == ["Drivetrains <i>"]
    page.reload()
    loaded(page)
    assert titles(page) == ["Drivetrains <i>"]

    # An edit of the first message no longer changes it.
    page.locator(".message.user").hover()
    page.get_by_role("button", name="Edit").click()
    page.get_by_role("textbox", name="Edit your message").fill("say: x")
    page.keyboard.press("Enter")
    answered(page)
    assert titles(page) == ["Drivetrains <i>"]


def import_file(page: Page, path: Path) -> str:
    """What the page says of it."""
    page.evaluate("document.querySelector('#toast').hidden = true")
    page.locator("#import-file").set_input_files(path)
    page.locator("#toast").wait_for(state="visible")
    return page.locator("#toast").inner_text()


def test_what_was_exported_comes_back(stub: Stub, page: Page, tmp_path: Path) -> None:
    visit(page, stub.url)
    ask(page, "say: one")
    answered(page)
    page.get_by_role("button", name="Regenerate").click()
    until(page, "document.querySelector('.versions')")
    page.get_by_role("button", name="New chat").click()
    ask(page, "say: two")
    answered(page)
    before = page.evaluate(
        "Object.fromEntries(Object.entries(localStorage).filter(([k]) => k.includes('conversation')))"
    )
    with page.expect_download() as download:
        page.get_by_role("button", name="Export", exact=True).click()
    file = tmp_path / "all.json"
    download.value.save_as(file)
    assert import_file(page, file) == "0 conversations imported; 2 already here."
    page.evaluate("localStorage.clear()")
    page.reload()
    loaded(page)
    assert import_file(page, file) == "2 conversations imported."
    assert titles(page) == ["say: two", "say: one"]
    after = page.evaluate(
        "Object.fromEntries(Object.entries(localStorage).filter(([k]) => k.includes('conversation')))"
    )
    assert {key: json.loads(value) for key, value in after.items()} == {
        key: json.loads(value) for key, value in before.items()
    }

    # One that has changed since then gets a place of its own.
    page.locator(".conversations .open").first.click()
    ask(page, "say: three")
    answered(page)
    assert import_file(page, file) == "1 conversation imported; 1 already here."
    assert titles(page) == ["say: two", "say: two", "say: one"]


HOSTILE: list[Any] = [
    {"id": "../x", "title": {"a": 1}, "messages": [{"role": "user", "content": "<img src=x onerror=window.hit=1>"}]},
    {"id": "__proto__", "messages": [{"role": "user", "content": "a", "images": ["https://evil.example/x.png"]}]},
    {"messages": [None, 7, {"role": "system", "content": "x"}, {"role": "user", "content": 7}]},
    {
        "messages": [
            {"id": 5, "parent": 5, "role": "user", "content": "b"},
            {"id": 5, "parent": 9, "role": "user", "content": "c"},
        ]
    },
    {
        "messages": [
            {"role": "assistant", "content": "d", "tokens": [{"t": 1}], "usage": 7, "calls": [{}], "error": "x"}
        ]
    },
    {"messages": "none"},
    None,
]


def test_a_file_from_anywhere_does_no_harm(stub: Stub, page: Page, tmp_path: Path) -> None:
    visit(page, stub.url)
    file = tmp_path / "file.json"
    for text, said in (
        ("{", "This file is not JSON."),
        ("", "This file is not JSON."),
        ("7", "This file has no conversations."),
        ("null", "This file has no conversations."),
        ('{"conversations": 7}', "This file has no conversations."),
        ("[]", "This file has no conversations."),
        (json.dumps(HOSTILE), "4 conversations imported."),
    ):
        file.write_text(text)
        assert import_file(page, file) == said, text
    assert len(titles(page)) == 4
    for item in page.locator(".conversations .open").all():
        item.click()
        assert page.locator(".message").count() >= 1
        assert page.locator(".message img").count() == 0
    page.reload()
    loaded(page)
    assert page.evaluate("window.hit") is None
    check(page, "imported")


def test_presets_keep_settings_under_a_name(stub: Stub, page: Page) -> None:
    visit(page, stub.url)
    save = page.get_by_role("button", name="Save as preset…")
    chooser = page.get_by_role("combobox", name="Preset")
    system = page.get_by_role("textbox", name="System prompt")
    assert chooser.count() == 0
    setting(page, "Temperature").fill("0.1")
    system.fill("Be short.")
    save.click()
    page.get_by_role("textbox", name="Name of the preset").fill("Terse")
    check(page, "naming a preset")
    page.keyboard.press("Enter")
    assert chooser.input_value() == "Terse"
    setting(page, "Temperature").fill("1.5")
    setting(page, "Longest answer").fill("9")
    system.fill("")
    save.click()
    page.get_by_role("textbox", name="Name of the preset").fill("Wild")
    page.keyboard.press("Enter")
    assert chooser.locator("option").all_inner_texts() == ["No preset", "Terse", "Wild"]
    check(page, "presets")

    chooser.select_option("Terse")
    assert page.evaluate("document.activeElement.id") == "preset"
    body = ask(page, "say: x")
    assert (body["temperature"], body["messages"][0]["content"], "max_tokens" in body) == (0.1, "Be short.", False)
    answered(page)
    page.reload()
    loaded(page)
    assert chooser.input_value() == "Terse"
    chooser.select_option("Wild")
    assert (setting(page, "Longest answer").input_value(), system.input_value()) == ("9", "")
    chooser.select_option("No preset")
    assert "temperature" not in ask(page, "say: y")
    answered(page)
    chooser.select_option("Wild")
    page.get_by_role("button", name="Delete the preset “Wild”").click()
    assert chooser.locator("option").all_inner_texts() == ["No preset", "Terse"]
    assert setting(page, "Longest answer").input_value() == "9"
    save.click()
    page.keyboard.press("Escape")
    assert chooser.count() == 1


def test_the_meter_shows_what_the_context_holds(stub: Stub, page: Page) -> None:
    visit(page, stub.url)
    meter = page.locator("#meter")
    assert meter.is_hidden()
    ask(page, "say: one two three")
    answered(page)
    assert meter.text_content() == "Context: 12 of 2,048"  # 9 of the prompt, as the server counts them
    check(page, "meter")
    ask(page, "go on for ever")
    until(page, "document.querySelectorAll('.prose')[1].textContent.length > 20")
    page.keyboard.press("Escape")
    answered(page)
    assert (meter.text_content() or "").startswith("Context: about ")
    page.get_by_role("button", name="New chat").click()
    assert meter.is_hidden()
    page.set_viewport_size({"width": 360, "height": 780})
    ask(page, "say: x")
    answered(page)
    assert meter.is_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_text_file_goes_with_the_message(stub: Stub, page: Page, tmp_path: Path) -> None:
    visit(page, stub.url)
    notes = tmp_path / "notes.md"
    notes.write_text("# Héading\n```\ncode\n```\n")
    binary = tmp_path / "data.bin"
    binary.write_bytes(b"\xff\xfe\x00x")
    large = tmp_path / "large.txt"
    large.write_text("x" * (256 * 1024 + 1))
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Add an image or a text file").click()
    chooser.value.set_files([notes])
    page.get_by_text("notes.md").wait_for()
    check(page, "attached")
    for wrong, said in ((binary, "data.bin is not a text file."), (large, "large.txt is too large: at most 256 kB")):
        page.locator("#file").set_input_files(wrong)
        expect(page.locator("#toast")).to_contain_text(said)
    sent = ask(page, "say it")["messages"][0]["content"]
    assert sent == 'File "notes.md":\n````\n# Héading\n```\ncode\n```\n\n````\n\nsay it'
    answered(page)
    assert page.locator("#attachments").is_hidden()
    page.reload()
    loaded(page)
    fold = page.locator("details.file")
    assert fold.locator("summary").inner_text().split("\n") == ["notes.md", "4 lines"]
    fold.locator("summary").click()
    assert fold.locator("pre").inner_text() == notes.read_text()
    check(page, "file")

    # Alone, it is a message too; one can be taken back.
    page.get_by_role("button", name="New chat").click()
    page.locator("#file").set_input_files([notes, tmp_path / "notes.md"])
    until(page, "document.querySelectorAll('.chip').length === 2")
    page.get_by_role("button", name="Remove notes.md").first.click()
    page.locator("#message").focus()
    page.keyboard.press("Enter")
    answered(page)
    assert titles(page)[0] == "notes.md"
    assert stub.bodies[-1]["messages"][0]["content"].startswith('File "notes.md"')
