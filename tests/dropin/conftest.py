"""One worker of ours at the real controllers of both, their API servers in front. `make test-dropin` runs these."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import openai
import pytest

from dropin import processes
from dropin.processes import Process, Worker, ask, until

MODEL = "small"


@dataclass(frozen=True, slots=True)
class Stack:
    """`client` talks to their API server, `direct` to ours."""

    controller: Process
    worker: Worker
    client: openai.OpenAI
    direct: openai.OpenAI

    @property
    def settled(self) -> bool:
        return self.worker.busy == 0


@dataclass(frozen=True, slots=True)
class Both:
    fastchat: Process
    dbgpt: Process
    worker: Worker


def fastchat_models(controller: Process) -> list[str]:
    found: list[str] = ask(f"{controller.url}/list_models")["models"]
    return found


def dbgpt_models(controller: Process) -> list[str]:
    """Those that are said to be well."""
    found = ask(f"{controller.url}/api/controller/models?healthy_only=true", method="GET")
    return sorted(instance["model_name"] for instance in found)


@pytest.fixture(scope="session")
def both(smollm2: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    folder = tmp_path_factory.mktemp("dropin")
    with ExitStack() as stack:
        fastchat = stack.enter_context(processes.fastchat_controller(folder).running())
        dbgpt = stack.enter_context(processes.dbgpt_controller(folder).running())
        flags = ("--fastchat-controller", fastchat.url, "--dbgpt-controller", dbgpt.url)
        worker = Worker(smollm2, folder, *flags, name=MODEL)
        stack.enter_context(worker.running(worker.ready))
        until(lambda: MODEL in fastchat_models(fastchat), "not registered at FastChat's controller")
        until(lambda: len(dbgpt_models(dbgpt)) == 2, "not registered at DB-GPT's controller")
        yield Both(fastchat, dbgpt, worker)


def client(base_url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=120)


@pytest.fixture(scope="session")
def fastchat(both: Both, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    api = processes.fastchat_api(both.fastchat.url, tmp_path_factory.mktemp("fastchat"))
    with api.running(), client(f"{api.url}/v1") as theirs, client(f"{both.worker.url}/v1") as ours:
        yield Stack(both.fastchat, both.worker, theirs, ours)


@pytest.fixture(scope="session")
def dbgpt(both: Both, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    api = processes.dbgpt_api(both.dbgpt.url, tmp_path_factory.mktemp("dbgpt"))
    with api.running(), client(f"{api.url}/api/v1") as theirs, client(f"{both.worker.url}/v1") as ours:
        yield Stack(both.dbgpt, both.worker, theirs, ours)
