"""Bodies and events as they are sent, held to the types that a client or a document has for them."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

from pydantic import BaseModel

from server.sse import events


def posted(base: str, path: str, **body: Any) -> bytes:
    """What comes back, as it is."""
    asked = urllib.request.Request(f"{base}{path}", json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(asked, timeout=120) as answer:
        sent: bytes = answer.read()
    return sent


def streamed(base: str, path: str, **body: Any) -> list[tuple[str, dict[str, Any]]]:
    return events(posted(base, path, stream=True, **body))


def held_to(kind: type[BaseModel], sent: dict[str, Any]) -> None:
    """It is valid without a conversion, and nothing is sent that the type does not have, however deep."""
    model = kind.model_validate_json(json.dumps(sent), strict=True)
    assert strangers(model) == []
    assert model.model_dump(mode="json", by_alias=True, exclude_unset=True) == sent


def strangers(value: Any, where: str = "") -> list[str]:
    """Fields that a type lets pass without having them."""
    if isinstance(value, BaseModel):
        inside = [(f"{where}.{name}", getattr(value, name)) for name in type(value).model_fields]
        own = [f"{where}.{name}" for name in value.model_extra or {}]
    else:
        inside = [(f"{where}[{i}]", item) for i, item in enumerate(value)] if isinstance(value, (list, tuple)) else []
        own = []
    return own + [found for place, item in inside for found in strangers(item, place)]
