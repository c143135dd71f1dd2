"""Finding one file's URL on the simple page of a Python package index, HTML (PEP 503) or JSON (PEP 691).

Only this file name is looked for; nothing is resolved, compared or installed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from urllib.parse import unquote, urldefrag, urlsplit

from drivetrain.core.errors import LoadFailed, ModelNotFound
from drivetrain.store.connection import Address
from drivetrain.store.download import Downloader, Page

DEFAULT_INDEX_URL = "https://pypi.org/simple/"
INDEX_VARIABLES = ("DRIVETRAIN_INDEX_URL", "PIP_INDEX_URL", "UV_INDEX_URL")
MAX_PAGE_BYTES = 32 * 1024 * 1024

_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1, */*;q=0.01"


@dataclass(frozen=True, slots=True)
class FileLink:
    """A file that the index offers. `sha256` is what the index says of it, if anything."""

    filename: str
    address: Address
    sha256: str | None


def index_url(environ: Mapping[str, str] | None = None) -> str:
    env = os.environ if environ is None else environ
    return next((env[name] for name in INDEX_VARIABLES if env.get(name)), DEFAULT_INDEX_URL)


def find_file(project: str, filename: str, downloader: Downloader) -> FileLink:
    """Where the file is. Raises `ModelNotFound` if the index does not have it, `LoadFailed` if it cannot tell."""
    what = f"the index page of {project}"
    base = Address.parse(index_url(), what)
    normalized = re.sub(r"[-_.]+", "-", project).lower()
    page_address = base.join(f"{base.url.rstrip('/')}/{normalized}/", what)
    not_there = ModelNotFound(
        f"the package index at {base.host} does not have {filename}; "
        "set DRIVETRAIN_INDEX_URL to one that has it, or put the file into a folder named by PIP_FIND_LINKS"
    )
    try:
        page = downloader.read_page(page_address, what=what, accept=_ACCEPT, max_bytes=MAX_PAGE_BYTES)
    except ModelNotFound as exc:
        raise not_there from exc
    for name, link, sha256 in _links(page, what):
        if name == filename:
            return FileLink(name, page.address.join(link, filename), sha256)
    raise not_there


def _links(page: Page, what: str) -> Iterator[tuple[str, str, str | None]]:
    """File name, link and sha256 of everything on the page."""
    try:
        text = page.body.decode("utf-8")
        if page.content_type.split(";")[0].strip().lower() in _JSON_TYPES:
            yield from _json_links(json.loads(text))
        else:
            yield from _html_links(text)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise LoadFailed(f"{page.address.host} sends {what} in a form that cannot be read") from exc


_JSON_TYPES = frozenset({"application/vnd.pypi.simple.v1+json", "application/json"})


def _json_links(data: Mapping[str, list[Mapping[str, object]]]) -> Iterator[tuple[str, str, str | None]]:
    for item in data["files"]:
        hashes = item.get("hashes")
        sha256 = hashes.get("sha256") if isinstance(hashes, dict) else None
        yield str(item["filename"]), str(item["url"]), sha256 if isinstance(sha256, str) else None


def _html_links(text: str) -> Iterator[tuple[str, str, str | None]]:
    anchors = _Anchors()
    anchors.feed(text)
    for href in anchors.hrefs:
        url, fragment = urldefrag(href)
        name = unquote(urlsplit(url).path).rsplit("/", 1)[-1]
        sha256 = fragment.removeprefix("sha256=").split("&")[0] if fragment.startswith("sha256=") else None
        yield name, url, sha256


class _Anchors(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.hrefs: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.hrefs.extend(value for name, value in attrs if name == "href" and value)
