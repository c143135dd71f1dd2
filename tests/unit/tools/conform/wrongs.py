"""Ways to make the toy server wrong: what it is asked, what it answers, and what it streams, changed on the way."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from toy_server import Faults, Reply

Make = Callable[[], Faults]


@dataclass(frozen=True)
class Wrong:
    """`says` has for each case that must fail a part of what it says."""

    name: str
    make: Make
    says: dict[str, str]


def says(words: str, area: str, *names: str) -> dict[str, str]:
    """The same words for several cases of an area."""
    return {f"{area}.{name}": words for name in names}


def asked(change: Callable[[dict[str, Any]], Any]) -> Make:
    """Every request is changed in place before it is read."""

    def request(path: str, body: Any) -> Any:
        if isinstance(body, dict):
            change(body)
        return body

    return lambda: Faults(request=request)


def ignores(*names: str) -> Make:
    return asked(lambda body: [body.pop(name, None) for name in names])


def answers(change: Callable[[Any, Any], Any], path: str = "") -> Make:
    """The document of every good answer that is not streamed is changed in place. `change` sees the request too."""

    def reply(at: str, body: Any, made: Reply) -> Reply:
        if made.status == 200 and made.events is None and at.endswith(path) and made.document is not None:
            made.document = copy.deepcopy(made.document)
            change(made.document, body)
        return made

    return lambda: Faults(reply=reply)


def streams(change: Callable[[list[Any]], Any]) -> Make:
    """The events of every stream are changed in place; or others are returned."""

    def reply(at: str, body: Any, made: Reply) -> Reply:
        if made.events is not None:
            made.events = copy.deepcopy(made.events)
            made.events = change(made.events) or made.events
        return made

    return lambda: Faults(reply=reply)


def errors(change: Callable[[Reply], Any]) -> Make:
    def reply(at: str, body: Any, made: Reply) -> Reply:
        if made.status >= 400:
            change(made)
        return made

    return lambda: Faults(reply=reply)


def choices(change: Callable[[dict[str, Any], Any], Any]) -> Make:
    """Each choice of a whole answer is changed in place."""

    def each(document: Any, body: Any) -> None:
        for choice in document.get("choices", []):
            change(choice, body)

    return answers(each)


def chunks(change: Callable[[dict[str, Any]], Any]) -> Make:
    """Each choice of an event is changed in place."""

    def each(events: list[Any]) -> None:
        for event in events[:-1]:
            for choice in event["choices"]:
                change(choice)

    return streams(each)


def usage(change: Callable[[dict[str, int], Any], Any]) -> Make:
    def each(document: Any, body: Any) -> None:
        if isinstance(document, dict) and "usage" in document:
            change(document["usage"], body)

    return answers(each)


def messages(change: Callable[[dict[str, Any]], Any]) -> Make:
    def each(body: dict[str, Any]) -> None:
        for message in body["messages"] if isinstance(body.get("messages"), list) else []:
            if isinstance(message, dict):
                change(message)

    return asked(each)


def reword(document: dict[str, Any], change: Callable[[str], str]) -> None:
    holder = document["message"] if "message" in document else document.get("delta", document)
    name = "text" if "text" in holder else "content"
    if isinstance(holder.get(name), str):
        holder[name] = change(holder[name])


def each_event(events: list[Any], name: str, value: Any) -> None:
    for event in events[:-1]:
        event[name] = value
