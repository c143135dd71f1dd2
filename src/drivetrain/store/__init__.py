"""Where weights come from: what a MODEL means, where it lies, how it gets here whole. Knows no engine."""

from __future__ import annotations

from drivetrain.store.catalogue import CATALOGUE
from drivetrain.store.formats import Found, config_requests_remote_code, detect
from drivetrain.store.models import LocalModel, StoredModel
from drivetrain.store.references import HubId, LocalPath, Reference, RemoteUrl, ShortName, parse
from drivetrain.store.store import Store

__all__ = [
    "CATALOGUE",
    "Found",
    "HubId",
    "LocalModel",
    "LocalPath",
    "Reference",
    "RemoteUrl",
    "ShortName",
    "Store",
    "StoredModel",
    "config_requests_remote_code",
    "detect",
    "parse",
]
