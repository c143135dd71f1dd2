"""A headless Chromium, and the servers that the page is driven on.

What every server must give the page runs on the stub, on `drivetrain serve fake`, and on a server named in
DRIVETRAIN_URL if there is one. Without Chromium these tests fail: who runs them wants them run. The browser lives as
long as one module: playwright's loop must not be there when another module's asyncio tests run.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, sync_playwright

from browser.driving import TIMEOUT_S
from browser.stub import Stub, serving

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser") or ""
URL = os.environ.get("DRIVETRAIN_URL", "").rstrip("/")
ARGS = [
    *("--no-sandbox", "--headless", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not CHROMIUM:
        pytest.fail("there is no Chromium: install Debian's, or name one in CHROMIUM")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGS, timeout=1000 * TIMEOUT_S)
        yield browser
        browser.close()


@pytest.fixture
def stub() -> Iterator[Stub]:
    with serving(Stub()) as stub:
        yield stub


@contextlib.contextmanager
def command(*arguments: str) -> Iterator[str]:
    """`drivetrain serve …` on a free port; its address."""
    started = [sys.executable, "-m", "drivetrain", "serve", *arguments, "--port", "0"]
    environment = {name: value for name, value in os.environ.items() if name != "DRIVETRAIN_API_KEY"}
    with subprocess.Popen(
        started, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            said = ""
            for line in process.stdout:
                said += line
                if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                    yield found[0]
                    break
            else:
                pytest.fail(f"the server did not start: {said}")
        finally:
            process.terminate()
            process.communicate(timeout=60)


@pytest.fixture(scope="module")
def served_fake() -> Iterator[str]:
    with command("fake") as address:
        yield address


@pytest.fixture(params=["stub", "fake", *(["url"] if URL else [])])
def site(request: pytest.FixtureRequest) -> str:
    """The address of a server of each kind, for what holds on all of them."""
    if request.param == "stub":
        return str(request.getfixturevalue("stub").url)
    return URL if request.param == "url" else str(request.getfixturevalue("served_fake"))


class Watch:
    """What must never happen on the page: an error on the console, a violation of the policy, a foreign request."""

    def __init__(self, context: BrowserContext) -> None:
        self.complaints: list[str] = []
        self.addresses: list[str] = []
        self.allowed: tuple[str, ...] = ()
        context.on("console", self.hear)
        context.on("weberror", lambda error: self.complain(str(error.error)))
        context.on("request", lambda request: self.addresses.append(request.url))

    def hear(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.complain(message.text)

    def complain(self, text: str) -> None:
        if not any(part in text for part in self.allowed):
            self.complaints.append(text)

    def foreign(self, origin: str) -> list[str]:
        return [url for url in self.addresses if not url.startswith((f"{origin}/", "data:", "blob:"))]


@pytest.fixture
def options() -> dict[str, Any]:
    """Of the browser's context, for a module that wants others."""
    return {}


@pytest.fixture
def context(browser: Browser, options: dict[str, Any]) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport={"width": 1280, "height": 860}, reduced_motion="reduce", **options)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    context.set_default_timeout(1000 * TIMEOUT_S)
    yield context
    context.close()


@pytest.fixture
def watch(context: BrowserContext) -> Watch:
    return Watch(context)


@pytest.fixture
def page(context: BrowserContext, watch: Watch) -> Iterator[Page]:
    page = context.new_page()
    yield page
    origin = page.url.split("/", 3)
    assert watch.complaints == []
    assert watch.foreign("/".join(origin[:3])) == []


@pytest.fixture(params=[1280, 390])
def sized(request: pytest.FixtureRequest, page: Page) -> Page:
    """The page at the width of a desktop and of a phone."""
    page.set_viewport_size({"width": request.param, "height": 860})
    return page


@pytest.fixture(scope="session")
def shots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the screenshots go: DRIVETRAIN_SHOTS, or a folder of pytest's."""
    folder = (
        Path(os.environ["DRIVETRAIN_SHOTS"]) if "DRIVETRAIN_SHOTS" in os.environ else tmp_path_factory.mktemp("shots")
    )
    folder.mkdir(parents=True, exist_ok=True)
    return folder
