"""The web page: the files in `page/`, and nothing else on this machine. They are the same for all, and need no key."""

from __future__ import annotations

import hashlib
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from drivetrain.server.context import Context

FOLDER = Path(__file__).parents[1] / "page"

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
}


_FILES = {
    f"/{path.relative_to(FOLDER).as_posix()}": path
    for path in FOLDER.rglob("*")
    if path.is_file() and path.suffix in _TYPES
}
"""By their paths: no path from a client is ever followed."""

PAGE_PATHS = frozenset(["/", *_FILES])


async def page(request: Request, context: Context) -> Response:
    """Browsers always ask again, and get the file only if it changed: after an upgrade, old and new files never mix."""
    content, media_type = _read(request.scope["path"])
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {"cache-control": "no-cache", "etag": etag}
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type=media_type)


def _read(name: str) -> tuple[bytes, str]:
    path = _FILES.get("/index.html" if name == "/" else name)
    if path is None:
        raise HTTPException(404)
    return path.read_bytes(), _TYPES[path.suffix]
