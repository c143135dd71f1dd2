"""Whose work is done here, so that what is shared can be shared out fairly."""

from __future__ import annotations

from contextvars import ContextVar

CALLER: ContextVar[str] = ContextVar("drivetrain_caller", default="")
"""A server sets it for each request: to whom the API key belongs or, without keys, the connection. Only to be compared:
it says nothing of the key. Empty: nobody can be told from another.
"""
