"""The web page: the files in `page/`, and nothing else on this machine."""

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


async def page(request: Request, context: Context) -> Response:
    """Browsers always ask again, and get the file only if it changed: after an upgrade, old and new files never mix."""
    content, media_type = _read(request.path_params.get("name") or "index.html")
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {"cache-control": "no-cache", "etag": etag}
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type=media_type)


def _read(name: str) -> tuple[bytes, str]:
    """A small file of our package, found by its plain name: no path from a client is ever followed."""
    path = next((path for path in FOLDER.iterdir() if path.name == name), None) if FOLDER.is_dir() else None
    if path is None or path.suffix not in _TYPES or not path.is_file():
        raise HTTPException(404)
    return path.read_bytes(), _TYPES[path.suffix]
