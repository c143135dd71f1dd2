"""`transformers serve`, with one request at a time (its default) and with continuous batching.

It refuses fields that the OpenAI API does not have, such as `ignore_eos`, and only knows the model by its path.
"""

from __future__ import annotations

from collections.abc import Sequence

from servers.environment import Environment
from servers.peer import Peer
from servers.request import Chat
from servers.weights import folder

ENVIRONMENT = Environment("transformers")


def peer(name: str, title: str, *options: str) -> Peer:
    def arguments(port: int) -> Sequence[str]:
        command = [str(ENVIRONMENT.folder / "bin" / "transformers"), "serve", str(folder()), *options]
        return [*command, "--dtype", "float32", "--device", "cpu", "--host", "127.0.0.1", "--port", str(port)]

    return Peer(
        name=name,
        title=title,
        form=Chat(None),
        arguments=arguments,
        environment=ENVIRONMENT,
        packages=("transformers", "torch"),
        variables={"HF_HUB_OFFLINE": "1"},
        prepare=folder,
    )


TRANSFORMERS = peer("transformers", "transformers serve, fp32")
TRANSFORMERS_CB = peer("transformers-cb", "transformers serve, continuous batching, fp32", "--continuous-batching")
