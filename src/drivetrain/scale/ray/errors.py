"""Ray's exceptions as ours. Errors of a replica's own come as answers, with their type."""

from __future__ import annotations

from ray.exceptions import ActorDiedError, ActorUnavailableError, RayActorError, RayError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RayServeException

from drivetrain.core.errors import Cancelled, DrivetrainError, EngineFailed, NotReady, Overloaded

FOREIGN = (RayError, RayServeException)
LOST = (RayActorError, ActorDiedError, ActorUnavailableError)
"""The replica is gone or out of reach, and what it did is unknown."""

RETRY_AFTER_S = 1.0


def translated(error: Exception) -> DrivetrainError:
    made = _translated(error)
    made.__cause__ = error
    return made


def _translated(error: Exception) -> DrivetrainError:
    if isinstance(error, BackPressureError):
        message = f"{error.args[0]} requests are already waiting for a replica; try again shortly"
        return Overloaded(message, retry_after_s=error.retry_after_s or RETRY_AFTER_S)
    if isinstance(error, DeploymentUnavailableError):
        return NotReady("no replica of this model could be started", retry_after_s=5.0)
    if isinstance(error, LOST):
        return EngineFailed("the replica running this request was lost; try again")
    if type(error).__name__ == "RequestCancelledError":
        return Cancelled("the request was cancelled")
    return EngineFailed(f"the replica failed on this request: {type(error).__name__}")
