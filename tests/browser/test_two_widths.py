"""What the page says and offers, each at the width of a desktop and of a phone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, Route

from browser.conftest import Watch
from browser.driving import answered, ask, hide, loaded, painted, setting, show, unfold, until, visit
from browser.stub import REPLY, Stub
from browser.test_page import check
from drivetrain.scale.fleet.policy import FleetLimits
from server.fleet_serving import ServedFleet, fake_offer, serving_fleet
from server.serving import Served, fake, serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SCHEMA = {"title": "Opening", "type": "object", "properties": {"open": {"type": "boolean"}}, "required": ["open"]}


def fits(page: Page) -> None:
    painted(page)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def fill(page: Page, name: str, text: str) -> None:
    """Fill in a setting, and leave the settings."""
    show(page, "inspector")
    setting(page, name).fill(text)
    hide(page)


def new_chat(page: Page) -> None:
    show(page, "sidebar")
    page.get_by_role("button", name="New chat").click()
    until(page, "document.activeElement.id === 'message'")


# A JSON schema in force


def test_a_schema_in_force_is_a_chip_and_stays_out_of_a_new_chat(stub: Stub, sized: Page) -> None:
    visit(sized, stub.url)
    chip = sized.locator("#in-force .chip")
    fill(sized, "JSON schema", json.dumps(SCHEMA))
    assert chip.inner_text() == "JSON: Opening"
    assert ask(sized, 'say: {"open": true}')["response_format"]["json_schema"]["schema"] == SCHEMA
    answered(sized)
    fits(sized)
    check(sized, "a schema in force")

    new_chat(sized)
    assert chip.count() == 0
    assert "response_format" not in ask(sized, "say: plain")
    answered(sized)
    show(sized, "inspector")
    assert setting(sized, "JSON schema").input_value() == ""
    hide(sized)

    # It is kept with its conversation, also over a reload. The chip leads to it, and takes it off.
    show(sized, "sidebar")
    sized.locator(".conversations .open").last.click()
    sized.reload()
    loaded(sized)
    chip.get_by_role("button", name="JSON: Opening").click()
    until(sized, "document.activeElement.id === 'control-response_format'")
    assert json.loads(sized.locator("#control-response_format").input_value()) == SCHEMA
    hide(sized)
    sized.get_by_role("button", name="Answer without the JSON schema").click()
    assert sized.evaluate("document.activeElement.id") == "message"
    assert chip.count() == 0
    assert "response_format" not in ask(sized, "say: plain again")
    answered(sized)


def test_a_preset_keeps_the_schema(stub: Stub, sized: Page) -> None:
    visit(sized, stub.url)
    show(sized, "inspector")
    setting(sized, "JSON schema").fill(json.dumps(SCHEMA))
    sized.get_by_role("button", name="Save as preset…").click()
    sized.get_by_role("textbox", name="Name of the preset").fill("Openings")
    sized.keyboard.press("Enter")
    hide(sized)
    new_chat(sized)
    assert sized.locator("#in-force .chip").count() == 0
    show(sized, "inspector")
    sized.get_by_role("combobox", name="Preset").select_option("")
    sized.get_by_role("combobox", name="Preset").select_option("Openings")
    hide(sized)
    assert ask(sized, "say: {}")["response_format"]["json_schema"]["schema"] == SCHEMA
    answered(sized)


def test_a_schema_of_an_older_version_is_not_in_force_everywhere(stub: Stub, sized: Page) -> None:
    visit(sized, stub.url)
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
    kept = {"values": {"temperature": 0.5, "response_format": form}}
    sized.evaluate("(kept) => localStorage.setItem('drivetrain:settings', kept)", json.dumps(kept))
    sized.reload()
    loaded(sized)
    body = ask(sized, "say: plain")
    assert body["temperature"] == 0.5
    assert "response_format" not in body
    answered(sized)


# A wrong key


def test_a_wrong_key_is_said_as_to_a_person(locked: str, sized: Page, watch: Watch) -> None:
    watch.allowed = ("401",)
    sized.goto(f"{locked}/")
    error = sized.locator("#key-error")
    for wrong, words in (
        ("wrong", "The server does not know this key. Check it, or ask whoever runs the server for one."),
        ("two words", "This is not a key: it has a space, or a sign that no key has."),
        ("schlüssel", "This is not a key: it has a space, or a sign that no key has."),
        ("", "Enter the key first."),
    ):
        sized.get_by_label("API key").fill(wrong)
        sized.get_by_role("button", name="Use this key").click()
        until(sized, f"document.querySelector('#key-error').textContent === {json.dumps(words)}")
        assert error.is_visible()
    fits(sized)
    check(sized, "a wrong key")
    sized.get_by_role("button", name="Not now").click()
    assert sized.locator("#model .problem").inner_text() == "The server requires an API key."
    sized.get_by_role("button", name="Try again").click()
    assert error.is_hidden(), "a key that was not taken is not kept"
    sized.get_by_label("API key").fill(KEY)
    sized.keyboard.press("Enter")
    loaded(sized)


KEY = "a-key-for-the-test"


@pytest.fixture
def locked() -> Iterator[str]:
    with serving(fake(), api_keys=(KEY,)) as served:
        yield served.base


# Whether the server is ready


def dot(page: Page) -> Locator:
    return page.locator("#model .dot")


def says(page: Page, state: str, words: str) -> None:
    """The dot beside the model's name, the words beside the dot, and the live view."""
    until(page, f"document.querySelector('#model .dot').dataset.state === '{state}'")
    assert page.locator("#model .state-word").inner_text() == words
    assert page.locator("#panel-live .state").get_attribute("data-state") == state
    assert page.locator("#panel-live .state").text_content() == words


