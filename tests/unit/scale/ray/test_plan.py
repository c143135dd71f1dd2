"""From flags to what Serve is given."""

from __future__ import annotations

from typing import Any

import pytest

from drivetrain.core.errors import InvalidSetting
from drivetrain.scale.ray.plan import IngressPlan, ModelPlan, arguments_of, check_arguments, config_of, settings_of


def plan(**changes: Any) -> ModelPlan:
    return ModelPlan(**{"model": "org/My Model", "name": "My Model", **changes})


def test_one_number_of_replicas_needs_no_scaling() -> None:
    options = plan(min_replicas=2, max_replicas=2).options
    assert options["num_replicas"] == 2
    assert "autoscaling_config" not in options


def test_a_range_scales_with_the_requests_that_run() -> None:
    options = plan(min_replicas=1, max_replicas=4, target_ongoing=3.0).options
    assert "num_replicas" not in options
    assert options["autoscaling_config"]["target_ongoing_requests"] == 3.0
    assert options["autoscaling_config"]["max_replicas"] == 4


def test_a_replica_gets_as_long_to_go_as_its_longest_request() -> None:
    assert plan(longest_s=90.0).options["graceful_shutdown_timeout_s"] > 90


@pytest.mark.parametrize(
    "changes",
    [{"min_replicas": 3}, {"min_replicas": -1}, {"min_replicas": 0}, {"max_queued": 0},
     {"target_ongoing": 0.0}, {"max_ongoing": -1}, {"surge": -1}, {"surge": 101}],
)  # fmt: skip
def test_what_cannot_be_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidSetting):
        plan(**changes)


def test_a_new_ingress_comes_before_the_old_one_goes() -> None:
    options = IngressPlan().options
    assert options["max_surge_percent"] > 0
    assert options["ray_actor_options"]["num_cpus"] == 0


def test_the_file_is_plain_and_holds_no_key() -> None:
    arguments = arguments_of([plan(settings={"slots": 4})], IngressPlan(server={"host": "127.0.0.1"}))
    config = config_of(arguments, host="127.0.0.1", port=1)
    (application,) = config["applications"]
    (model,) = application["args"]["models"]
    assert model["settings"] == {"slots": 4, "name": "My Model"}
    assert model["options"]["name"] == "model-my-model"
    assert "key" not in str(config)


def test_an_argument_of_an_older_file_is_refused_by_name() -> None:
    arguments = arguments_of([plan()], IngressPlan(), {"log_format": "json"})
    check_arguments(arguments)
    with pytest.raises(InvalidSetting, match="no argument telling") as caught:
        check_arguments({**arguments, "telling": {}})
    assert caught.value.param == "telling"


def test_a_setting_that_the_server_does_not_have_is_refused_by_name() -> None:
    with pytest.raises(InvalidSetting, match="no setting allowed_host; did you mean allowed_hosts") as caught:
        settings_of({"allowed_host": ["a"]})
    assert caught.value.param == "allowed_host"
