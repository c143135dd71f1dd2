"""Finding a file's URL on a project's page of a Python package index, HTML (PEP 503) or JSON (PEP 691).

Only this file name is looked for: no versions are compared, and nothing is installed.
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
from drivetrain.store.connection import DownloadUrl
from drivetrain.store.download import Downloader, WebPage

DEFAULT_INDEX_URL = "https://pypi.org/simple/"
INDEX_VARIABLES = ("DRIVETRAIN_INDEX_URL", "PIP_INDEX_URL", "UV_INDEX_URL")
MAX_PAGE_BYTES = 32 * 1024 * 1024

_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1, */*;q=0.01"


@dataclass(frozen=True, slots=True)
class FileLink:
    """A file that the index offers, with the sha256 that the index gives for it, if it gives one."""

    url: DownloadUrl
    sha256: str | None


def index_url(environ: Mapping[str, str] | None = None) -> str:
    env = os.environ if environ is None else environ
    return next((env[name] for name in INDEX_VARIABLES if env.get(name)), DEFAULT_INDEX_URL)


def find_file(project: str, filename: str, downloader: Downloader) -> FileLink:
    """Raises `ModelNotFound` if the index does not have the file, `LoadFailed` if it cannot be asked."""
    what = f"the index page of {project}"
    base = DownloadUrl.parse(index_url(), what)
    normalized = re.sub(r"[-_.]+", "-", project).lower()
    page_url = base.join(f"{base.text.rstrip('/')}/{normalized}/", what)
    not_there = ModelNotFound(
        f"the package index at {base.host} does not have {filename}; "
        "set DRIVETRAIN_INDEX_URL to one that has it, or put the file into a folder named by PIP_FIND_LINKS"
    )
    try:
        page = downloader.read_page(page_url, what=what, accept=_ACCEPT, max_bytes=MAX_PAGE_BYTES)
    except ModelNotFound as exc:
        raise not_there from exc
    for name, link, sha256 in _links(page, what):
        if name == filename:
            return FileLink(page.url.join(link, filename), sha256)
    raise not_there


def _links(page: WebPage, what: str) -> Iterator[tuple[str, str, str | None]]:
    """Name, link and sha256 of each file on the page."""
    try:
        text = page.body.decode("utf-8")
        if page.content_type.split(";")[0].strip().lower() in _JSON_TYPES:
            yield from _json_links(json.loads(text))
        else:
            yield from _html_links(text)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise LoadFailed(f"{page.url.host} sends {what} in a form that cannot be read") from exc


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
