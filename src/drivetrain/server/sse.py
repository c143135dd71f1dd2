"""What all server-sent events of the OpenAI API have in common."""

from __future__ import annotations

from drivetrain.core.errors import DrivetrainError
from drivetrain.server.errors import body_of

EVENT_STREAM = "text/event-stream; charset=utf-8"
DONE = b"data: [DONE]\n\n"


def error_event(error: DrivetrainError) -> bytes:
    return b"data: " + body_of(error) + b"\n\n"
