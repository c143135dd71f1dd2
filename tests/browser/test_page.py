"""The page in a real browser: what every server must give it, the stub, `drivetrain serve fake` or a real model."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Error, Page

from browser.conftest import URL, Watch
from browser.driving import answered, ask, loaded, painted, setting, unfold, until
from browser.driving import visit as open_page
from browser.stub import REPLY, Stub

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

AUDIT = (Path(__file__).parent / "audit.js").read_text()


def visit(page: Page, address: str) -> None:
    """A real model, which may talk for minutes, is kept short."""
    open_page(page, address)
    if address == URL:
        setting(page, "Longest answer").fill("12")


def test_sends_and_shows_the_answer(site: str, page: Page) -> None:
    visit(page, site)
    body = ask(page, "Hello there")
    assert body["messages"] == [{"role": "user", "content": "Hello there"}]
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}
    assert answered(page)
    assert "token" in page.locator(".answer .figures").inner_text()
    assert page.locator(".error-note").count() == 0
    assert page.locator("#message").input_value() == ""


def test_a_reload_finds_the_conversation(site: str, page: Page) -> None:
    visit(page, site)
    ask(page, "Remember this")
    text = answered(page)
    page.reload()
    assert page.locator(".bubble").inner_text() == "Remember this"
    assert page.locator(".prose").inner_text() == text
    page.get_by_role("button", name="New chat").click()
    assert page.locator(".bubble").count() == 0
    page.locator(".conversations .open").first.click()
    assert page.locator(".bubble").inner_text() == "Remember this"
    assert page.evaluate("document.cookie") == ""


def test_the_temperature_reaches_the_request(site: str, page: Page) -> None:
    visit(page, site)
    assert "temperature" not in ask(page, "As it comes")
    answered(page)
    setting(page, "Temperature").fill("0.3")
    assert ask(page, "Cooler")["temperature"] == 0.3
    answered(page)
    slider = page.get_by_role("slider", name="Temperature, slider")
    slider.focus()
    slider.press("ArrowRight")
    assert ask(page, "A little warmer")["temperature"] == 0.35
    answered(page)
    page.get_by_role("button", name="Reset Temperature").click()
    assert "temperature" not in ask(page, "As it comes again")


def test_the_token_view_shows_probabilities(site: str, page: Page) -> None:
    visit(page, site)
    body = ask(page, "Show me tokens")
    assert body["logprobs"] is True
    assert body["top_logprobs"] == 5
    answered(page)
    page.get_by_role("button", name="Tokens", exact=True).click()
    tokens = page.locator(".token")
    assert tokens.count() > 3
    tokens.nth(0).focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.dataset.index") == "1"
    card = page.locator("#token-card")
    assert card.is_visible()
    assert "%" in card.inner_text()
    page.locator("#message").focus()
    assert card.is_hidden()
    painted(page)  # A scroll that is still to come would take the card away.
    tokens.nth(2).hover()
    card.wait_for(state="visible")


def test_the_live_panel_asks_only_while_it_is_seen(site: str, page: Page, watch: Watch) -> None:
    def asked() -> int:
        return len([url for url in watch.addresses if url.endswith("/status")])

    visit(page, site)
    page.wait_for_timeout(1200)  # Longer than the panel waits between two questions.
    assert asked() == 0
    page.get_by_role("tab", name="Live").click()
    page.wait_for_selector(".state[data-state=ready]")
    until(page, lambda: asked() >= 2)
    assert page.get_by_role("img", name="Running requests").count() == 1
    assert page.locator(".chart").count() >= 5
    page.get_by_role("tab", name="Settings").click()
    page.evaluate("fetch('/logo.svg', { cache: 'no-store' }).then((answer) => answer.text())")
    before = asked()  # What left before the logo has been seen.
    page.wait_for_timeout(1500)
    assert asked() == before


def test_the_code_is_the_request(site: str, page: Page) -> None:
    visit(page, site)
    page.get_by_role("textbox", name="System prompt").fill('Say it\'s "short"\nalways')
    page.get_by_role("tab", name="Code").click()
    page.locator("#message").fill("What's up?")
    page.get_by_role("button", name="Copy Python").click()
    python = str(page.evaluate("navigator.clipboard.readText()"))
    calls: list[dict[str, Any]] = []
    run_with_client(python, calls)
    page.get_by_role("button", name="Copy curl").click()
    curl = str(page.evaluate("navigator.clipboard.readText()"))
    in_curl = json.loads(curl.split("<<'JSON'\n", 1)[1].removesuffix("\nJSON"))
    page.locator("#message").focus()
    sent = ask(page, "What's up?")
    assert sent == in_curl
    assert sent == calls[0]
    assert sent["messages"][0] == {"role": "system", "content": 'Say it\'s "short"\nalways'}
    answered(page)


def run_with_client(code: str, calls: list[dict[str, Any]]) -> None:
    """Run a pasted script with a client that only writes down what it was asked."""
    compile(code, "pasted", "exec")

    class Completions:
        def create(self, *, extra_body: dict[str, Any] | None = None, **fields: Any) -> list[Any]:
            calls.append({**fields, **(extra_body or {})})
            return []

    completions = Completions()
    chat = type("Chat", (), {"completions": completions})
    names = {"OpenAI": lambda **_: type("Client", (), {"chat": chat})}
    exec(code.replace("from openai import OpenAI", ""), names)


INJECTIONS = [
    '<img src=x onerror="window.hit=1">',
    "<script>window.hit=1</script>",
    "[click](javascript:window.hit=1) and [data](data:text/html,<script>window.hit=1</script>)",
    "[a](JaVaScRiPt:alert(1)) <javascript:alert(1)> [b](//evil.example/x) [c](/admin)",
    "<div><b>x</b><iframe src=https://evil.example></iframe></div>",
    "![pixel](https://evil.example/pixel.png)",
    '```html"><img src=x onerror=window.hit=1>\n<img src=x onerror=window.hit=1>\n```',
    "# <svg onload=window.hit=1>\n\n> <a href=javascript:window.hit=1>x</a>\n\n- <style>*{display:none}</style>",
    "| <img src=x onerror=window.hit=1> | b |\n|---|---|\n| <b>c</b> | [d](javascript:1) |",
    '<https://ok.example/"onmouseover=window.hit=1>',
]


def render(page: Page, markdown: str) -> dict[str, Any]:
    """Render with the page's own module, and look at what came out."""
    found = page.evaluate(
        """async (text) => {
            const { renderMarkdown } = await import("/markdown.js");
            const box = document.createElement("div");
            document.body.append(box);
            for (let i = 0; i <= text.length; i += 3) renderMarkdown(box, text.slice(0, i)); // as a stream does
            renderMarkdown(box, text);
            const grown = box.innerHTML;
            const whole = document.createElement("div");
            renderMarkdown(whole, text);
            await new Promise((resolve) => setTimeout(resolve, 50));
            const tags = [...box.querySelectorAll("*")].map((e) => e.localName);
            const links = [...box.querySelectorAll("a")].map((a) => [a.protocol, a.rel, a.target]);
            const attributes = [...box.querySelectorAll("*")].flatMap((e) => e.getAttributeNames());
            const handlers = attributes.filter((name) => name.startsWith("on"));
            box.remove();
            return { tags, links, handlers, same: grown === whole.innerHTML, html: grown, hit: window.hit };
        }""",
        markdown,
    )
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("text", INJECTIONS)
def test_markup_in_an_answer_stays_text(stub: Stub, page: Page, text: str) -> None:
    visit(page, stub.url)
    found = render(page, text)
    assert found.get("hit") is None
    assert found["handlers"] == []
    assert found["same"]
    assert not {"img", "script", "iframe", "style", "b", "object", "form"} & set(found["tags"])
    assert all(link[0] in {"http:", "https:"} and "noopener" in link[1] for link in found["links"])
    ask(page, f"say: {text}")
    answered(page)
    assert page.evaluate("window.hit") is None
    assert page.locator(".prose img, .prose iframe, .prose script, .prose style").count() == 0


