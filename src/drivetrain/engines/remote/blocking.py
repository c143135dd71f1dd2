"""Short questions from threads that may wait, as tokenizing does, to the first upstream that answers."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

from drivetrain.address import Address
from drivetrain.core.errors import NotReady
from drivetrain.engines.remote import errors
from drivetrain.engines.remote.address import Key
from drivetrain.engines.remote.errors import Broken, Refused, TooLong
from drivetrain.engines.remote.wire import MAX_BODY_BYTES, Timeouts, parsed

Ask = Callable[[str, Mapping[str, Any]], Any]
"""Takes a path below the root and a body; gives the JSON answer. Raises `DrivetrainError`."""

Suspect = Callable[[Exception], None]
"""Hears of a question that an upstream failed on."""


class Asker:
    """`askable` gives those that may be asked, best first, each with whom to tell that it is broken.

    All of them may be called from any thread.
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
    kind = http.client.HTTPSConnection if address.secure else http.client.HTTPConnection
    with closing(kind(address.host, address.port, timeout=timeouts.ask_s)) as connection:
        try:
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, path, data, {"content-type": "application/json", **key.headers})
            response = connection.getresponse()
            found = response.read(MAX_BODY_BYTES + 1)
        except (http.client.HTTPException, UnicodeError) as exc:
            raise Broken("what it says is no HTTP") from exc
    if response.status != http.client.OK:
        headers = {name.lower(): value for name, value in response.getheaders()}
        raise Refused.parse(response.status, headers, found, key)
    if len(found) > MAX_BODY_BYTES:
        raise TooLong("an answer is far too long")
    return parsed(found)
