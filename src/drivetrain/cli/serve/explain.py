"""`serve --explain`: what will hold, and where each value comes from, before anything is loaded or bound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from drivetrain import assembly
from drivetrain.assembly import SETTINGS
from drivetrain.cli.flags.keys import KEY_VARIABLE
from drivetrain.cli.flags.server_options import LIMITS, SERVER
from drivetrain.cli.terminal import output
from drivetrain.core.errors import LoadFailed, ModelNotFound
from drivetrain.worker.settings import Group
from drivetrain.worker.sources import explained

if TYPE_CHECKING:
    from drivetrain.assembly import EngineChoice
    from drivetrain.cli.flags.server_options import ServerStated
    from drivetrain.cli.serve.fleet import FleetModel
    from drivetrain.server.settings import ServerSettings
    from drivetrain.worker.settings import Settings
    from drivetrain.worker.sources import Layer


def explain(stated: ServerStated, server: ServerSettings, models: Sequence[FleetModel], several: Layer) -> None:
    """Raises what starting would raise, as far as it shows without weights."""
    of_server = explained({**stated.told, **_keys(stated, server)}, SERVER)
    parts = [*map(_model, models), f"server\n{of_server}", f"several models\n{explained(several, LIMITS)}"]
    output.line("\n\n".join(parts))


def _keys(stated: ServerStated, server: ServerSettings) -> Layer:
    """How many there are and where they come from, never what they are."""
    layer: Layer = {}
    for name, keys in (("api_key", server.api_keys), ("admin_key", server.admin_keys)):
        file = f"{name}_file"
        origin = file if stated.value(file) is not None else f"environment {KEY_VARIABLE}" if keys else "default"
        layer[f"{name}s"] = (len(keys), origin)
    return layer


def _model(one: FleetModel) -> str:
    settings = one.resolved.settings
    choice, where = _foreseen(one.reference, settings)
    rows = [f"{one.name}: {where}"]
    lacking = set[str]()
    if choice is None:
        rows.append("engine: chosen by the weights, which are not here")
    else:
        assembly.refuse_unused(settings, choice.kind)
        later = "".join(f", or {kind.name} if that cannot run the model" for kind in choice.kinds[1:])
        rows.append(f"engine: {choice.kind.name}{later}: {choice.why}")
        if not choice.kind.installed:
            rows.append(f"not installed; run: {choice.kind.install}")
        lacking = set(SETTINGS.groups[Group.ENGINE]) - set(choice.kind.settings)
    return "\n".join([*rows, one.resolved.explain(without=lacking)])


def _foreseen(reference: str, settings: Settings) -> tuple[EngineChoice | None, str]:
    """The engines that will be tried, if that can be told, and where the weights are."""
    from drivetrain.store.store import Store

    assembly.check_engine(settings)
    if assembly.is_remote(reference, settings):
        return assembly.EngineChoice.remote(), "another server"
    if assembly.is_fake(reference, settings):
        return assembly.choose_engine(settings, None), "no weights"
    try:
        found = Store().resolve(reference)
    except (ModelNotFound, LoadFailed) as exc:
        named = None if settings.engine == "auto" else assembly.choose_engine(settings, None)
        return named, exc.message
    return assembly.choose_engine(settings, found), f"{found.format.value} from {found.source}"
