"""Going on with an answer: from where it was cut, or with another token, each as a branch of its own."""

from __future__ import annotations

import json
from typing import Any

import pytest
from playwright.sync_api import Page

from browser.conftest import Watch
from browser.driving import answered, ask, loaded, setting, until, visit
from browser.stub import Stub
from browser.test_page import check

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def going_on(page: Page, name: str) -> dict[str, Any]:
    """Press a button; the body of the request that goes on with the answer."""
    with page.expect_request("**/v1/completions") as sent:
        page.get_by_role("button", name=name).click()
    body = json.loads(sent.value.post_data or "{}")
    assert isinstance(body, dict)
    return body


def test_a_cut_answer_goes_on_where_it_was_cut(stub: Stub, page: Page) -> None:
    stub.finish, stub.continuation = "length", " and so on."
    visit(page, stub.url)
    setting(page, "Longest answer").fill("3")
    setting(page, "Temperature").fill("0.5")
    ask(page, "say: one two three")
    answered(page)
    assert page.locator(".quiet-note").inner_text() == "Cut off at 3 tokens."
    stub.finish = "stop"
    body = going_on(page, "Continue")
    assert stub.text(body["prompt_token_ids"]) == "user: say: one two three one two three"
    assert {name: body[name] for name in ("max_tokens", "temperature", "stream")} == {
        "max_tokens": 3,
        "temperature": 0.5,
        "stream": True,
    }
    assert answered(page) == "one two three and so on."
    assert page.locator(".answer .versions").inner_text() == "2/2"
    assert " 7 tokens" in page.locator(".figures").inner_text()
    assert page.get_by_role("button", name="Continue").count() == 0
    page.get_by_role("button", name="Previous version").click()
    assert page.locator(".prose").inner_text() == "one two three"
    check(page, "cut")
    page.get_by_role("button", name="Next version").click()

    # What follows is an ordinary chat.
    messages = ask(page, "say: on")["messages"]
    assert [m["content"] for m in messages[1:]] == ["one two three and so on.", "say: on"]


def test_without_probabilities_the_text_is_read_again(stub: Stub, page: Page) -> None:
    visit(page, stub.url)
    setting(page, "Temperature").fill("0.5")
    page.get_by_role("switch", name="Token probabilities").uncheck()
    stub.finish = "length"
    assert "return_token_ids" not in ask(page, "say: one two")
    answered(page)
    assert "logprobs" not in (body := going_on(page, "Continue"))
    assert stub.text(body["prompt_token_ids"]) == "user: say: one two one two"
    assert body["max_tokens"] == 2048 - len(body["prompt_token_ids"])


def test_a_stopped_answer_goes_on(stub: Stub, page: Page) -> None:
    stub.token_delay_s = 0.02
    visit(page, stub.url)
    ask(page, "go on for ever")
    until(page, "document.querySelector('.prose').textContent.length > 20")
    page.keyboard.press("Escape")
    said = answered(page)
    stub.continuation = "end."
    body = going_on(page, "Continue")
    assert answered(page) == f"{said.strip()} end."
    assert stub.text(body["prompt_token_ids"]).count("word ") == said.split().count("word")


@pytest.mark.parametrize("how", ["keyboard", "mouse", "phone"])
def test_another_token_begins_a_branch(stub: Stub, page: Page, how: str) -> None:
    if how == "phone":
        page.set_viewport_size({"width": 390, "height": 780})
    visit(page, stub.url)
    ask(page, "say: one two three four")
    answered(page)
    page.get_by_role("button", name="Tokens", exact=True).click()
    card = page.locator("#token-card")
    page.locator(".token").nth(2).focus()
    assert card.get_by_role("button").count() == 0
    with page.expect_request("**/v1/completions") as sent:
        if how == "keyboard":
            page.keyboard.press("Enter")
            assert page.evaluate("document.activeElement.closest('#token-card') !== null")
            check(page, "card")
            page.keyboard.press("ArrowDown")
            page.keyboard.press("Enter")
        else:
            page.locator(".token").nth(2).click()
            page.locator(".token").nth(0).hover()  # The card that was opened stays.
            card.get_by_role("button", name='Take "wheel " instead').click()
    body = json.loads(sent.value.post_data or "")
    assert stub.text(body["prompt_token_ids"]) == "user: say: one two three four one two wheel "
    assert card.is_hidden()
    page.wait_for_selector(".answer:not(.running) .tools .tool")
    assert page.locator(".tokens").inner_text() == "one two wheel and so on."
    assert page.locator(".token.picked").inner_text() == "wheel "
    page.get_by_role("button", name="Tokens", exact=True).click()
    assert page.locator(".prose").inner_text() == "one two wheel and so on."
    assert page.locator(".versions").inner_text() == "2/2"
    page.reload()
    loaded(page)
    page.get_by_role("button", name="Previous version").click()
    assert page.locator(".prose").inner_text() == "one two three four"


