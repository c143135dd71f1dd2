"""Wrong servers for the cases of receipts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from toy_receipts import sealed
from toy_server import Faults
from wrongs import Make, Wrong, answers, asked, ignores, streams


def _receipts(change: Callable[[dict[str, Any]], Any]) -> Make:
    """Each receipt of a whole answer says something else, under a digest that is right."""

    def each(document: Any, body: Any) -> None:
        if isinstance(document, dict) and "receipt" in document:
            change(document["receipt"])
            document["receipt"] = sealed(document["receipt"])

    return answers(each)


def _unsealed(document: Any, body: Any) -> None:
    if isinstance(document, dict) and "receipt" in document:
        document["receipt"]["model"] = "y"


def _turned(document: Any, body: Any) -> None:
    if isinstance(document, dict) and "receipts" in document:
        document["receipts"].reverse()


def _streamed_twice(events: list[Any]) -> list[Any]:
    return [*events[:-1], *[event for event in events[:-1] if "receipt" in event], events[-1]]


def _streamed_first(events: list[Any]) -> list[Any]:
    return sorted(events, key=lambda event: "receipt" not in event)


def _streamed_otherwise(events: list[Any]) -> None:
    for event in events[:-1]:
        if "receipt" in event:
            event["receipt"] = sealed({**event["receipt"], "device": "cuda"})


def _half_is_whole(body: dict[str, Any]) -> None:
    if body.get("receipt") == "half":
        body["receipt"] = True


RECEIPTS = (
    Wrong("receipts are ignored", ignores("receipt"), {"receipts.offered": "has no receipt"}),
    Wrong("receipts for all", asked(lambda body: body.update(receipt=True)), {"receipts.unasked": "not asked for"}),
    Wrong("a changed receipt", answers(_unsealed), {"receipts.shape": "its digest is not that of its contents"}),
    Wrong("a form of its own", _receipts(lambda r: r.update(form=2)), {"receipts.shape": "its form is 2"}),
    Wrong("a lacking field", _receipts(lambda r: r.pop("versions")), {"receipts.shape": "a field is missing"}),
    Wrong("another id", _receipts(lambda r: r.update(request_id="x")), {"receipts.shape": "request_id is 'x'"}),
    Wrong(
        "an id more in receipts",
        _receipts(lambda r: r["choices"][0]["token_ids"].append(1)),
        {"receipts.counts": "has 6 ids, and usage counts 5"},
    ),
    Wrong("no full receipts", _receipts(lambda r: r["prompt"].pop("ids", 0)), {"receipts.full": "has no ids"}),
    Wrong("two receipts in a stream", streams(_streamed_twice), {"receipts.streamed": "2 events"}),
    Wrong("the receipt first", streams(_streamed_first), {"receipts.streamed": "behind all choices"}),
    Wrong("another receipt streamed", streams(_streamed_otherwise), {"receipts.streamed": "differ in device"}),
    Wrong("seeds of receipts are ignored", ignores("seed"), {"receipts.repeats": "differ in parameters, choices"}),
    Wrong(
        "another seed",
        _receipts(lambda r: r["parameters"]["seed"].update(value=r["parameters"]["seed"]["value"] ^ 1)),
        {"receipts.chosen": "gives another answer"},
    ),
    Wrong("one choice told", _receipts(lambda r: r.update(choices=r["choices"][:1])), {"receipts.several": r"\[0\]"}),
    Wrong("receipts turned", answers(_turned), {"receipts.prompts": "order of the prompts"}),
    Wrong("no header for receipts", lambda: Faults(reads_header=False), {"receipts.header": "has no receipt"}),
    Wrong("half a receipt", asked(_half_is_whole), {"receipts.refuse_value": "was accepted"}),
)
