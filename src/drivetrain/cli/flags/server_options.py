"""The settings of the HTTP server, from their own table: as flags, as variables and under `[serve]` in the file."""

from __future__ import annotations

import argparse
import difflib
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drivetrain.assembly import SETTINGS
from drivetrain.cli.flags import options
from drivetrain.core.errors import InvalidSetting
from drivetrain.core.kinds import Integer, Number, String
from drivetrain.core.settings import Setting, declarations
from drivetrain.server.settings import ServerSettings

if TYPE_CHECKING:
    from drivetrain.worker.sources import Layer

_NOT_STATED = ("api_keys", "admin_keys", "write_timeout_s")
"""Keys are in files or in their variable; the other follows from the settings of the workers."""

KEY_FILES = {
    "api_key_file": Setting(String(non_empty=True), "the file with API keys, one per line"),
    "admin_key_file": Setting(String(non_empty=True), "the file with keys for /admin, one per line"),
}

SERVER: Mapping[str, Setting] = {
    **{name: one for name, one in declarations(ServerSettings).items() if name not in _NOT_STATED},
    **KEY_FILES,
}

_SECONDS = Number(0, 10**15)

LIMITS: Mapping[str, Setting] = {
    "max_loaded": Setting(Integer(1), "models in memory at once", otherwise="as many as fit"),
    "idle_s": Setting(_SECONDS, "seconds after which an unused model is unloaded", otherwise="never"),
    "turn_s": Setting(_SECONDS, "seconds that a busy model keeps its place", default=5.0),
    "room_wait_s": Setting(_SECONDS, "seconds that a request waits for room", default=60.0),
}
"""Of several models, in the places where the server's settings are."""

OF_SEVERAL = ("models", *LIMITS, "pinned", "aliases")
"""What else `[serve]` may have, for several models."""

_DEST = "server_"
_METAVARS = {"host": "ADDRESS", **dict.fromkeys(KEY_FILES, "FILE")}

_OF_KUBERNETES = re.compile(r"(?:tcp|udp|sctp)://")
"""For a service called drivetrain, it sets DRIVETRAIN_PORT to such an address in every container."""


@dataclass(frozen=True, slots=True)
class ServerStated:
    """What was stated of the server's settings, and in words where each one comes from."""

    values: Mapping[str, Any]
    origins: Mapping[str, str]

    def value(self, name: str) -> Any:
        return self.values.get(name, SERVER[name].default)

    @property
    def given(self) -> dict[str, Any]:
        """Those that `ServerSettings` has."""
        return {name: value for name, value in self.values.items() if name not in KEY_FILES}

    @property
    def told(self) -> Layer:
        return {name: (self.value(name), origin) for name, origin in self.origins.items()}


def add_server_flags(group: Any, *, without: Collection[str] = ()) -> None:
    for name, one in SERVER.items():
        if name not in without:
            options.add_setting(group, name, one, dest=_DEST + name, metavar=_METAVARS.get(name))


def read_server(
    args: argparse.Namespace, *, without: Collection[str] = (), environment: Mapping[str, str] | None = None
) -> ServerStated:
    """From the flags, then `DRIVETRAIN_X`, then `[serve]` in the file. Raises `InvalidSetting`."""
    from drivetrain.worker import sources

    environment = os.environ if environment is None else environment
    settings = {name: one for name, one in SERVER.items() if name not in without}
    sources.refuse_misspelt(environment, SETTINGS.all, {*settings, *LIMITS})
    stated = read_stated(settings, args, options.prefixed(args, _DEST), environment)
    return ServerStated(
        {name: value for name, (value, _) in stated.items()},
        {name: stated[name][1] if name in stated else "default" for name in settings},
    )


def read_stated(
    settings: Mapping[str, Setting], args: argparse.Namespace, flags: Mapping[str, Any], environment: Mapping[str, str]
) -> Layer:
    """What the flags, the variables and `[serve]` state of these settings. Raises `InvalidSetting`."""
    from drivetrain.worker import sources

    path = sources.config_file(args.config, environment)
    ours = {name: text for name, text in environment.items() if not _OF_KUBERNETES.match(text)}
    return {
        **({} if path is None else sources.from_table(settings, serve_table(args, environment), path, "serve.")),
        **sources.from_environment(settings, ours, lambda name: (f"DRIVETRAIN_{name.upper()}",)),
        **{name: (sources.judged(name, settings[name], v, options.flag(name)), "flag") for name, v in flags.items()},
    }


def serve_table(args: argparse.Namespace, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The table `[serve]` of the file, if there is one. Raises `InvalidSetting`."""
    from drivetrain.worker import sources

    path = sources.config_file(args.config, environment)
    table = {} if path is None else sources.read_toml(path).get("serve", {})
    if not isinstance(table, dict):
        raise InvalidSetting(f"serve in {path} must be a table", param="serve")
    known = {*SERVER, *OF_SEVERAL}
    for name in table:
        if name not in known:
            close = difflib.get_close_matches(name[:64], known, 1)
            hint = f"did you mean {close[0]}?" if close else f"choose from {', '.join(sorted(known))}"
            raise InvalidSetting(f"there is no {name} under [serve]; {hint}", param=name)
    return table


def own_url() -> str:
    """Where `drivetrain serve` listens without flags."""
    from drivetrain.http.address import url_of_listener

    stated = read_server(argparse.Namespace(config=None))
    return url_of_listener(stated.value("host"), stated.value("port"))
