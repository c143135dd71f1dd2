"""Put together what a worker says about its loaded model."""

from __future__ import annotations

from drivetrain.core.engine import EngineInfo
from drivetrain.core.status import Metadata
from drivetrain.families.choose import Chosen
from drivetrain.worker.defaults import Defaults


def describe(name: str, info: EngineInfo, chosen: Chosen, eos_ids: frozenset[int], defaults: Defaults) -> Metadata:
    roles = chosen.family.roles
    return Metadata(
        name=name,
        engine=info.engine,
        architecture=info.architecture,
        device=info.device,
        dtype=info.dtype,
        context_length=info.capabilities.context_length,
        vocab_size=info.vocab_size,
        family=chosen.family.name,
        family_why=chosen.why,
        roles={"system": roles.system, "user": roles.user, "assistant": roles.assistant},
        separator=chosen.family.separator,
        stop=chosen.family.stop,
        eos_ids=tuple(sorted(eos_ids)),
        embedding_size=info.embedding_size,
        pooling=info.pooling,
        sampling=defaults.origins,
        notes=info.notes,
        versions=dict(info.versions),
    )
