"""The list of models, and each model in it."""

from __future__ import annotations

from drivetrain.tools.conform.case import BY_ENDPOINT, Area, Cases
from drivetrain.tools.conform.reading import brief, take
from drivetrain.tools.conform.survey import UNKNOWN_MODEL, answered
from drivetrain.tools.conform.trial import Trial
from drivetrain.tools.conform.verdict import NotOffered, ensure

CASES = Cases(Area.MODELS, BY_ENDPOINT)
case = CASES.case


@case("list", asks="GET /v1/models", holds="a list of at least one model, each with id, object, created and owned_by")
async def _list(t: Trial) -> None:
    exchange = await t.get("/models")
    answered(exchange)
    document = exchange.json()
    ensure(take(document, "object", str) == "list", f"object is {document['object']!r}, not 'list'")
    models = take(document, "data", list)
    ensure(models, "data is empty: a server has at least one model")
    for model in models:
        ensure(take(model, "id", str), "a model's id is empty")
        ensure(take(model, "object", str) == "model", f"a model's object is {model['object']!r}, not 'model'")
        take(model, "created", int)
        take(model, "owned_by", str)


@case("named", asks="GET /v1/models", holds="the requested model is in the list, by that name")
async def _named(t: Trial) -> None:
    exchange = await t.get("/models")
    answered(exchange)
    ids = [take(model, "id", str) for model in take(exchange.json(), "data", list)]
    ensure(t.model in ids, f"{t.model!r} is not in the list: {brief(ids)}")


@case("retrieve", asks="GET /v1/models/{id} of a model in the list", holds="the same id")
async def _retrieve(t: Trial) -> None:
    exchange = await t.get(t.card)
    answered(exchange)
    found = take(exchange.json(), "id", str)
    ensure(found == t.model, f"the id is {found!r}, not {t.model!r}")


@case("retrieve_unknown", asks="GET /v1/models/{id} of an unknown model", holds="404")
async def _retrieve_unknown(t: Trial) -> None:
    known = await t.get(t.card)
    if known.status in {404, 405}:
        raise NotOffered(f"{known.path} answers with status {known.status}")
    exchange = await t.get(f"/models/{UNKNOWN_MODEL}")
    ensure(exchange.status == 404, f"status {exchange.status} for an unknown model; it must be 404")
