"""The upstreams of one model: which is asked next, which is left out, and which comes back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial

from drivetrain.core.errors import DrivetrainError, LoadFailed, NotReady
from drivetrain.engines.remote.blocking import Suspect
from drivetrain.engines.remote.breaker import Breaker, BreakerState
from drivetrain.engines.remote.dialects.base import Dialect, UpstreamFacts
from drivetrain.engines.remote.errors import Broken, Refused, is_fault, may_be_the_request, while_loading
from drivetrain.engines.remote.probe import Prober
from drivetrain.http.address import Address

WATCH_S = 0.1
_log = logging.getLogger(__name__)


class Upstream:
    """`dialect` is None until the upstream has answered once."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.breaker = Breaker()
        self.dialect: Dialect | None = None
        self.active = 0
        self.taken = 0

    @property
    def load(self) -> tuple[float, int]:
        """The share of its capacity in use; among equals, the one that has had fewer requests."""
        capacity = self.dialect.facts.max_concurrency if self.dialect else 1
        return (self.active / max(1, capacity), self.taken)

    @property
    def usable(self) -> bool:
        return self.dialect is not None and self.breaker.state is not BreakerState.OPEN

    def begin(self) -> int:
        """A request goes out. `end` follows, with the value returned here."""
        self.active += 1
        self.taken += 1
        return self.breaker.begin()

    def end(self, began: int, failure: BaseException | None) -> None:
        """One of its requests is over. A cancellation, or an error of the request itself, is not held against it."""
        self.active -= 1
        with self._log_change():
            if failure is None:
                self.breaker.succeed(began)
            elif is_fault(failure):
                self.breaker.fail(began, surely=not may_be_the_request(failure))
            else:
                self.breaker.leave(began)

    def answered(self, began: int) -> None:
        """A first event has come. On trial that is enough: an answer may take minutes, and others wait."""
        with self._log_change():
            if self.breaker.state is BreakerState.HALF_OPEN:
                self.breaker.succeed(began)

    def suspect(self, began: int, failure: Exception) -> None:
        """A short query beside the requests has failed, perhaps by its own fault."""
        with self._log_change():
            self.breaker.fail(began, surely=not may_be_the_request(failure))

    @contextmanager
    def _log_change(self) -> Iterator[None]:
        before = self.breaker.state
        yield
        if self.breaker.state is not before:
            _log.warning("upstream %s is %s", self.address.authority, self.breaker.state.value)


class Pool:
    """`open` probes all of them. Until `close`, each is watched, and taken back after it was left out."""

    def __init__(self, addresses: Sequence[Address], prober: Prober) -> None:
        self.upstreams = tuple(Upstream(address) for address in addresses)
        self._prober = prober
        self._facts: UpstreamFacts | None = None
        self._loop = asyncio.get_running_loop()
        self._watchers: list[asyncio.Task[None]] = []

    async def open(self) -> UpstreamFacts:
        """What they have in common. Raises the last one's error if none answers, `LoadFailed` if they differ."""
        found = await asyncio.gather(*(self._prober.probe(u.address) for u in self.upstreams), return_exceptions=True)
        failed: BaseException | None = None
        for upstream, dialect in zip(self.upstreams, found, strict=True):
            if isinstance(dialect, BaseException):
                if not isinstance(dialect, (OSError, Broken, Refused)) or (
                    isinstance(dialect, Refused) and dialect.status < 500
                ):
                    raise while_loading(dialect) from dialect
                failed = dialect
                upstream.breaker.open()
                _log.warning("upstream %s does not answer; it is left out until it does", upstream.address.authority)
            else:
                upstream.dialect = dialect
        known = [u.dialect.facts for u in self.upstreams if u.dialect is not None]
        if not known:
            assert failed is not None
            raise while_loading(failed) from failed
        self._facts = in_common(known)
        self._watchers = [asyncio.create_task(self._watch(u), name="drivetrain-remote-watch") for u in self.upstreams]
        return self._facts

    def take(self, but: Collection[Upstream] = ()) -> Upstream:
        """The least loaded usable one, but none in `but` if there are others. Raises `NotReady`."""
        ready = [u for u in self.upstreams if u.dialect is not None and u.breaker.lets_pass]
        others = [u for u in ready if u not in but]
        if not ready:
            raise NotReady("no upstream answers; they are probed until one does", retry_after_s=1.0)
        return min(others or ready, key=lambda u: u.load)

    @property
    def facts(self) -> UpstreamFacts:
        """What they have in common, once the pool is open."""
        assert self._facts is not None
        return self._facts

    @property
    def alive(self) -> bool:
        return any(u.usable for u in self.upstreams)

    def askable(self) -> Sequence[tuple[Address, Suspect]]:
        """The upstreams to send short queries to, best first. Safe from any thread."""
        ready = [u for u in self.upstreams if u.usable]
        return [(u.address, partial(self._suspect, u, u.breaker.openings)) for u in sorted(ready, key=lambda u: u.load)]

    def _suspect(self, upstream: Upstream, began: int, failure: Exception) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(upstream.suspect, began, failure)

    async def close(self) -> None:
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)

    async def _watch(self, upstream: Upstream) -> None:
        """One task for each: a probe may hang for minutes, and the others come back meanwhile."""
        while True:
            await asyncio.sleep(WATCH_S)
            if upstream.breaker.probe_is_due:
                await self._probe(upstream)

    async def _probe(self, upstream: Upstream) -> None:
        """It must still be what the others are: its model may have been replaced meanwhile."""
        well = False
        try:
            dialect = await self._prober.probe(upstream.address)
            if fits(dialect.facts, self.facts):
                upstream.dialect, well = dialect, True
        except (OSError, Broken, Refused, DrivetrainError):
            pass
        except Exception:  # noqa: BLE001 - nothing that an upstream sends ends its watcher
            _log.exception("upstream %s was probed and said what is not understood", upstream.address.authority)
        upstream.breaker.probed(well=well)
        if well:
            _log.warning("upstream %s answers again", upstream.address.authority)


def in_common(found: Sequence[UpstreamFacts]) -> UpstreamFacts:
    """Raises `LoadFailed` for upstreams that cannot replace each other. Embeddings are offered if all offer them."""
    first = found[0]
    if any(facts.identity != first.identity for facts in found):
        raise LoadFailed("the upstreams are not of one kind with one vocabulary, so they cannot stand for one another")
    alike = len(set(map(_embeds, found))) == 1
    if not alike and not first.generation:
        raise LoadFailed("the upstreams do not embed alike, so they cannot stand for one another")
    return replace(
        first,
        embedding_size=first.embedding_size if alike else 0,
        embed_inputs=min(facts.embed_inputs for facts in found),
        parameters=frozenset.intersection(*(facts.parameters for facts in found)),
        context_length=min(facts.context_length for facts in found),
        max_concurrency=sum(facts.max_concurrency for facts in found),
    )


def fits(facts: UpstreamFacts, promised: UpstreamFacts) -> bool:
    return (
        facts.identity == promised.identity
        and facts.parameters >= promised.parameters
        and facts.context_length >= promised.context_length
        and (not promised.embedding_size or _embeds(facts) == _embeds(promised))
    )


def _embeds(facts: UpstreamFacts) -> tuple[object, ...]:
    return (facts.embedding_size, facts.pooling)
