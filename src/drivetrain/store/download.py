"""Fetching one file over HTTP so that it can be broken off anywhere and resumed: `.part` file, Range, retries, sha256.

The file gets its name only when it is whole and checked. Where it comes from is the caller's affair.
"""

from __future__ import annotations

import http
import json
import re
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from drivetrain.core.errors import LoadFailed
from drivetrain.store.connection import Address, Interrupted, Response, opened
from drivetrain.store.display import size as size_text
from drivetrain.store.manifest import sha256_of

CHUNK_BYTES = 256 * 1024
WORTHWHILE_BYTES = 1024 * 1024
"""An attempt that brought this much does not count as a failed one."""

BytesProgress = Callable[[int, int | None], None]
"""Called with the bytes that are there and the bytes that there will be (None: unknown)."""

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


def free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


@dataclass(frozen=True, slots=True)
class Page:
    body: bytes
    content_type: str
    address: Address
    """Where it was found in the end, after redirects: links are relative to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Downloader:
    """How patient to be, and the doors to the world that tests replace."""

    timeout_s: float = 30.0
    max_failures: int = 6
    max_unreached: int = 2
    first_delay_s: float = 0.5
    sleep: Callable[[float], None] = time.sleep
    free_bytes: Callable[[Path], int] = free_bytes

    def fetch(
        self,
        address: Address,
        target: Path,
        *,
        what: str,
        sha256: str,
        reserve_bytes: int = 0,
        progress: BytesProgress | None = None,
    ) -> None:
        """Bring the file, whole and with this sha256, to `target`; `reserve_bytes` more must fit on the disk.

        Raises `LoadFailed` or `ModelNotFound`. What came so far stays beside the target for the next call, unless
        it proved wrong.
        """
        if target.exists():
            if sha256_of(target) == sha256:
                return
            target.unlink()
        part = _Part.beside(target)
        resumed = part.size > 0
        self._receive(_Transfer(self, address, part, what, reserve_bytes, progress))
        if sha256_of(part.path) != sha256:
            part.drop()
            if not resumed:
                raise LoadFailed(
                    f"what {address.host} sent as {what} has the wrong sha256 and was deleted; "
                    "run it again; if this happens again, do not trust that source"
                )
            # The beginning may be of another day's file: once more, from the start.
            self.fetch(address, target, what=what, sha256=sha256, reserve_bytes=reserve_bytes, progress=progress)
            return
        part.finish(target)

    def read_page(self, address: Address, *, what: str, accept: str, max_bytes: int) -> Page:
        """A whole small document. Raises `LoadFailed` or `ModelNotFound`."""

        def attempt() -> Page:
            headers = {"Accept": accept, "Accept-Encoding": "identity"}
            with opened(address, what, headers=headers, timeout_s=self.timeout_s) as answer:
                body = _read_all(answer, max_bytes + 1)
                if len(body) > max_bytes:
                    raise LoadFailed(f"{address.host} sends more than {size_text(max_bytes)} as {what}")
                if answer.length is not None and len(body) < answer.length:
                    raise Interrupted(address.host, "the connection broke off", reached=True)
                return Page(body, answer.header("Content-Type"), address.join(answer.url, what))

        failures = 0
        while True:
            try:
                return attempt()
            except Interrupted as exc:
                failures += 1
                self._wait_or_give_up(exc, failures, what, ever_reached=exc.reached)

    def _receive(self, transfer: _Transfer) -> None:
        failures = 0
        ever_reached = False
        while True:
            before = transfer.part.size
            try:
                transfer.attempt()
            except Interrupted as exc:
                ever_reached = ever_reached or exc.reached
                failures = 1 if transfer.part.size - before >= WORTHWHILE_BYTES else failures + 1
                self._wait_or_give_up(exc, failures, transfer.what, ever_reached=ever_reached)
            else:
                return

    def _wait_or_give_up(self, exc: Interrupted, failures: int, what: str, *, ever_reached: bool) -> None:
        if failures >= (self.max_failures if ever_reached else self.max_unreached):
            raise exc.give_up(what) from exc
        delay_s = self.first_delay_s * 2 ** (failures - 1)
        self.sleep(max(delay_s, exc.retry_after_s or 0.0))


@dataclass(frozen=True, slots=True)
class _Transfer:
    """One file on its way: each attempt goes on where the last one broke off, if the server lets it."""

    downloader: Downloader
    address: Address
    part: _Part
    what: str
    reserve_bytes: int
    progress: BytesProgress | None

    def attempt(self) -> None:
        """Receive until the end. Raises `Interrupted` when it breaks off."""
        start = self.part.size
        headers = {"Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
            if etag := self.part.etag():
                headers["If-Range"] = etag
        timeout_s = self.downloader.timeout_s
        with opened(self.address, self.what, headers=headers, timeout_s=timeout_s) as answer:
            if answer.status == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                self._judge_refused_range(answer, start)
                return
            if answer.status == http.HTTPStatus.PARTIAL_CONTENT:
                total = self._check_range(answer, start)
            else:  # the whole file: the server ignores ranges, or has another file by now
                start = 0
                total = answer.length
            self._check_space(start, total)
            self.part.remember(answer.header("ETag"))
            done = self._copy(answer, start, total)
        if total is not None and done < total:
            raise Interrupted(self.address.host, f"it broke off at {done} of {total} bytes", reached=True)

    def _judge_refused_range(self, answer: Response, start: int) -> None:
        """Nothing follows our last byte: then we have it all, or something else."""
        if answer.header("Content-Range") != f"bytes */{start}":
            self.part.drop()
            raise Interrupted(self.address.host, "the rest does not match what came before", reached=True)

    def _check_range(self, answer: Response, start: int) -> int | None:
        match = _CONTENT_RANGE.fullmatch(answer.header("Content-Range"))
        etag, known = answer.header("ETag"), self.part.etag()
        if match is None or int(match[1]) != start or (etag and known and etag != known):
            self.part.drop()
            raise Interrupted(self.address.host, "the rest does not match what came before", reached=True)
        return None if match[3] == "*" else int(match[3])

    def _check_space(self, start: int, total: int | None) -> None:
        needed = (total or start) - start + self.reserve_bytes
        free = self.downloader.free_bytes(self.part.path.parent)
        if free < needed:
            raise LoadFailed(
                f"not enough disk space for {self.what}: {size_text(needed)} are needed, {size_text(free)} are free; "
                "free some space, or set DRIVETRAIN_HOME to a folder on a larger disk"
            )

    def _copy(self, answer: Response, start: int, total: int | None) -> int:
        done = start
        with self.part.path.open("r+b" if start else "wb") as file:
            file.seek(start)
            while chunk := answer.read(CHUNK_BYTES):
                file.write(chunk)
                done += len(chunk)
                if self.progress is not None:
                    self.progress(done, total)
        return done


def _read_all(answer: Response, max_bytes: int) -> bytes:
    body = bytearray()
    while len(body) < max_bytes and (chunk := answer.read(min(CHUNK_BYTES, max_bytes - len(body)))):
        body += chunk
    return bytes(body)


@dataclass(frozen=True, slots=True)
class _Part:
    """The bytes that came so far, and beside them the entity tag that they belong to."""

    path: Path
    note: Path

    @staticmethod
    def beside(target: Path) -> _Part:
        return _Part(target.with_name(target.name + ".part"), target.with_name(target.name + ".part.json"))

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def etag(self) -> str | None:
        """A strong one only: a weak one does not promise the same bytes."""
        with suppress(OSError, ValueError, TypeError, KeyError):
            etag = json.loads(self.note.read_bytes())["etag"]
            if isinstance(etag, str) and etag.startswith('"'):
                return etag
        return None

    def remember(self, etag: str) -> None:
        self.note.write_text(json.dumps({"etag": etag}))

    def drop(self) -> None:
        self.path.unlink(missing_ok=True)
        self.note.unlink(missing_ok=True)

    def finish(self, target: Path) -> None:
        self.note.unlink(missing_ok=True)
        self.path.rename(target)
