"""Several API keys: what one tenant sent is no shared beginning of another's prompt."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contract.native_rig import NativeRig
from contract.rigs import FakeRig, LlamaCppRig
from drivetrain.core.engine import EngineRequest
from drivetrain.core.request import GenerateRequest
from drivetrain.core.worker import EventSink
from drivetrain.engines.fake import FakeEngine
from drivetrain.engines.llama_server.completion import Completion
from drivetrain.engines.llama_server.frames import EndFrame, PromptFrame, TokenFrame, read
from drivetrain.engines.llamacpp import generation
from drivetrain.engines.llamacpp.child.connection import ChildConnection
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


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens of each prompt llama.cpp has worked on, by its own account."""
    seen: list[int] = []
    body_of = Completion.body

    def asked(completion: Completion, request: EngineRequest) -> dict[str, Any]:
        body = body_of(completion, request)
        return {**body, "response_fields": [*body["response_fields"], "timings"]}

    def heard(event: Mapping[str, Any]) -> PromptFrame | TokenFrame | EndFrame:
        if event["stop"]:
            seen.append(event["timings"]["prompt_n"])
        return read(event)

    monkeypatch.setattr(Completion, "body", asked)
    monkeypatch.setattr(generation, "read", heard)
    return seen


@pytest.mark.slow
def test_on_llamacpp_the_work_for_one_tenant_is_the_same_whatever_another_has_sent(computed: list[int]) -> None:
    """Each in turn has every slot; and what each has sent last itself is still there where nobody came between."""
    with serving(lambda: LlamaCppRig().open(), api_keys=("one", "two")) as served:

        def cached(key: str) -> int:
            status, answer = ask(served, key)
            assert status == 200, answer
            usage = answer["usage"]
            found = int(usage["prompt_tokens_details"]["cached_tokens"])
            assert computed[-1] == usage["prompt_tokens"] - found
            return found

        assert [cached("one"), cached("two"), cached("one"), cached("two")][:2] == [0, 0]
        assert cached("one") > 32
        assert cached("two") > 32
        for other in range(8):  # more beginnings than there are slots
            ask(served, "two", prompt=f"{other} " + PROMPT)
        assert cached("one") == 0
        assert computed[0] == computed[1] == computed[-1]


@pytest.mark.slow
def test_on_llamacpp_a_request_that_ends_early_leaves_nothing_for_another_tenant(
    computed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before llama.cpp has said that it began, nobody knows whose beginning a slot holds."""
    with serving(lambda: LlamaCppRig().open(), api_keys=("one", "two")) as served:
        for _ in range(4):
            ask(served, "one")
        follow = ChildConnection.follow

        async def broken(*_: Any) -> None:
            raise OSError("it never came to the server")

        monkeypatch.setattr(ChildConnection, "follow", broken)
        for _ in range(4):
            assert ask(served, "two")[0] == 500
        monkeypatch.setattr(ChildConnection, "follow", follow)
        status, answer = ask(served, "two")
        assert status == 200
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert computed[-1] == computed[0]


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


@pytest.mark.parametrize(("keys", "told"), [(("one", "two"), 0), (("one",), 3)])
def test_an_engine_that_cannot_keep_tenants_apart_does_not_tell_what_was_cached(
    keys: tuple[str, ...], told: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = FakeEngine._prompt_step
    monkeypatch.setattr(FakeEngine, "_prompt_step", lambda *given: replace(step(*given), cached_tokens=3))
    rig = FakeRig()
    with serving(lambda: rig.open(unsupported={"cache_salt"}), api_keys=keys) as served:
        for stream in (False, True):
            client = served.client.with_options(api_key="one")
            said: dict[str, Any] = {"model": "fake", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
            if stream:
                more: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
                usage = list(client.chat.completions.create(**said, **more))[-1].usage
            else:
                usage = client.chat.completions.create(**said).usage
            assert usage is not None
            assert usage.prompt_tokens_details is not None
            assert usage.prompt_tokens_details.cached_tokens == told


def test_an_engine_without_salts_is_sent_none(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = FakeRig()
    with serving(lambda: rig.open(unsupported={"cache_salt"}), api_keys=("one", "two")) as served:
        seen = salts(served, monkeypatch)
        assert ask(served, "one")[0] == 200
        assert seen == [None]
        status, answer = ask(served, "one", cache_salt="s")
        assert (status, answer["error"]["param"]) == (400, "cache_salt")
