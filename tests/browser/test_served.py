"""The page on servers that a stub is no match for: one that wants a key, and one whose model sees images."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page

from browser.conftest import Watch, command
from browser.driving import answered, ask, loaded, setting, until, visit
from drivetrain.core.engine import EngineRequest
from server.serving import Served, fake, serving
from tiny import pictures

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

KEY = "a-key-for-the-test"


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`drivetrain serve fake` with a file of keys."""
    file = tmp_path_factory.mktemp("keys") / "keys.txt"
    file.write_text(f"# for the test\n{KEY}\n")
    with command("fake", "--api-key-file", str(file)) as address:
        yield address


def test_the_page_asks_for_the_key_itself(locked: str, context: BrowserContext, page: Page, watch: Watch) -> None:
    """Not the browser, whose box nobody here could fill in: the page's own files need no key, all else does."""
    watch.allowed = ("401",)
    for path in ("/v1/models", "/status", "/metrics", "/openapi.json", "/nothing.js"):
        assert context.request.get(f"{locked}{path}").status == 401
    page.goto(f"{locked}/")
    page.get_by_label("API key").fill("wrong")
    page.keyboard.press("Enter")
    page.wait_for_selector("#key-error:not([hidden])")
    page.get_by_label("API key").fill(KEY)
    page.keyboard.press("Enter")
    loaded(page)
    ask(page, "Hello there")
    assert answered(page)
    page.get_by_role("tab", name="Live").click()
    page.wait_for_selector(".state[data-state=ready]")
    page.get_by_role("tab", name="Code").click()
    assert KEY not in page.locator("#panel-code").inner_text()
    assert KEY not in page.evaluate("JSON.stringify(localStorage)")
    page.reload()
    loaded(page)
    assert not page.locator("#key-dialog").is_visible()
    assert page.locator(".bubble").inner_text() == "Hello there"


class Seen:
    """The images that reached the engine, as it got them."""

    def __init__(self) -> None:
        self.images: list[Any] = []

    def reply(self, request: EngineRequest) -> bytes:
        images = request.media.images if request.media else ()
        self.images += images
        return f"I see {len(images)}.".encode()


@pytest.fixture
def seeing() -> Iterator[tuple[Served, Seen]]:
    seen = Seen()
    with serving(fake(vision=True, reply=seen.reply)) as served:
        yield served, seen


def test_a_chosen_image_reaches_the_model(seeing: tuple[Served, Seen], page: Page, tmp_path: Path) -> None:
    served, seen = seeing
    file = tmp_path / "stripes.png"
    file.write_bytes(pictures.png(pictures.stripes(64, 48)))
    visit_seeing(page, served.base)
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Add an image").click()
    chooser.value.set_files(file)
    check_sent(page, seen, pictures.stripes(64, 48))


def test_a_dropped_image_reaches_the_model(seeing: tuple[Served, Seen], page: Page) -> None:
    served, seen = seeing
    visit_seeing(page, served.base)
    files = page.evaluate_handle(
        """async (address) => {
            const files = new DataTransfer();
            const bytes = Uint8Array.from(atob(address.split(",")[1]), (char) => char.charCodeAt(0));
            files.items.add(new File([bytes], "circle.png", { type: "image/png" }));
            return files;
        }""",
        pictures.data_uri(pictures.circle(64, 48)),
    )
    page.locator("#thread").dispatch_event("dragenter", {"dataTransfer": files})
    page.locator("#drop-veil").wait_for(state="visible")
    page.locator("#drop-veil").dispatch_event("drop", {"dataTransfer": files})
    page.locator("#drop-veil").wait_for(state="hidden")
    check_sent(page, seen, pictures.circle(64, 48))


def visit_seeing(page: Page, address: str) -> None:
    visit(page, address)
    setting(page, "Temperature").fill("0")  # The fake then says it straight.


def check_sent(page: Page, seen: Seen, picture: Any) -> None:
    page.get_by_role("img", name="Image 1 to send").wait_for()
    image, text = ask(page, "What is in it?")["messages"][0]["content"]
    assert text == {"type": "text", "text": "What is in it?"}
    assert re.match("data:image/png;base64,", image["image_url"]["url"])
    assert answered(page) == "I see 1."
    (got,) = seen.images
    assert (got.size, got.tobytes()) == (picture.size, picture.tobytes())
    assert page.locator(".attachments img").count() == 0
    until(page, "document.querySelector('.pictures img').naturalWidth === 64")


def test_a_picture_can_be_taken_back(seeing: tuple[Served, Seen], page: Page, tmp_path: Path) -> None:
    served, _ = seeing
    file = tmp_path / "circle.png"
    file.write_bytes(pictures.png(pictures.circle()))
    visit_seeing(page, served.base)
    page.locator("#file").set_input_files(file)
    page.get_by_role("button", name="Remove image 1").click()
    assert ask(page, "Nothing to see")["messages"] == [{"role": "user", "content": "Nothing to see"}]
    assert answered(page) == "I see 0."
