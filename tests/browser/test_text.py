"""What an answer's text may be: written from right to left, JSON that was asked for, code in colours, formulas."""

from __future__ import annotations

import json
from typing import Literal

import pytest
from playwright.sync_api import Page, expect

from browser.conftest import Watch
from browser.driving import answered, ask, loaded, setting, until, visit
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


CODE = """```python
def f(x: int = 1) -> str:  # <b>not bold</b>
    return "a" * x
```

```nonsense"><b>
x = 1
```
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_code_has_colours(stub: Stub, page: Page, watch: Watch, scheme: Literal["light", "dark"]) -> None:
    def libraries() -> list[str]:
        return [url.rpartition("/")[2] for url in watch.addresses if "/vendor/" in url]

    page.emulate_media(color_scheme=scheme)
    visit(page, stub.url)
    ask(page, "say: plain `code`")
    answered(page)
    assert libraries() == [], "nothing is loaded before it is needed"
    ask(page, f"say: {CODE}")
    answered(page)
    until(page, "document.querySelector('.prose .c-keyword')")
    assert libraries() == ["highlight.js", "highlight-python.js"]
    blocks = page.locator(".code code")
    assert blocks.first.text_content() == CODE.split("```")[1].removeprefix("python\n").removesuffix("\n")
    colours = "all => [...new Set(all.map(e => getComputedStyle(e).color))]"
    assert len(page.eval_on_selector_all(".code span[class^=c-]", colours)) >= 4
    assert page.locator(".code b").count() == 0
    assert blocks.last.locator("span").count() == 0
    check(page, "colours")


def test_every_language_can_be_loaded(stub: Stub, page: Page) -> None:
    visit(page, stub.url)
    failed = page.evaluate(
        """async () => {
            const { LANGUAGES, ALIASES, colour } = await import("/colours.js");
            const wrong = Object.values(ALIASES).filter((name) => !LANGUAGES.includes(name));
            for (const language of LANGUAGES) {
                const code = document.createElement("code");
                code.textContent =
                    'if (a) { b = "c" + 1 } // d\\nfunction e() {}\\n<f g="h">i</f>\\n# j\\nk: 1\\n+l\\n';
                document.body.append(code);
                colour(code, language);
                const end = Date.now() + 30000;
                while (!code.querySelector("span") && Date.now() < end) await new Promise((go) => setTimeout(go, 10));
                if (!code.querySelector("span")) wrong.push(language);
                code.remove();
            }
            return wrong;
        }"""
    )
    assert failed == []


FORMULAS = r"""Pythagoras: $a^2 + b^2 = c^2$, and \(\sqrt{2}\).

$$
\sum_{i=1}^n i = \frac{n(n+1)}{2}
$$

\[ \begin{aligned} x &= 1 \\ y &= 2 \end{aligned} \]

It costs $5 or $6, not US$ 7; `$x$` and $HOME/bin:$PATH stay. Wrong: $\nonsense{$ \(\frac{1\)

$\href{javascript:alert(1)}{x}$ $\boxed{y}$
"""


def test_formulas_are_set(stub: Stub, page: Page, watch: Watch) -> None:
    visit(page, stub.url)
    ask(page, f"say: {FORMULAS}")
    answered(page)
    until(page, "document.querySelectorAll('.formula math').length >= 5")
    assert [url.rpartition("/")[2] for url in watch.addresses if "/vendor/" in url] == ["temml.js"]
    assert page.locator(".prose > .formula.block").count() == 2
    assert page.locator(".formula:has(msqrt)").count() == 1
    assert page.locator(".formula.block:has(munderover):has(mfrac)").count() == 1
    said = page.locator(".prose p").nth(1).inner_text()
    assert said.startswith("It costs $5 or $6, not US$ 7; $x$ and $HOME/bin:$PATH stay. Wrong: $\\nonsense{$")
    assert "\\(\\frac{1\\)" in said
    assert page.locator(".prose a").count() == 0
    check(page, "formulas")
    page.reload()
    loaded(page)
    expect(page.locator(".formula:has(msqrt)")).to_have_count(1)


def test_a_library_that_cannot_be_loaded_is_not_missed(stub: Stub, page: Page, watch: Watch) -> None:
    watch.allowed = ("Failed to load", "ERR_FAILED")
    page.route("**/vendor/*", lambda route: route.abort())
    visit(page, stub.url)
    ask(page, f"say: {CODE}\n\n$$x^2$$")
    answered(page)
    until(page, lambda: len([url for url in watch.addresses if "/vendor/" in url]) >= 2)
    assert page.locator(".code code").first.inner_text().startswith("def f(x: int")
    assert page.locator(".formula").inner_text() == "$$x^2$$"
