"""`drivetrain serve`, as any user would start it."""

from __future__ import annotations

from collections.abc import Sequence

from servers.peer import Peer
from servers.request import Chat
from servers.weights import MODEL, folder

DEFAULT = ("--engine", "native", "--dtype", "float32")


def ours(options: Sequence[str] = DEFAULT) -> Peer:
    return Peer(
        name="ours",
        title=f"drivetrain {' '.join(options)}",
        form=Chat(MODEL, {"ignore_eos": True}),
        arguments=lambda port: ["-m", "drivetrain", "serve", MODEL, *options, "--port", str(port)],
        ready_path="/ready",
        prepare=folder,
    )