def test_the_dot_is_true(stub: Stub, sized: Page, watch: Watch) -> None:
    watch.allowed = ("503", "ERR_CONNECTION_REFUSED")
    visit(sized, stub.url)
    says(sized, "ready", "Ready")
    for state, words in (("loading", "Loading"), ("draining", "Draining")):
        stub.state = state
        says(sized, state, words)
    stub.state = "the engine is down"
    says(sized, "error", "The engine is down")
    fits(sized)
    check(sized, "the engine is down")
    stub.state = "ready"
    says(sized, "ready", "Ready")

    def hang(route: Route) -> None:
        """Never answer."""

    for gone in (hang, lambda route: route.abort("connectionrefused")):
        sized.route("**/ready", gone)
        says(sized, "error", "No answer")
        sized.unroute("**/ready")
        says(sized, "ready", "Ready")


def test_the_dot_is_never_older_than_two_seconds(stub: Stub, sized: Page) -> None:
    visit(sized, stub.url)
    times = sized.evaluate("import('/heartbeat.js').then(({ EVERY_MS, PATIENCE_MS }) => [EVERY_MS, PATIENCE_MS])")
    assert sum(times) < 2000


def test_a_server_that_comes_back_is_found(stub: Stub, sized: Page, watch: Watch) -> None:
    watch.allowed = ("ERR_CONNECTION_REFUSED",)
    for path in ("**/ready", "**/v1/models"):
        sized.route(path, lambda route: route.abort("connectionrefused"))
    sized.goto(f"{stub.url}/")
    assert "cannot be reached" in sized.locator("#model .problem").inner_text()
    for path in ("**/v1/models", "**/ready"):
        sized.unroute(path)
    loaded(sized)
    until(sized, "document.querySelector('#model .dot').dataset.state === 'ready'")


def test_the_rate_of_now_is_not_the_mean_of_a_while(stub: Stub, sized: Page) -> None:
    """The server's own figure covers the time since somebody last looked."""
    stub.completion_tokens = 1000
    visit(sized, stub.url)
    show(sized, "inspector")
    sized.get_by_role("tab", name="Live").click()
    rate = sized.locator(".chart[aria-label='Tokens per second'] .chart-value")
    until(sized, lambda: rate.inner_text() == "0.0")
    stub.completion_tokens += 500
    until(sized, lambda: float(rate.inner_text()) > 10)
    until(sized, lambda: rate.inner_text() == "0.0")


# The context


def full(context: int, **script: Any) -> Iterator[Served]:
    with serving(fake(context_length=context, **script)) as served:
        yield served


@pytest.fixture
def small() -> Iterator[Served]:
    yield from full(400)


@pytest.fixture
def talkative() -> Iterator[Served]:
    yield from full(400, repeat=True)


def test_a_conversation_that_is_too_long_leads_to_a_new_one(small: Served, sized: Page, watch: Watch) -> None:
    watch.allowed = ("400",)
    visit(sized, small.base)
    ask(sized, "too long " * 60)
    note = sized.locator(".error-note")
    note.wait_for()
    assert "does not fit into the model's context. Edit a message to shorten it." in note.inner_text()
    assert "overflow" not in note.inner_text()
    assert sized.get_by_role("button", name="Edit").count() == 1
    fits(sized)
    check(sized, "too long")
    note.get_by_role("button", name="New chat").click()
    until(sized, "document.activeElement.id === 'message' && !document.querySelector('.message')")


def test_an_answer_that_may_be_too_long_leads_to_its_setting(small: Served, sized: Page, watch: Watch) -> None:
    watch.allowed = ("400",)
    visit(sized, small.base)
    fill(sized, "Longest answer", "390")
    ask(sized, "Hello there, how are you?")
    note = sized.locator(".error-note")
    note.wait_for()
    assert "“Longest answer” of the settings" in note.inner_text()
    note.get_by_role("button", name="Longest answer").click()
    until(sized, "document.activeElement.id === 'control-max_tokens'")
    assert sized.locator("#control-max_tokens").is_visible()


