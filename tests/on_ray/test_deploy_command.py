"""What `drivetrain deploy --dry-run` prints is what Serve takes, and what the manifests hold."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.serve.schema import ServeDeploySchema

from drivetrain.cli.main import main

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
        (["smollm2-135m", "--surge", "101"], "percentage"),
    ],
)
def test_what_cannot_be_is_refused(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    assert main(["deploy", *arguments, "--dry-run"]) != 0
    assert words in capsys.readouterr().err


def test_listening_beyond_this_machine_needs_a_key(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DRIVETRAIN_API_KEY", raising=False)
    assert main(["deploy", "smollm2-135m", "--host", "0.0.0.0"]) == 2
    assert "key" in capsys.readouterr().err


def test_one_process_is_one_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deploy", "smollm2-135m", "--ingress-replicas", "2"]) == 2
    assert "--address" in capsys.readouterr().err


def test_a_port_in_use_is_told_before_a_ray_is_started(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert main(["deploy", "smollm2-135m", "--port", str(taken.getsockname()[1])]) == 2
    assert "in use" in capsys.readouterr().err