TASKS = (
    '<ul><li class="task"><span class="box" role="img" aria-label="To do:"></span>a</li>'
    '<li class="task done"><span class="box" role="img" aria-label="Done:"></span><em>b</em></li><li>[y] c</li></ul>'
)


def test_nothing_can_parse_html(stub: Stub, page: Page, watch: Watch) -> None:
    """Neither the page nor a library that it brings along, not even by mistake."""
    watch.allowed = ("TrustedHTML",)
    visit(page, stub.url)
    with pytest.raises(Error, match="TrustedHTML"):
        page.evaluate("document.createElement('div').innerHTML = '<b>x</b>'")


def test_markdown_is_what_it_says(stub: Stub, page: Page) -> None:
    visit(page, stub.url)
    cases = {
        "a **b** *c* ~~d~~ `e`": "<p>a <strong>b</strong> <em>c</em> <del>d</del> <code>e</code></p>",
        "2 * 3 * 4 and snake_case_name": "<p>2 * 3 * 4 and snake_case_name</p>",
        "*a **b** c*": "<p><em>a <strong>b</strong> c</em></p>",
        "***both***": None,
        "- a\n- b\n  - c": "<ul><li>a</li><li>b<ul><li>c</li></ul></li></ul>",
        "3. a\n4. b": '<ol start="3"><li>a</li><li>b</li></ol>',
        "> q\n> r": "<blockquote><p>q<br>r</p></blockquote>",
        "line\nnext": "<p>line<br>next</p>",
        "## Title ##": '<h4 class="md-h2">Title</h4>',
        "---": "<hr>",
        "`` a`b ``": "<p><code>a`b</code></p>",
        "\\*not\\*": "<p>*not*</p>",
        "- [ ] a\n- [x] *b*\n- [y] c": TASKS,
        "- [ ]\n- [x]": "<ul><li>[ ]</li><li>[x]</li></ul>",
    }
    for markdown, html in cases.items():
        found = render(page, markdown)
        assert found["same"], markdown
        if html:  # Each block finds its own direction.
            assert found["html"] == re.sub(
                "<(p|ul|ol|h4|blockquote)(?=[ >])(.*?)>", r'<\1\2 dir="auto">', html, count=1
            )
    link = render(page, "[x](https://a.example/b_(c)) (see https://a.example/d). <https://e.example>")
    assert [rel for _, rel, _ in link["links"]] == ["noopener noreferrer"] * 3


