"""Models deployed as `drivetrain deploy` does it, and what their clients and their processes do."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from ray import serve

from drivetrain.scale.ray import cluster
from drivetrain.scale.ray.plan import APPLICATION, IngressPlan, ModelPlan, arguments_of

MODEL = "smollm2-135m"
QUESTION: Any = [{"role": "user", "content": "Tell me a long story about a small engine."}]
SLOTS = 8
PATIENT_S = 240.0
"""A replica is two processes that import and load, on a machine that does other things too."""


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def plan(**changes: Any) -> ModelPlan:
    settings = {"context_length": 1024, "slots": SLOTS, "threads": 1, **changes.pop("settings", {})}
    defaults = {"num_cpus": 0.0, "longest_s": 60.0, "upscale_delay_s": 1.0, "downscale_delay_s": 3.0}
    return ModelPlan(model=MODEL, name=MODEL, settings=settings, **{**defaults, **changes})


def deploy(port: int, *models: ModelPlan) -> None:
    ingress = IngressPlan(server={"host": "127.0.0.1", "port": port}, longest_s=60.0)
    cluster.run(arguments_of(models, ingress), host="127.0.0.1", port=port)


def client(port: int) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=500)


async def streamed(of: openai.AsyncOpenAI, max_tokens: int, **more: Any) -> tuple[str, str]:
    """The text and how it ended: the finish reason, or the code of the error."""
    text, ending = "", ""
    try:
        stream: Any = await of.chat.completions.create(
            model=MODEL, messages=QUESTION, max_tokens=max_tokens, stream=True, extra_body={"ignore_eos": True, **more}
        )
        async for chunk in stream:
            for choice in chunk.choices:
                text += choice.delta.content or ""
                assert not (ending and choice.finish_reason), "one ending"
                ending = choice.finish_reason or ending
    except openai.APIError as exc:
        assert not ending, "one ending"
        ending = exc.code or type(exc).__name__
    return text, ending


async def check_answers(of: openai.AsyncOpenAI) -> None:
    """It answers as `drivetrain serve` does."""
    whole = await of.chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=20, temperature=0, extra_body={"ignore_eos": True}
    )
    text, ending = await streamed(of, 20, temperature=0)
    assert ending == whole.choices[0].finish_reason == "length"
    assert text == whole.choices[0].message.content
    assert [model.id for model in (await of.models.list()).data] == [MODEL]
    with pytest.raises(openai.BadRequestError) as caught:
        await of.chat.completions.create(model=MODEL, messages=QUESTION, temperature=9)
    assert caught.value.param == "temperature"


def replica_pids(application: str = APPLICATION) -> list[int]:
    numbers = map(int, filter(str.isdigit, (entry.name for entry in Path("/proc").iterdir())))
    return sorted(pid for pid in numbers if _is(pid, application))


def _is(pid: int, application: str) -> bool:
    """Ray gives the process of an actor the name of its class and method."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(f"ray::ServeReplica:{application}:model-".encode())
    except OSError:
        return False


def num_running(deployment: str = plan().deployment) -> int:
    states = serve.status().applications[APPLICATION].deployments[deployment].replica_states
    return int(states.get("RUNNING", 0))


async def status(port: int) -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as plain:
        status_now: dict[str, Any] = (await plain.get("/status")).json()["models"][MODEL]
        return status_now


async def until_so(port: int, is_so: Callable[[dict[str, Any]], bool]) -> None:
    async with asyncio.timeout(PATIENT_S):
        while not is_so(await status(port)):
            await asyncio.sleep(0.05)


def both_replicas(status_now: dict[str, Any]) -> bool:
    """More streams run than one of them has slots."""
    running: int = status_now["running"]
    return running > SLOTS


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENT_S):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(0.2)
