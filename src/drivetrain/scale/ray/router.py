"""Which replica gets a request: the one that has seen its beginning, else the less busy one of two.

Serve makes a router in each process that calls replicas. It knows what it has sent there itself, no more.
"""

from __future__ import annotations

import random
from typing import Any

from ray.serve.request_router import FIFOMixin, LocalityMixin, PendingRequest, ReplicaID, RequestRouter
from ray.serve.request_router import RunningReplica as Running

from drivetrain.scale.ray.affinity import PrefixAffinity


class PrefixRouter(FIFOMixin, LocalityMixin, RequestRouter):  # type: ignore[misc] # Ray has no types here
    """Replicas in ranks: Serve takes the less busy one of the first rank in which one has room.

    One whose engine is being started again is idle and would be taken first: it gets what comes only if all are so.

    First come, first served: where several wait, the replica that was chosen for one may go to one that came before.
    Without that mixin Serve finds the request by its id, which all calls for one HTTP request share: all but one of
    them would wait for ever.
    """

    def initialize_state(self, **kwargs: Any) -> None:
        self._seen = PrefixAffinity()

    async def choose_replicas(
        self, candidate_replicas: list[Running], pending_request: PendingRequest | None = None
    ) -> list[list[Running]]:
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True  # else Serve asks again and again, without a pause
        if not candidate_replicas:
            return []
        here = [replica for replica in candidate_replicas if not replica.routing_stats.get("away")]
        candidates = here or candidate_replicas
        some = [random.sample(candidates, min(2, len(candidates)))]
        known = self._that_knows(candidates, _prefix_of(pending_request))
        return [[known], *some] if known is not None else some

    def _that_knows(self, candidates: list[Running], prefix: tuple[int, ...]) -> Running | None:
        if not prefix:
            return None
        lengths = self.replica_queue_len_cache
        loads = {replica.replica_id: lengths.get(replica.replica_id) or 0 for replica in candidates}
        chosen = self._seen.choose(prefix, loads)
        return next((replica for replica in candidates if replica.replica_id == chosen), None)

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        self._seen.note(_prefix_of(pending_request), replica_id)


def _prefix_of(request: PendingRequest | None) -> tuple[int, ...]:
    """The second argument of `Replica.submit`; other calls have none."""
    if request is None or request.metadata.call_method != "submit" or len(request.args) < 2:
        return ()
    return tuple(request.args[1])