def test_hostile_markdown_is_rendered_in_time(stub: Stub, page: Page) -> None:
    visit(page, stub.url)
    size = 20_000
    pieces = [
        "[",
        "*a ",
        "**a",
        "`" * 3 + "x ",
        "> ",
        "- ",
        "_a",
        "[](",
        "](",
        "http://a",
        "\\",
        "|",
        "#",
        "# " + " " * 9,
        "~~a ",
        "$a",
        "$$",
        "$$\n",
        "\\(a ",
        "\\[\n",
        "- [ ] ",
    ]
    computing = page.context.new_cdp_session(page)
    computing.send("Performance.enable", {"timeDomain": "threadTicks"})  # Other work on the machine does not count.

    def spent_s() -> float:
        metrics = computing.send("Performance.getMetrics")["metrics"]
        return float(next(metric["value"] for metric in metrics if metric["name"] == "ThreadTime"))

    for piece in pieces:
        text = piece * (size // len(piece))
        before = spent_s()
        page.evaluate(
            """async (text) => {
                const { renderMarkdown } = await import("/markdown.js");
                renderMarkdown(document.createElement("div"), text);
            }""",
            text,
        )
        took = spent_s() - before
        assert took < 1.5, f"{piece!r} took {took:.1f} s"


def test_the_stream_grows_and_stop_frees_the_server(stub: Stub, page: Page) -> None:
    visit(page, stub.url)
    ask(page, "go on for ever")
    until(page, "document.querySelector('.prose').textContent.length > 20")
    first = len(page.locator(".prose").inner_text())
    until(page, f"document.querySelector('.prose').textContent.length > {first + 100}")
    assert page.locator(".answer").get_attribute("aria-busy") == "true"
    assert stub.running == 1
    page.get_by_role("button", name="Stop").click()
    until(page, lambda: (stub.running, stub.disconnects) == (0, 1))
    text = page.locator(".prose").inner_text()
    assert len(text) > first
    assert "Stopped" in page.locator(".answer").inner_text()
    ask(page, "say: the next call works")
    assert answered(page) == "the next call works"
    ask(page, "go on for ever")
    until(page, "document.querySelectorAll('.prose')[2].textContent.length > 20")
    page.keyboard.press("Escape")
    until(page, lambda: (stub.running, stub.disconnects) == (0, 2))


def test_an_answer_goes_on_behind_another_conversation(stub: Stub, page: Page) -> None:
    stub.token_delay_s = 0.02
    visit(page, stub.url)
    ask(page, "Explain it")
    page.get_by_role("button", name="New chat").click()
    assert page.get_by_role("button", name="Send").count() == 1
    ask(page, "say: quick")
    assert answered(page) == "quick"
    page.get_by_role("button", name="Explain it", exact=True).click()
    assert "ratio(chainring" in answered(page)


def test_errors_are_told_in_the_servers_words(stub: Stub, page: Page, watch: Watch) -> None:
    watch.allowed = ("429",)  # The browser itself logs a failed request.
    visit(page, stub.url)
    ask(page, "say: refuse")
    page.wait_for_selector(".error-note")
    assert "the queue is full" in page.locator(".error-note").inner_text()
    assert "Try again in 3 s" in page.locator(".error-note").inner_text()
    assert page.get_by_role("button", name="Try again").count() == 1
    body = ask(page, "say: half BREAK and more")
    assert [m["content"] for m in body["messages"]] == ["say: half BREAK and more"]
    until(page, "document.querySelectorAll('.error-note').length === 2")
    assert "the engine broke" in page.locator(".error-note").last.inner_text()
    assert "half" in page.locator(".prose").last.inner_text()
    said = page.locator(".error-note strong").all_inner_texts()
    assert said == ["No answer.", "Stopped early."]


def test_a_key_is_asked_for_and_kept_in_the_tab(stub: Stub, page: Page, watch: Watch) -> None:
    watch.allowed = ("401",)
    stub.key = "secret-key"
    page.goto(f"{stub.url}/")
    box = page.get_by_label("API key")
    box.fill("wrong")
    page.get_by_role("button", name="Use this key").click()
    page.wait_for_selector("#key-error:not([hidden])")
    assert "does not know this key" in page.locator("#key-error").inner_text()
    box.fill("secret-key")
    page.keyboard.press("Enter")
    loaded(page)
    ask(page, "say: in")
    assert answered(page) == "in"
    assert "secret-key" not in page.evaluate("JSON.stringify(localStorage)")
    page.get_by_role("tab", name="Code").click()
    assert "secret-key" not in page.locator("#panel-code").inner_text()
    stub.key = "another"
    ask(page, "say: again")
    page.get_by_label("API key").fill("another")
    page.get_by_role("button", name="Use this key").click()
    until(page, "[...document.querySelectorAll('.prose')].at(-1)?.textContent === 'again'")


def test_only_what_the_model_can_do_is_offered(stub: Stub, page: Page) -> None:
    stub.parameters = ["messages", "max_tokens", "stop"]
    stub.vision = False
    visit(page, stub.url)
    shown = page.eval_on_selector_all("[data-parameter]", "all => all.map(e => e.dataset.parameter)")
    assert shown == ["max_tokens", "stop"]
    assert page.get_by_role("button", name="Add a text file", exact=True).is_visible()
    assert page.get_by_role("button", name="Add an image").count() == 0
    setting(page, "Longest answer").fill("7")
    setting(page, "Stop at").fill("END\n\\n\\n")
    body = ask(page, "say: x")
    assert (body["max_tokens"], body["stop"]) == (7, ["END", "\n\n"])
    assert "logprobs" not in body
    answered(page)
    setting(page, "Longest answer").fill("99999")
    assert "1 to 2048" in page.locator("#control-max_tokens-error").inner_text()
    assert "max_tokens" not in ask(page, "say: y")


def test_a_json_schema_forms_the_answer(site: str, page: Page) -> None:
    visit(page, site)
    box = setting(page, "JSON schema")
    error = page.locator("#control-response_format-error")
    schema = {"type": "object", "properties": {"open": {"type": "boolean"}}, "required": ["open"]}
    assert "response_format" not in ask(page, "As it comes")
    answered(page)
    for wrong, words in (('{"type": ', "This is not JSON"), ("[1]", "A schema is an object"), ("7", "is an object")):
        box.fill(wrong)
        assert words in error.inner_text()
        assert box.get_attribute("aria-invalid") == "true"
        assert "response_format" not in ask(page, "Not sent")
        answered(page)
    box.fill(json.dumps(schema))
    assert error.is_hidden()
    assert box.get_attribute("aria-invalid") is None
    expected = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    assert ask(page, "In JSON")["response_format"] == expected
    text = answered(page)
    if page.locator(".model-name").inner_text() == "fake":  # a server that honours it
        assert set(json.loads(text)) == {"open"}
    page.reload()
    loaded(page)
    assert json.loads(box.input_value()) == schema
    page.get_by_role("button", name="Reset JSON schema").click()
    assert box.input_value() == ""
    assert "response_format" not in ask(page, "As it comes")
    answered(page)


def test_images_go_as_data_and_are_made_small(stub: Stub, page: Page) -> None:
    visit(page, stub.url)
    page.evaluate(
        """async () => {
            const canvas = new OffscreenCanvas(4000, 1000);
            canvas.getContext("2d").fillRect(0, 0, 900, 900);
            const files = new DataTransfer();
            files.items.add(new File([await canvas.convertToBlob()], "big.png", { type: "image/png" }));
            const init = { clipboardData: files, bubbles: true, cancelable: true };
            document.querySelector("#message").dispatchEvent(new ClipboardEvent("paste", init));
        }"""
    )
    page.wait_for_selector(".thumbnail img")
    body = ask(page, "say: seen")
    image, text = body["messages"][0]["content"]
    assert text == {"type": "text", "text": "say: seen"}
    assert image["image_url"]["url"].startswith("data:image/png;base64,")
    assert answered(page) == "seen"
    width = page.locator(".pictures img").evaluate("async (e) => (await e.decode(), e.naturalWidth)")
    assert width == 1536
    page.reload()
    assert page.locator(".pictures img").count() == 1


def test_delete_undo_and_export(stub: Stub, page: Page) -> None:
    visit(page, stub.url)
    ask(page, "say: keep me")
    answered(page)
    with page.expect_download() as download:
        page.get_by_role("button", name="Export “say: keep me”").click()
        page.get_by_role("button", name="JSON All branches").click()
    exported = json.loads(Path(download.value.path()).read_text())
    assert [m["content"] for m in exported["messages"]] == ["say: keep me", "keep me"]
    page.get_by_role("button", name="Delete “say: keep me”").click()
    assert page.locator(".conversations li").count() == 0
    page.get_by_role("button", name="Undo").click()
    assert page.locator(".conversations li").count() == 1
    assert page.locator(".prose").inner_text() == "keep me"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390, 360])
