"""Flags of `serve` for the worker protocols of FastChat and DB-GPT, and what they add to the server."""

from __future__ import annotations

import argparse
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drivetrain.cli.flags import options
from drivetrain.core.errors import InvalidSetting
from drivetrain.http.address import Address

if TYPE_CHECKING:
    from drivetrain.server.app import Route
    from drivetrain.server.dropin.controllers import Controller
    from drivetrain.server.dropin.registration import Registration
    from drivetrain.server.models import Models
    from drivetrain.server.settings import ServerSettings

PROTOCOLS = ("fastchat", "dbgpt")


def add_dropin_flags(group: Any) -> None:
    group.add_argument(
        "--fastchat-controller", metavar="URL", help="register as a worker with this FastChat controller"
    )
    group.add_argument("--dbgpt-controller", metavar="URL", help="register as a worker with this DB-GPT controller")
    group.add_argument(
        "--worker-address",
        metavar="URL",
        help="the address at which they reach this server (default: where it listens)",
    )
    group.add_argument(
        "--worker-protocols",
        type=options.comma_list,
        metavar="A,B",
        help="speak the worker protocol of fastchat or dbgpt without registering",
    )


@dataclass(frozen=True, slots=True)
class Dropin:
    """The requested protocols and controllers, checked before a model is loaded."""

    protocols: frozenset[str]
    fastchat: Address | None
    dbgpt: Address | None
    worker: Address | None

    @classmethod
    def read(cls, args: argparse.Namespace, settings: ServerSettings) -> Dropin:
        """Raises `InvalidSetting`."""
        made = cls(
            _protocols(args),
            _address(args.fastchat_controller, "fastchat_controller"),
            _address(args.dbgpt_controller, "dbgpt_controller"),
            _address(args.worker_address, "worker_address"),
        )
        made._check(settings)
        return made

    def _check(self, settings: ServerSettings) -> None:
        if self.protocols and settings.api_keys:
            raise InvalidSetting(
                "FastChat and DB-GPT send their workers no API key; serve their protocols without one, on a loopback "
                "address, or with --insecure-no-key in a network of their own",
                param="worker_protocols",
            )
        controllers = [address for address in (self.fastchat, self.dbgpt) if address is not None]
        if self.worker is None:
            if controllers and not (settings.loopback and all(address.local for address in controllers)):
                raise InvalidSetting(
                    "a controller on another machine must be told how this server is reached: --worker-address URL",
                    param="worker_address",
                )
        elif not controllers:
            raise InvalidSetting("--worker-address is for a controller, and none is named", param="worker_address")
        elif self.dbgpt is not None and (self.worker.secure or self.worker.root):
            raise InvalidSetting(
                f"DB-GPT knows workers by host and port, over plain HTTP; {_url(self.worker)} says more than that",
                param="worker_address",
            )
        elif settings.loopback and not self.worker.local and self.worker.host not in _lowered(settings.allowed_hosts):
            raise InvalidSetting(
                f"--worker-address names {self.worker.host}, but this server only listens on {settings.host}: give "
                "--host an address that they can reach, or add it to --allowed-hosts if a proxy passes it on",
                param="worker_address",
            )

    @property
    def routes(self) -> tuple[Route, ...]:
        from drivetrain.server.dropin import dbgpt, fastchat

        found = {"fastchat": fastchat.ROUTES, "dbgpt": dbgpt.ROUTES}
        return tuple(route for name in PROTOCOLS if name in self.protocols for route in found[name])

    def registration(self, models: Models, sock: socket.socket) -> Registration:
        """Raises `InvalidSetting`."""
        from drivetrain.server.dropin.controllers import DbGptController, FastChatController
        from drivetrain.server.dropin.registration import Registration
        from drivetrain.server.run import address_of

        worker = self.worker or Address.parse(address_of(sock))
        controllers: list[Controller] = []
        if self.fastchat is not None:
            controllers.append(FastChatController(self.fastchat, _url(worker), models))
        if self.dbgpt is not None:
            if any("@" in member.name for member in models.members):
                raise InvalidSetting("DB-GPT does not accept @ in the name of a model; choose another one with --name")
            controllers.append(DbGptController(self.dbgpt, worker, models))
        return Registration(controllers, models)


def _protocols(args: argparse.Namespace) -> frozenset[str]:
    named = set(args.worker_protocols or ())
    for name in sorted(named - set(PROTOCOLS)):
        raise InvalidSetting(
            f"--worker-protocols names {name!r}; it may name {', '.join(PROTOCOLS)}", param="worker_protocols"
        )
    return frozenset(named | {name for name in PROTOCOLS if getattr(args, f"{name}_controller")})


def _address(url: str | None, param: str) -> Address | None:
    return None if url is None else Address.parse(url, param=param)


def _lowered(names: Iterable[str]) -> set[str]:
    return {name.lower() for name in names}


def _url(address: Address) -> str:
    return f"http{'s' if address.secure else ''}://{address.authority}{address.root}"
