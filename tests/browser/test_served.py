"""The page on servers that a stub is no match for: one that wants a key, and one whose model sees images."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Error, Page

from browser.conftest import command
from browser.driving import answered, ask, loaded, until, visit
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


def test_without_the_key_there_is_no_page(locked: str, context: BrowserContext) -> None:
    for path in ("/", "/app.js", "/v1/models", "/status"):
        assert context.request.get(f"{locked}{path}").status == 401
    answer = context.request.get(f"{locked}/", headers={"accept": "text/html"})
    assert (answer.status, answer.headers["www-authenticate"][:6]) == (401, "Basic ")
    page = context.new_page()
    with pytest.raises(Error, match="ERR_INVALID_AUTH_CREDENTIALS"):  # Nobody is there to type them in.
        page.goto(f"{locked}/")
    assert page.locator("#message").count() == 0


class TestWithTheKey:
    @pytest.fixture
    def options(self) -> dict[str, Any]:
        """As if the user had typed the key into the browser's own box."""
        return {"http_credentials": {"username": "me", "password": KEY}}

    def test_the_page_loads_and_chats(self, locked: str, page: Page) -> None:
        visit(page, locked)
        assert not page.locator("#key-dialog").is_visible()
        ask(page, "Hello there")
        assert answered(page)
        assert page.locator(".error-note").count() == 0
        page.get_by_role("tab", name="Live").click()
        page.wait_for_selector(".state[data-state=ready]")
        page.get_by_role("tab", name="Code").click()
        assert KEY not in page.locator("#panel-code").inner_text()
        assert KEY not in page.evaluate("JSON.stringify({ ...localStorage, ...sessionStorage })")
        page.reload()
        loaded(page)
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
    page.get_by_role("textbox", name="Temperature", exact=True).fill("0")  # The fake then says it straight.


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
    page.locator("#image-file").set_input_files(file)
    page.get_by_role("button", name="Remove image 1").click()
    assert ask(page, "Nothing to see")["messages"] == [{"role": "user", "content": "Nothing to see"}]
    assert answered(page) == "I see 0."
