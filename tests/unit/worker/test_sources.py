"""Settings: every wrong one is named, every source is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from drivetrain.assembly import SETTINGS
from drivetrain.core.errors import InvalidSetting
from drivetrain.worker.settings import Settings
from drivetrain.worker.sources import environment_name, read_settings


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"temprature": 1}, "temprature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": 3}, "temperature"),
        ({"max_running": 0}, "max_running"),
        ({"max_running": True}, "max_running"),
        ({"max_waiting": 1.5}, "max_waiting"),
        ({"trust_remote_code": "yes"}, "trust_remote_code"),
        ({"media_hosts": "a.example"}, "media_hosts"),
        ({"timeout_s": float("nan")}, "timeout_s"),
        ({"timeout_s": 5000.0}, "timeout_s"),
        ({"overflow": "explode"}, "overflow"),
        ({"max_n": 0}, "max_n"),
        ({"stall_s": 0}, "stall_s"),
    ],
)
def test_bad_keywords(given: dict[str, object], name: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        read_settings(SETTINGS, "m", given, environment={})
    assert caught.value.param == name


@pytest.mark.parametrize(
    ("name", "text"), [("TEMPERATURE", "hot"), ("MAX_RUNNING", "-1"), ("TRUST_REMOTE_CODE", "maybe")]
)
def test_bad_environment(name: str, text: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        read_settings(SETTINGS, "m", {}, environment={f"DRIVETRAIN_{name}": text})
    assert f"DRIVETRAIN_{name}" in caught.value.message


@pytest.mark.parametrize(
    "text", ["= 1", "models = 3", "[models]\nm = 3", "nonsense = 1", "temperature = 'x'", "[models.m]\nnonsense = 1"]
)
def test_bad_files(text: str, tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(text)
    with pytest.raises(InvalidSetting):
        read_settings(SETTINGS, "m", {}, environment={}, config=path)
    with pytest.raises(InvalidSetting):
        read_settings(SETTINGS, "m", {}, environment={"DRIVETRAIN_CONFIG": str(tmp_path / "none.toml")})


def test_a_misspelt_variable_is_named() -> None:
    with pytest.raises(InvalidSetting) as caught:
        read_settings(SETTINGS, "m", {}, environment={"DRIVETRAIN_TEMPRATURE": "1"})
    assert "DRIVETRAIN_TEMPERATURE" in caught.value.message
    read_settings(SETTINGS, "m", {}, environment={"DRIVETRAIN_OTHER_MODEL_TOP_K": "1", "DRIVETRAIN_HOME": "/x"})


def test_environment_values_are_read_by_type() -> None:
    environment = {
        "DRIVETRAIN_TRUST_REMOTE_CODE": "true", "DRIVETRAIN_MEDIA_HOSTS": "a.example, b.example",
        "DRIVETRAIN_TOP_K": "3", "DRIVETRAIN_TOP_P": "0.5", "DRIVETRAIN_DEVICE": "cpu",
    }  # fmt: skip
    settings = read_settings(SETTINGS, "m", {}, environment=environment).settings
    assert settings.value("trust_remote_code") is True
    assert settings.media_hosts == ("a.example", "b.example")
    assert (settings.top_k, settings.top_p, settings.value("device")) == (3, 0.5, "cpu")


@pytest.mark.parametrize(
    ("model", "variable"),
    [
        ("smollm2-135m", "DRIVETRAIN_SMOLLM2_135M_TOP_K"),
        ("/a/b/My Model.v2/", "DRIVETRAIN_MY_MODEL_V2_TOP_K"),
        ("org/name", "DRIVETRAIN_NAME_TOP_K"),
    ],
)
def test_names_of_variables(model: str, variable: str) -> None:
    assert environment_name(model, "top_k") == variable
    assert read_settings(SETTINGS, model, {}, environment={variable: "4", "DRIVETRAIN_TOP_K": "5"}).settings.top_k == 4


def test_every_setting_is_described_and_limits_follow() -> None:
    assert all(one.meaning for one in SETTINGS.all.values())
    assert all(SETTINGS.groups.values())
    assert Settings(max_n=3).limits.max_n == 3
    assert read_settings(SETTINGS, "m", {}, environment={}).settings == Settings()