def test_everybody_can_use_it(stub: Stub, page: Page, scheme: Any, width: int, shots: Path) -> None:
    page.set_viewport_size({"width": width, "height": 860})
    page.emulate_media(color_scheme=scheme)
    visit(page, stub.url)
    painted(page)
    page.screenshot(path=shots / f"welcome-{width}-{scheme}.png")
    check(page, "welcome")
    ask(page, "Explain how a bicycle drivetrain works")
    answered(page)
    painted(page)
    page.screenshot(path=shots / f"chat-{width}-{scheme}.png")
    check(page, "chat")
    page.get_by_role("button", name="Tokens", exact=True).click()
    page.locator(".token").nth(9).focus()
    page.screenshot(path=shots / f"tokens-{width}-{scheme}.png")
    check(page, "tokens")
    page.keyboard.press("Escape")
    if width < 1120:
        page.get_by_role("button", name="Settings, live view and code").click()
    check(page, "folded settings")
    for tab in ("Settings", "Live", "Code"):
        page.get_by_role("tab", name=tab).click()
        if tab == "Settings":
            unfold(page)
        if tab == "Live":  # Two samples make a line.
            until(page, "document.querySelector('.chart-line').getAttribute('d')?.includes('L')")
        painted(page)
        page.screenshot(path=shots / f"{tab.lower()}-{width}-{scheme}.png")
        check(page, tab)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_checks_see_what_is_wrong(stub: Stub, page: Page, watch: Watch) -> None:
    visit(page, stub.url)
    page.evaluate(
        """() => {
            const pale = Object.assign(document.createElement("p"), { textContent: "pale" });
            pale.style.color = "#bbb";
            const tiny = document.createElement("button");
            tiny.style.cssText = "width: 9px; height: 9px; padding: 0";
            document.querySelector("#thread-inner").append(pale, tiny);
            tiny.setAttribute("style", "color: red"); // What the policy forbids.
        }"""
    )
    until(page, lambda: any("Content Security Policy" in text for text in watch.complaints))
    found = page.evaluate(AUDIT)
    assert len(found["nameless"]) == 1
    assert len(found["pale"]) == 1
    watch.complaints.clear()