def test_an_answer_that_fills_the_context_says_so(talkative: Served, sized: Page) -> None:
    visit(sized, talkative.base)
    fill(sized, "Temperature", "0")
    fill(sized, "End loops after", "0")
    ask(sized, "Hello")
    answered(sized)
    note = sized.locator(".quiet-note")
    assert re.match(r"Cut off at \d+ tokens: the model's context is full\.", note.inner_text())
    assert sized.get_by_role("button", name="Continue").count() == 0, "it could not"
    assert sized.locator("#meter").text_content() == "Context: 400 of 400"
    note.get_by_role("button", name="New chat").click()
    until(sized, "!document.querySelector('.message')")


def test_the_ring_counts_the_answer_as_it_grows(stub: Stub, sized: Page) -> None:
    visit(sized, stub.url)
    ask(sized, "go on for ever")

    def counted() -> int:
        found = re.fullmatch(r"Context: about ([\d,]+) of 2,048", sized.locator("#meter").text_content() or "")
        return int(found[1].replace(",", "")) if found else 0

    until(sized, lambda: counted() > 20)
    first = counted()
    until(sized, lambda: counted() > first + 20)
    assert sized.locator(".answer").get_attribute("aria-busy") == "true"
    sized.keyboard.press("Escape")
    answered(sized)


# What an answer says of itself

TIMED = """async () => {
    const { Runs } = await import("/runs.js");
    let now = 0;
    performance.now = () => now;
    const said = { role: "assistant", content: "" };
    const runs = new Runs({ grew() {}, ended() {}, full() {} });
    runs.follow = () => {};
    runs.start({ id: "timed", messages: [said] }, said, null);
    const [run] = runs.all;
    const chunk = (at, content, finish_reason = null) => {
        now = at;
        runs.add(run, { choices: [{ delta: { content }, finish_reason }] });
    };
    chunk(1000, "word ".repeat(CHUNKS[0]));
    CHUNKS.slice(1).forEach((words, i) => chunk(1100 + 100 * i, "word ".repeat(words)));
    runs.add(run, { choices: [], usage: { completion_tokens: CHUNKS.reduce((a, b) => a + b) } });
    runs.end(run, {});
    return said.timing;
}"""


@pytest.mark.parametrize(
    ("chunks", "rate"),
    [([1] * 21, 10), ([80, *[1] * 20], 10), ([100], 0), ([50, 50], 500)],
    ids=["one-by-one", "many-at-first", "all-at-once", "two-halves"],
)
def test_the_rate_is_that_of_the_tokens_that_were_timed(stub: Stub, page: Page, chunks: list[int], rate: float) -> None:
    visit(page, stub.url)
    timing = page.evaluate(TIMED.replace("CHUNKS", json.dumps(chunks)))
    assert timing["first"] == pytest.approx(1.0)
    assert timing["rate"] == pytest.approx(rate)


@pytest.fixture
def both() -> Iterator[ServedFleet]:
    with serving_fleet(fake_offer("first"), fake_offer("second"), limits=FleetLimits(max_loaded=2)) as served:
        yield served


def test_statistics_do_not_break(both: ServedFleet, sized: Page) -> None:
    sized.goto(f"http://127.0.0.1:{both.port}/")
    toggle = sized.get_by_role("button", name="Two models side by side")
    toggle.click()
    until(sized, "document.activeElement.ariaPressed === 'true'")
    ask(sized, "Hello there")
    until(sized, "document.querySelectorAll('.side .answer:not(.running) .figures').length === 2")
    fits(sized)
    lines = "(all) => all.map((one) => [one.innerText, one.getClientRects().length])"
    found = sized.locator(".figure").evaluate_all(lines)
    assert sum(text.startswith("first token after ") and text.endswith(" s") for text, _ in found) == 2
    assert [text for text, count in found if count != 1] == []
    assert [sized.locator(".side .of-model").nth(i).is_visible() for i in range(2)] == [False, False]


# Settings, shortcuts


def test_groups_of_settings_say_what_they_hold(stub: Stub, sized: Page) -> None:
    visit(sized, stub.url)
    show(sized, "inspector")
    assert sized.locator("#panel-settings summary").all_inner_texts() == [
        "Randomness\nTemperature, Top p, Top k, Min p, Seed",
        "Repetition\nRepetition penalty, Presence penalty, Frequency penalty",
        "Length and stops\nLongest answer, Shortest answer, Stop at",
        "JSON output\nJSON schema",
        "Shown with an answer\nToken probabilities",
    ]
    fits(sized)
    check(sized, "groups")
    unfold(sized)
    assert sized.locator("#panel-settings summary").first.inner_text() == "Randomness"


