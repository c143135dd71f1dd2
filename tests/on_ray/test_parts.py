"""What Serve asks of our parts: a replica's health, the choice of one, and who may come in. Without a Ray."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import yaml

from drivetrain.core.errors import EngineFailed
from drivetrain.core.status import State
from drivetrain.scale.ray import protocol, replica
from drivetrain.scale.ray.application import Ingress
from drivetrain.scale.ray.observability import Observability, observing
from drivetrain.scale.ray.replica import Replica
from drivetrain.scale.ray.reports import ReplicaReport
from drivetrain.scale.ray.router import PrefixRouter
from otlp_collector import collecting


def in_state(state: State) -> Replica:
    made = Replica("fake", {})
    made._worker = SimpleNamespace(state=state)  # type: ignore[assignment]
    return made


async def test_an_engine_that_comes_back_has_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    away = in_state(State.RESTARTING)
    await away.check_health()
    monkeypatch.setattr(replica, "RESTART_S", 0.0)
    with pytest.raises(EngineFailed, match="not recovered"):
        await away.check_health()
    away._worker.state = State.READY  # type: ignore[union-attr,misc]
    await away.check_health()


async def test_one_that_has_ended_has_none() -> None:
    with pytest.raises(EngineFailed, match="the engine stopped"):
        await in_state(State.FAILED).check_health()


@pytest.mark.parametrize(
    ("state", "away"), [(State.READY, False), (State.RESTARTING, True), (State.FAILED, True), (State.DRAINING, False)]
)
def test_routers_are_told_who_takes_nothing(state: State, away: bool) -> None:
    assert in_state(state).record_routing_stats() == {"away": away}


async def test_it_says_how_often_its_engine_was_started_again() -> None:
    made = Replica("fake", {})
    await made.start()
    made.worker.stats.restarts = 3
    report = protocol.loads(ReplicaReport, await made.describe())
    await made.stop()
    assert report.restarts == 3
    assert report.status.state is State.READY


async def test_embeddings_have_the_callers_id_in_the_replicas_log(caplog: pytest.LogCaptureFixture) -> None:
    made = Replica("fake", {})
    await made.start()
    with caplog.at_level(logging.INFO, "drivetrain.requests"):
        await made.embed(protocol.dumps((["x"], None, None, "from-the-server")))
    await made.stop()
    (line,) = [record.getMessage() for record in caplog.records if record.name == "drivetrain.requests"]
    assert line.startswith("from-the-server fake finished 1 vectors")


async def test_a_replica_sends_spans_where_it_is_told_to() -> None:
    parent = f"00-{'a' * 32}-{'b' * 16}-01"
    with collecting() as collector:
        arguments = Observability(otlp_endpoint=collector.base).arguments
        with observing(arguments) as tracer:
            made = Replica("fake", {})
            await made.start(tracer)
            await made.worker.generate(prompt="x", max_tokens=3, trace_context={"traceparent": parent})
            await made.stop()
        (span,) = collector.requests
        assert span.trace_id == "a" * 32
        assert span.parent_id == "b" * 16
        assert {child.name for child in collector.spans if child.parent_id == span.span_id} >= {"queue", "decode"}


def test_what_is_told_is_what_is_not_a_default() -> None:
    assert Observability().arguments == {}
    assert Observability(log_format="json", trace_sample=0.5).arguments == {"log_format": "json", "trace_sample": 0.5}
    with observing({}) as tracer:
        assert tracer is None


def test_the_cluster_of_the_manifest_grows_to_what_it_may() -> None:
    file = Path(__file__).parent.parent.parent / "deploy" / "ray" / "rayservice.yaml"
    cluster = yaml.safe_load(file.read_text())["spec"]["rayClusterConfig"]
    (group,) = cluster["workerGroupSpecs"]
    assert group["maxReplicas"] > group["minReplicas"]
    assert cluster["enableInTreeAutoscaling"] is True


class Chosen(PrefixRouter):
    def __init__(self, lengths: dict[str, int]) -> None:
        self.initialize_state()
        self._lengths = SimpleNamespace(get=lengths.get)

    @property
    def replica_queue_len_cache(self) -> Any:
        return self._lengths


def running(*names: str, away: Sequence[str] = ()) -> list[Any]:
    return [SimpleNamespace(replica_id=name, routing_stats={"away": name in away}) for name in names]


def asking(*prefix: int) -> Any:
    metadata = SimpleNamespace(call_method="submit")
    return SimpleNamespace(metadata=metadata, args=(b"", prefix), routing_context=SimpleNamespace())


def names(ranks: list[list[Any]]) -> list[list[str]]:
    return [sorted(candidate.replica_id for candidate in rank) for rank in ranks]


async def test_one_that_is_away_is_chosen_only_where_all_are() -> None:
    router = Chosen({})
    assert names(await router.choose_replicas(running("a", "b", "c", away="b"), asking())) == [["a", "c"]]
    assert names(await router.choose_replicas(running("a", "b", away="ab"), asking())) == [["a", "b"]]
    assert await router.choose_replicas([], asking()) == []


async def test_nor_for_what_it_has_seen() -> None:
    router = Chosen({"a": 3})
    router.on_request_routed(asking(1, 2), "a", None)
    assert names(await router.choose_replicas(running("a", "b"), asking(1, 2, 3)))[0] == ["a"]
    assert names(await router.choose_replicas(running("a", "b", away="a"), asking(1, 2, 3))) == [["b"]]


async def status(client: str, server: dict[str, Any]) -> int:
    app = Ingress({"host": "127.0.0.1", "port": 8000, **server}, {}, {}).__serve_build_asgi_app__()
    transport = httpx.ASGITransport(app=app, client=(client, 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as plain:
        return (await plain.get("/v1/models")).status_code


@pytest.mark.parametrize(("client", "expected"), [("127.0.0.1", 200), ("::1", 200), ("10.0.0.7", 403), ("", 403)])
async def test_without_a_key_it_answers_its_own_machine_only(
    client: str, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever Serve listens on: that stands in a file that is not ours."""
    monkeypatch.delenv("DRIVETRAIN_API_KEY", raising=False)
    assert await status(client, {}) == expected
    assert await status(client, {"insecure_no_key": True}) == 200
    monkeypatch.setenv("DRIVETRAIN_API_KEY", "a-key-that-is-long-enough")
    assert await status(client, {}) == 401


async def test_behind_a_balancer_that_hides_who_asks_a_key_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DRIVETRAIN_API_KEY", raising=False)
    monkeypatch.setenv("RAY_SERVE_ENABLE_HA_PROXY", "1")
    assert await status("127.0.0.1", {}) == 403
    assert await status("127.0.0.1", {"insecure_no_key": True}) == 200
    monkeypatch.setenv("DRIVETRAIN_API_KEY", "a-key-that-is-long-enough")
    assert await status("127.0.0.1", {}) == 401