def check(page: Page, where: str) -> None:
    found = page.evaluate(AUDIT)
    for name in ("nameless", "pale", "doubled", "dangling", "small"):
        assert found[name] == [], f"{where}: {name}"
    assert (found["inline"], found["lang"]) == (0, "en")
    assert found["landmarks"] == [1, 1]


def test_the_keyboard_reaches_everything_in_order(stub: Stub, page: Page) -> None:
    visit(page, stub.url)
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip-link"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "message"
    unfold(page)
    page.reload()
    loaded(page)
    seen = []
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement === document.body"):
            break
        seen.append(page.evaluate("document.activeElement.id || document.activeElement.className"))
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none" or seen[-1] == "message", seen[-1]
    landmarks = [
        "skip-link",
        "new-chat",
        "theme",
        "inspector-toggle",
        "thread",
        "suggestion",
        "message",
        "attach",
        "send",
    ]
    order = [seen.index(name) for name in [*landmarks, "tab-settings", "system", "control-temperature"]]
    assert order == sorted(order)
    page.get_by_role("tab", name="Settings").focus()
    page.keyboard.press("ArrowRight")
    assert page.get_by_role("tab", name="Live").get_attribute("aria-selected") == "true"


def test_a_drawer_takes_and_gives_back_the_focus(stub: Stub, page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    visit(page, stub.url)
    page.get_by_role("button", name="Conversations").click()
    assert page.evaluate("document.activeElement.id") == "sidebar-close"
    assert page.evaluate("document.querySelector('#main').inert")
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.id") == "sidebar-open"
    assert not page.evaluate("document.querySelector('#main').inert")


def test_the_theme_is_kept(stub: Stub, page: Page) -> None:
    page.emulate_media(color_scheme="light")
    visit(page, stub.url)
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_role("button", name="Theme: System").click()
    page.get_by_role("button", name="Theme: Light").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_a_screen_reader_hears_the_answer_once(stub: Stub, page: Page) -> None:
    visit(page, stub.url)
    page.evaluate(
        """() => {
            window.heard = [];
            const region = document.querySelector("#announcer");
            const hear = () => region.textContent && heard.push(region.textContent);
            new MutationObserver(hear).observe(region, { childList: true });
        }"""
    )
    ask(page, "Explain it")
    answered(page)
    until(page, "heard.length > 1")
    painted(page)
    assert page.evaluate("heard") == ["Waiting for the answer", f"Answer: {REPLY}"]
    assert page.locator("#thread").get_attribute("aria-live") == "off"