def test_there_is_a_list_of_keyboard_shortcuts(stub: Stub, sized: Page) -> None:
    visit(sized, stub.url)
    dialog = sized.get_by_role("dialog", name="Keyboard shortcuts")
    message = sized.locator("#message")
    message.press("?")
    assert (message.input_value(), dialog.is_visible()) == ("?", False)
    message.fill("")
    sized.locator("#thread").focus()
    sized.keyboard.press("?")
    assert dialog.is_visible()
    for keys in ("Enter", "Shift+Enter", "Esc", "/", "?"):
        assert dialog.locator("kbd").get_by_text(keys, exact=True).first.is_visible()
    fits(sized)
    check(sized, "shortcuts")
    sized.keyboard.press("Escape")
    assert dialog.is_hidden()
    sized.locator("#thread").focus()
    sized.keyboard.press("/")
    assert sized.evaluate("document.activeElement.id") == "message"
    assert message.input_value() == ""
    show(sized, "sidebar")
    sized.get_by_role("button", name="Keyboard shortcuts").click()
    dialog.get_by_role("button", name="Close").click()
    assert dialog.is_hidden()


def test_closing_the_list_stops_no_answer(stub: Stub, sized: Page) -> None:
    visit(sized, stub.url)
    ask(sized, "go on for ever")
    until(sized, "document.querySelector('.prose').textContent.length > 20")
    sized.locator("#thread").focus()
    sized.keyboard.press("?")
    sized.keyboard.press("Escape")
    sized.get_by_role("dialog").wait_for(state="hidden")
    assert sized.locator(".answer").get_attribute("aria-busy") == "true"
    sized.keyboard.press("Escape")
    answered(sized)


# Files


def test_a_chat_is_exported_as_markdown(stub: Stub, sized: Page, tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("a note with ``` in it")
    stub.reasoning = "Let me\nthink."
    stub.content_may_come.set()
    visit(sized, stub.url)
    show(sized, "inspector")
    sized.get_by_role("textbox", name="System prompt").fill("Be brief.")
    hide(sized)
    sized.locator("#file").set_input_files(notes)
    sized.locator("#attachments .chip").wait_for()
    ask(sized, "say: **first**")
    answered(sized)
    sized.get_by_role("button", name="Regenerate").click()
    answered(sized)
    stub.reasoning, stub.finish = "", "length"
    ask(sized, "say: ```py x = (1")
    answered(sized)
    show(sized, "sidebar")
    sized.get_by_role("button", name="Export “say: **first**”").click()
    dialog = sized.get_by_role("dialog", name="Export this conversation")
    fits(sized)
    check(sized, "export")
    with sized.expect_download() as started:
        dialog.get_by_role("button", name="Markdown").click()
    assert started.value.suggested_filename == "say-first.md"
    assert Path(started.value.path()).read_text() == MARKDOWN
    assert dialog.is_hidden()


MARKDOWN = f"""# say: **first**

## System prompt

Be brief.

## You

File "notes.txt":
````
a note with ``` in it
````

say: **first**

## stub-1b

> Let me
> think.

{REPLY.strip()}

## You

say: ```py x = (1

## stub-1b

```py x = (1
```

*(cut off)*
"""


def test_a_pdf_is_not_read_yet(stub: Stub, sized: Page, tmp_path: Path) -> None:
    """Chosen or dropped, by its type, its name or its beginning, also if it is large."""
    visit(sized, stub.url)
    said = "paper.pdf: this page cannot read PDF files yet. Copy the text and paste it here."
    toast = sized.locator("#toast")
    paper = tmp_path / "paper.pdf"
    paper.write_bytes(b"%PDF-1.7\n" + bytes(300_000))
    with sized.expect_file_chooser() as chooser:
        sized.get_by_role("button", name="Add an image or a text file").click()
    chooser.value.set_files(paper)
    until(sized, lambda: toast.inner_text() == said)
    fits(sized)
    sized.evaluate("document.querySelector('#toast').hidden = true")
    files = sized.evaluate_handle(
        """() => {
            const files = new DataTransfer();
            files.items.add(new File(["%PDF-1.4 made up"], "paper.pdf", { type: "" }));
            return files;
        }"""
    )
    sized.locator("#thread").dispatch_event("dragenter", {"dataTransfer": files})
    sized.locator("#drop-veil").dispatch_event("drop", {"dataTransfer": files})
    until(sized, lambda: toast.is_visible() and toast.inner_text() == said)
    assert sized.locator(".attachments .chip").count() == 0
