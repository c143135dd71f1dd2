"""Several API keys: what one tenant sent is no shared beginning of another's prompt."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contract.native_rig import NativeRig
from contract.rigs import FakeRig
from drivetrain.core.request import GenerateRequest
from drivetrain.core.worker import EventSink
from server.serving import Served, fake, serving

PROMPT = "This beginning is what two tenants have in common. " * 5


def ask(served: Served, key: str, **more: Any) -> tuple[int, dict[str, Any]]:
    body = {"model": served.model, "prompt": PROMPT, "max_tokens": 1, **more}
    return served.post("/v1/completions", body, {"authorization": f"Bearer {key}"})


def salts(served: Served, monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """What the worker gets from now on."""
    seen: list[str | None] = []
    submit = served.worker.submit

    def noted(request: GenerateRequest, sink: EventSink) -> Any:
        seen.append(request.cache_salt)
        return submit(request, sink)

    monkeypatch.setattr(served.worker, "submit", noted)
    return seen


def test_tenants_share_nothing_and_each_keeps_what_is_its_own(checkpoint: Callable[[str], Path]) -> None:
    with serving(lambda: NativeRig(checkpoint).open(), api_keys=("one", "two")) as served:

        def cached(key: str, **more: Any) -> int:
            status, answer = ask(served, key, **more)
            assert status == 200, answer
            return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

        assert [cached("one"), cached("two"), cached("one", cache_salt="s"), cached("two", cache_salt="s")] == [0] * 4
        again = [cached("one"), cached("two"), cached("one", cache_salt="s"), cached("two", cache_salt="s")]
        assert all(count > 32 for count in again)


def test_every_salt_tells_the_tenant_and_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(fake(), api_keys=("one", "two")) as served:
        seen = salts(served, monkeypatch)
        for key in ("one", "two", "one"):
            assert ask(served, key)[0] == 200
            assert ask(served, key, cache_salt="s" * 256)[0] == 200
        assert seen[:2] == seen[4:]
        assert len(set(seen)) == 4
        assert all(salt is not None and len(salt) == 64 for salt in seen)
        client = served.client.with_options(api_key="two")
        list(client.chat.completions.create(model="fake", messages=[{"role": "user", "content": "x"}], stream=True))
        assert seen[-1] == seen[2]


def test_a_bad_salt_is_still_refused() -> None:
    with serving(fake(), api_keys=("one", "two")) as served:
        for salt in ("", "s" * 257):
            status, answer = ask(served, "one", cache_salt=salt)
            assert (status, answer["error"]["param"]) == (400, "cache_salt")


@pytest.mark.parametrize("keys", [(), ("one",), ("one", "one")])
def test_where_there_is_one_tenant_a_salt_stays_as_it_came(
    keys: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(fake(), api_keys=keys) as served:
        seen = salts(served, monkeypatch)
        assert ask(served, "one")[0] == ask(served, "one", cache_salt="mine")[0] == 200
        assert seen == [None, "mine"]


def test_an_engine_without_salts_is_sent_none(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = FakeRig()
    with serving(lambda: rig.open(unsupported={"cache_salt"}), api_keys=("one", "two")) as served:
        seen = salts(served, monkeypatch)
        assert ask(served, "one")[0] == 200
        assert seen == [None]
        status, answer = ask(served, "one", cache_salt="s")
        assert (status, answer["error"]["param"]) == (400, "cache_salt")
