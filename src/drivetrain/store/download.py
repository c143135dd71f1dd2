"""Downloading one file whose sha256 is known: retried, resumed by the next call, and under its name only when whole.

The sha256 alone decides whether pieces that came at different times belong together.
"""

from __future__ import annotations

import http
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from drivetrain.core.errors import LoadFailed
from drivetrain.store.connection import DownloadUrl, Interrupted, chunks, opened
from drivetrain.store.digests import sha256_of
from drivetrain.store.display import size as size_text
from drivetrain.store.layout import free_bytes, require_space

WORTHWHILE_BYTES = 1024 * 1024
"""An attempt that brought this much does not count as a failed one."""

BytesProgress = Callable[[int, int | None], None]
"""Called with the bytes that are there and the bytes that there will be (None: unknown)."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class WebPage:
    body: bytes
    content_type: str
    url: DownloadUrl
    """Where it was found after redirects: its links are relative to this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Downloader:
    """How patient to be, and what tests replace."""

    timeout_s: float = 30.0
    max_failures: int = 6
    max_unreached: int = 2
    first_delay_s: float = 0.5
    sleep: Callable[[float], None] = time.sleep
    free_bytes: Callable[[Path], int] = free_bytes

    def fetch(
        self,
        url: DownloadUrl,
        target: Path,
        *,
        what: str,
        sha256: str,
        reserve_bytes: int = 0,
        progress: BytesProgress | None = None,
    ) -> None:
        """Bring the file to `target`; `reserve_bytes` more must be free on the disk.

        Raises `LoadFailed` or `ModelNotFound`. An incomplete file stays beside the target, for the next call to
        continue; one with the wrong sha256 does not.
        """
        if target.exists() and sha256_of(target) == sha256:
            return
        part = target.with_name(f"{target.name}.part")
        for _ in range(2):  # pieces that do not fit together are replaced once, from the start
            in_one_piece = self._retried(what, lambda: self._receive(url, part, what, reserve_bytes, progress), part)
            if sha256_of(part) == sha256:
                part.replace(target)
                return
            part.unlink()
            if in_one_piece:
                break
        raise LoadFailed(
            f"what {url.host} sent as {what} has the wrong sha256 and was deleted; "
            "run it again; if this happens again, do not trust that source"
        )

    def read_page(self, url: DownloadUrl, *, what: str, accept: str, max_bytes: int) -> WebPage:
        """A small document, whole. Raises `LoadFailed` or `ModelNotFound`."""

        def attempt() -> WebPage:
            body = bytearray()
            with opened(url, what, headers={"Accept": accept}, timeout_s=self.timeout_s) as response:
                for chunk in chunks(response, url.host):
                    body += chunk
                    if len(body) > max_bytes:
                        raise LoadFailed(f"{url.host} sends more than {size_text(max_bytes)} as {what}")
                return WebPage(bytes(body), response.headers.get("Content-Type", ""), url.join(response.url, what))

        return self._retried(what, attempt)

    def _retried(self, what: str, attempt: Callable[[], _T], part: Path | None = None) -> _T:
        """Repeat `attempt` until it succeeds or too many have failed. When `part` grows, the count starts again."""
        failures = 0
        ever_reached = False
        while True:
            before = _size(part)
            try:
                return attempt()
            except Interrupted as exc:
                ever_reached = ever_reached or exc.reached
                failures = 1 if _size(part) - before >= WORTHWHILE_BYTES else failures + 1
                if failures >= (self.max_failures if ever_reached else self.max_unreached):
                    raise exc.give_up(what) from exc
                self.sleep(max(self.first_delay_s * 2 ** (failures - 1), exc.retry_after_s))

    def _receive(
        self, url: DownloadUrl, part: Path, what: str, reserve_bytes: int, progress: BytesProgress | None
    ) -> bool:
        """Continue where `part` ends. Raises `Interrupted`. Returns whether the file came in one piece."""
        start = _size(part)
        headers = {"Range": f"bytes={start}-"} if start else {}
        with opened(url, what, headers=headers, timeout_s=self.timeout_s) as response:
            if response.status == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                if not start:
                    raise Interrupted(url.host, "HTTP 416", reached=True)
                return False  # nothing follows our last byte
            if response.status != http.HTTPStatus.PARTIAL_CONTENT:
                start = 0  # the server ignores ranges
            total = None if response.length is None else start + response.length
            require_space(what, (response.length or 0) + reserve_bytes, self.free_bytes(part.parent))
            with part.open("ab" if start else "wb") as file:
                for chunk in chunks(response, url.host):
                    file.write(chunk)
                    if progress is not None:
                        progress(file.tell(), total)
        return start == 0


def _size(path: Path | None) -> int:
    return path.stat().st_size if path is not None and path.exists() else 0
