"""The words of the store's messages: names and sizes, made printable and short. No path of ours is in them."""

from __future__ import annotations

MAX_QUOTED_CHARS = 80

OFFLINE_REMEDY = (
    "check the network and the proxy settings; without a network, pull on a machine that has one "
    "and give the path of the copied model"
)


def quoted(text: str) -> str:
    """The text in quotes, for a message: control characters and lone surrogates escaped, long ones cut."""
    if len(text) > MAX_QUOTED_CHARS:
        return f"{text[:MAX_QUOTED_CHARS]!r}… ({len(text)} characters)"
    return repr(text)


def size(num_bytes: int) -> str:
    """`98.4 MB`, in powers of a thousand, as disks and networks are sold."""
    value = float(num_bytes)
    for unit in ("bytes", "kB", "MB", "GB"):
        if value < 1000:
            return f"{int(value)} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"
