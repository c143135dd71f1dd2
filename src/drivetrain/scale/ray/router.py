"""Which replica gets a request: the one that has seen its beginning, else the less busy of two random ones.

Serve makes a router in each process that calls replicas. It only knows what that process has sent.
"""

from __future__ import annotations

import random
from typing import Any

from ray.serve.request_router import FIFOMixin, LocalityMixin, PendingRequest, ReplicaID, RequestRouter
from ray.serve.request_router import RunningReplica as Running

from drivetrain.scale.ray.prefix_affinity import PrefixAffinity


class PrefixRouter(FIFOMixin, LocalityMixin, RequestRouter):  # type: ignore[misc] # Ray has no types here
    """Ranks replicas: Serve takes the less busy one of the first rank in which one has room.

    A replica whose engine is restarting is idle and would be taken first, so it is offered only if all are.

    Requests are served first come, first served. If several wait, the replica chosen for one may go to an earlier one.
    Without that mixin Serve looks a waiting request up by its id, which all calls made for one HTTP request share:
    all but one of them would wait for ever.
    """

    def initialize_state(self, **kwargs: Any) -> None:
        self._affinity = PrefixAffinity()

    async def choose_replicas(
        self, candidate_replicas: list[Running], pending_request: PendingRequest | None = None
    ) -> list[list[Running]]:
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True  # otherwise Serve asks again without a pause
        if not candidate_replicas:
            return []
        present = [replica for replica in candidate_replicas if not replica.routing_stats.get("away")]
        candidates = present or candidate_replicas
        ranks = [random.sample(candidates, min(2, len(candidates)))]
        familiar = self._familiar_with(_prefix_of(pending_request), candidates)
        return [[familiar], *ranks] if familiar is not None else ranks

    def _familiar_with(self, prefix: tuple[int, ...], candidates: list[Running]) -> Running | None:
        if not prefix:
            return None
        lengths = self.replica_queue_len_cache
        loads = {replica.replica_id: lengths.get(replica.replica_id) or 0 for replica in candidates}
        chosen = self._affinity.choose(prefix, loads)
        return next((replica for replica in candidates if replica.replica_id == chosen), None)

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        self._affinity.note(_prefix_of(pending_request), replica_id)


def _prefix_of(request: PendingRequest | None) -> tuple[int, ...]:
    """The second argument of `Replica.submit`; other calls have none."""
    if request is None or request.metadata.call_method != "submit" or len(request.args) < 2:
        return ()
    return tuple(request.args[1])