def test_the_card_lets_go_of_the_focus(stub: Stub, page: Page) -> None:
    visit(page, stub.url)
    ask(page, "say: one two three")
    answered(page)
    page.get_by_role("button", name="Tokens", exact=True).click()
    page.locator(".token").nth(1).focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    assert page.locator("#token-card").is_hidden()
    assert page.evaluate("document.activeElement.dataset.index") == "1"
    page.keyboard.press("ArrowRight")
    assert page.locator("#token-card").is_visible()
    page.keyboard.press("Enter")
    page.locator("#message").focus()
    assert page.locator("#token-card").is_hidden()


def test_what_cannot_go_on_does_not_offer_it(stub: Stub, page: Page, watch: Watch) -> None:
    """JSON by a schema, behind an image, or when the server fails: the answer is as it was."""
    watch.allowed = ("429",)
    stub.finish = "length"
    visit(page, stub.url)
    setting(page, "JSON schema").fill("{}")
    ask(page, "say: {}")
    answered(page)
    assert page.get_by_role("button", name="Continue").count() == 0
    setting(page, "JSON schema").fill("")
    ask(page, "say: one two")
    answered(page)
    stub.refusals = 1
    going_on(page, "Continue")
    page.wait_for_selector(".error-note")
    assert answered(page) == "one two"
    assert page.locator(".error-note").inner_text() == "Stopped early. the queue is full Try again in 3 s."
    assert page.get_by_role("button", name="Continue").count() == 1


def test_on_a_real_server_it_says_what_it_would_have_said(served_fake: str, page: Page) -> None:
    visit(page, served_fake)
    setting(page, "Temperature").fill("0")
    ask(page, "Tell me what you are")
    whole = answered(page)
    setting(page, "Longest answer").fill("5")
    page.get_by_role("button", name="Regenerate").click()
    until(page, "document.querySelector('.versions')")
    cut = answered(page)
    assert cut
    assert cut != whole
    setting(page, "Longest answer").fill("")
    body = going_on(page, "Continue")
    assert answered(page).startswith(cut)
    assert len(body["prompt_token_ids"]) > 5
    page.get_by_role("button", name="Tokens", exact=True).click()
    page.locator(".token").nth(1).click()
    page.locator("#token-card button").first.click()
    page.wait_for_selector(".answer:not(.running) .tools .tool")
    assert page.locator(".error-note").count() == 0
    assert page.locator(".token.picked").count() == 1


PLACES = """async ([content, tokens]) => {
    const { places } = await import("/resuming.js");
    return places({ content, tokens });
}"""


def test_tokens_find_their_places_in_the_text(stub: Stub, page: Page) -> None:
    visit(page, stub.url)
    smile = list("🙂".encode())
    cases: list[tuple[str, list[Any], list[int | None]]] = [
        ("ab c", ["ab", " c"], [0, 2]),
        ("ab c", [" ab", " c"], [0, 2]),
        ("ab", ["<think>", "ab", "</think>", "\n", "ab", "<end>"], [None, None, None, None, 0, 2]),
        ("a🙂b", ["a", smile[:2], smile[2:], "b"], [0, 1, None, 3]),
        ("a", ["b"], [None]),
        ("", ["a"], [None]),
        ("a", [], []),
    ]
    for content, written, expected in cases:
        tokens = [{"t": token} if isinstance(token, str) else {"t": "?", "b": token} for token in written]
        assert page.evaluate(PLACES, [content, tokens]) == expected, content
