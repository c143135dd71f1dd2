"""Short queries from threads that may block, such as tokenizing, to the first upstream that answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from drivetrain.core.errors import NotReady
from drivetrain.engines.remote import errors
from drivetrain.engines.remote.address import Key
from drivetrain.engines.remote.errors import Broken, Refused
from drivetrain.engines.remote.wire import MAX_BODY_BYTES, Timeouts, encoded, headers_of, parsed
from drivetrain.http import blocking
from drivetrain.http.address import Address

Ask = Callable[[str, Mapping[str, Any]], Any]
"""Takes a path below the root and a body, returns the JSON answer. Raises `DrivetrainError`."""

Suspect = Callable[[Exception], None]
"""Called with the error of a query that an upstream failed on."""


class Asker:
    """`askable` returns the usable upstreams, best first, each with a callback for its failures.

    Everything here may be called from any thread.
    """

    def __init__(
        self,
        askable: Callable[[], Sequence[tuple[Address, Suspect]]],
        key: Key,
        timeouts: Timeouts,
    ) -> None:
        self._askable = askable
        self._key = key
        self._timeouts = timeouts

    def __call__(self, path: str, body: Mapping[str, Any]) -> Any:
        failed: Exception | None = None
        for address, suspect in self._askable():
            try:
                return ask(address, "POST", address.root + path, self._key, body, timeouts=self._timeouts)
            except (OSError, Broken, Refused) as exc:
                if not errors.may_try_again(exc):
                    raise errors.while_running(exc) from exc
                if errors.is_fault(exc):
                    suspect(exc)
                failed = exc
        raise NotReady("no upstream answers", retry_after_s=1.0) if failed is None else errors.while_running(failed)


def ask(
    address: Address, method: str, path: str, key: Key, body: Mapping[str, Any] | None = None, *, timeouts: Timeouts
) -> Any:
    """Raises `Refused` for any status but 200, `Broken` and `OSError`."""
    found = blocking.ask(
        address, method, path, headers_of(key), encoded(body), timeout_s=timeouts.ask_s, limit=MAX_BODY_BYTES
    )
    if found.status != 200:
        raise Refused.parse(found.status, found.headers, found.body, key)
    return parsed(found.body)
