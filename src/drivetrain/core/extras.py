"""How to install what is optional, by the way in which the package itself was installed."""

from __future__ import annotations

import json
from functools import cache
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

PACKAGE = "drivetrain"


def install_command(extra: str) -> str:
    """For a shell: in the clone, or beside the file, that it came from. An index is named only if it came from one."""
    before, behind = _source()
    return f"pip install '{before}[{extra}]{behind}'"


@cache
def _source() -> tuple[str, str]:
    """What stands before the extra, and behind it."""
    from importlib.metadata import PackageNotFoundError, distribution  # it takes longer than most commands

    try:
        stated = distribution(PACKAGE).read_text("direct_url.json")
    except PackageNotFoundError:
        return ".", ""  # run as it lies in its clone
    try:
        origin = json.loads(stated or "{}")
        url = str(origin.get("url", ""))
    except (ValueError, AttributeError):
        return PACKAGE, ""
    if "dir_info" in origin:
        return ".", ""
    if "vcs_info" in origin:
        return PACKAGE, f" @ {origin['vcs_info'].get('vcs', 'git')}+{url}"
    if url.startswith("file:"):
        return f"./{PurePosixPath(unquote(urlsplit(url).path)).name}", ""
    return PACKAGE, f" @ {url}" if url else ""
