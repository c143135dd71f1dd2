"""FastChat's model worker, asked directly in its own protocol, which flatters it: nothing is in between.

It takes five requests at a time, its default, and needs no controller.
"""

from __future__ import annotations

from servers.environment import Environment
from servers.peer import Peer
from servers.request import FastChatWorker
from servers.weights import MODEL, folder_for_transformers_4


def arguments(port: int) -> list[str]:
    command = ["-m", "fastchat.serve.model_worker", "--model-path", str(folder_for_transformers_4())]
    command += ["--model-names", MODEL, "--device", "cpu", "--no-register", "--stream-interval", "1"]
    return [*command, "--host", "127.0.0.1", "--port", str(port)]


FASTCHAT = Peer(
    name="fastchat",
    title="FastChat worker, fp32",
    form=FastChatWorker(),
    arguments=arguments,
    environment=Environment("fastchat"),
    packages=("fschat", "torch", "transformers"),
    variables={"HF_HUB_OFFLINE": "1"},
    ready_path="/openapi.json",
    prepare=folder_for_transformers_4,
)
