"""What `drivetrain deploy --dry-run` prints is what Serve takes, and what the manifests hold."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from ray.serve.schema import ServeDeploySchema

from drivetrain.cli.main import main
from on_ray.deployed import MODEL, client, free_port, streamed

FOLDER = Path(__file__).parent.parent.parent / "deploy" / "ray"
COMMAND = ["deploy", "smollm2-135m", "--replicas", "1:4", "--slots", "8", "--dry-run"]


def printed(capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    assert main([*COMMAND, *more]) == 0
    config: dict[str, Any] = yaml.safe_load(capsys.readouterr().out)
    ServeDeploySchema(**config)
    return config


def test_the_manifests_are_what_it_prints(capsys: pytest.CaptureFixture[str]) -> None:
    config = printed(capsys)
    assert yaml.safe_load((FOLDER / "serve.yaml").read_text()) == config
    service = yaml.safe_load((FOLDER / "rayservice.yaml").read_text())
    inside = yaml.safe_load(service["spec"]["serveConfigV2"])
    assert inside == yaml.safe_load(yaml.safe_dump(config).replace("127.0.0.1", "0.0.0.0"))


def test_each_setting_that_was_stated_goes_along_and_no_other(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("max_waiting = 3\n[models.smollm2-135m]\ncontext_length = 512\n")
    config = printed(capsys, "--config", str(file), "--temperature", "0")
    (model,) = config["applications"][0]["args"]["models"]
    assert model["settings"] == {
        "slots": 8, "max_waiting": 3, "context_length": 512, "temperature": 0, "name": "smollm2-135m",
    }  # fmt: skip


def test_gpus_follow_the_tensor_parallel_size(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "deploy",
        "big=org/name",
        "--engine",
        "vllm",
        "--vllm-args",
        '{"tensor_parallel_size": 4}',
        "--dry-run",
    ]
    assert main(arguments) == 0
    (model,) = yaml.safe_load(capsys.readouterr().out)["applications"][0]["args"]["models"]
    assert model["options"]["ray_actor_options"]["num_gpus"] == 4
    assert model["settings"]["name"] == "big"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["a=smollm2-135m", "a=fake"], "same name"),
        (["smollm2-135m", "--replicas", "3:1"], "MIN"),
        (["smollm2-135m", "--replicas", "many"], "MIN:MAX"),
        (["no-such-model"], "no model is called"),
    ],
)
def test_what_cannot_be_is_refused(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    assert main(["deploy", *arguments, "--dry-run"]) != 0
    assert words in capsys.readouterr().err


@pytest.fixture
def own_ray(smollm2: str, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """`drivetrain deploy` with a Ray of its own, and its port."""
    port = free_port()
    flags = ["--port", str(port), "--num-cpus", "0", "--slots", "4", "--threads", "1"]
    with (tmp_path / "out").open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "drivetrain", "deploy", MODEL, *flags], stdout=out, stderr=out
        )
        yield process, port
        process.kill()
        process.wait()


async def test_ctrl_c_lets_what_runs_end(own_ray: tuple[subprocess.Popen[bytes], int]) -> None:
    process, port = own_ray
    async with asyncio.timeout(280):
        await until_ready(process, port)
        async with client(port) as of:
            running = [asyncio.create_task(streamed(of, 300)) for _ in range(4)]
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as plain:
                while (await plain.get("/status")).json()["models"][MODEL]["running"] < len(running):
                    await asyncio.sleep(0.05)
            assert not any(stream.done() for stream in running)
            process.send_signal(signal.SIGINT)
            assert {ending for _, ending in await asyncio.gather(*running)} == {"length"}
        assert await asyncio.to_thread(process.wait) == 0


async def test_ctrl_c_while_it_starts_ends_it(own_ray: tuple[subprocess.Popen[bytes], int]) -> None:
    process, port = own_ray
    async with asyncio.timeout(280), httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as plain:
        while True:
            assert process.poll() is None
            with contextlib.suppress(httpx.TransportError):
                assert (await plain.get("/ready")).status_code != 200
                break
            await asyncio.sleep(0.1)
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(30):
            assert await asyncio.to_thread(process.wait) == 0
        with pytest.raises(httpx.TransportError):
            await plain.get("/ready")


async def until_ready(process: subprocess.Popen[bytes], port: int) -> None:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as plain:
        while True:
            assert process.poll() is None
            with contextlib.suppress(httpx.TransportError):
                if (await plain.get("/ready")).status_code == 200:
                    return
            await asyncio.sleep(0.3)


def test_listening_beyond_this_machine_needs_a_key(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DRIVETRAIN_API_KEY", raising=False)
    assert main(["deploy", "smollm2-135m", "--host", "0.0.0.0"]) == 2
    assert "key" in capsys.readouterr().err
