"""What our connections can do beyond ASGI, offered as an extension in a request's scope."""

from __future__ import annotations

from collections.abc import Callable

BODY_EXTENSION = "drivetrain.body"

WriteBody = Callable[[bytes], bool]
"""Sends one more part of a streaming body whose start has been sent, in the very call.

False, and nothing was taken, where the client reads too slowly, has gone, or the answer is not in its body: ASGI's own
`send` is the way then, which waits.
"""
