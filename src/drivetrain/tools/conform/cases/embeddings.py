"""`/v1/embeddings`."""

from __future__ import annotations

import base64
import math
import struct
from typing import Any

from drivetrain.tools.conform.answers import read_usage
from drivetrain.tools.conform.case import BY_ENDPOINT, BY_FIELD, Area, Cases
from drivetrain.tools.conform.cases.refusing import refusal
from drivetrain.tools.conform.exchange import RecordedExchange
from drivetrain.tools.conform.reading import brief, honoured, is_number, param_names, refused, take
from drivetrain.tools.conform.requester import LEFT_OUT
from drivetrain.tools.conform.survey import UNKNOWN_FIELD, answered
from drivetrain.tools.conform.trial import Trial
from drivetrain.tools.conform.verdict import Failed, NotOffered, ensure

CASES = Cases(Area.EMBEDDINGS, BY_ENDPOINT)
case = CASES.case

PATH = "/embeddings"
TEXTS = ["A small boat on the sea.", "The price of tin in 1911.", "A little ship on the water."]


async def _post(t: Trial, **fields: Any) -> RecordedExchange:
    body = {"model": t.model, "input": TEXTS[0], "encoding_format": "float", **fields}
    return await t.post(PATH, {name: value for name, value in body.items() if value is not LEFT_OUT})


async def _embed(t: Trial, **fields: Any) -> list[list[float]]:
    """The vectors, ordered by index. A model without embeddings must refuse."""
    exchange = await _post(t, **fields)
    _offered(exchange)
    honoured(exchange, {name: None for name in fields if name != "input"})
    data = take(exchange.json(), "data", list)
    given = fields.get("input", TEXTS[0])
    want = 1 if isinstance(given, str) or isinstance(given[0], int) else len(given)
    ensure(len(data) == want, f"inputs: {want}, vectors that came back: {len(data)}")
    indices = [take(item, "index", int) for item in data]
    ensure(indices == list(range(len(data))), f"the indices are {indices}; they must be in order")
    return [_vector(item) for item in data]


def _offered(exchange: RecordedExchange) -> None:
    answered(exchange, "input") if not param_names(exchange, "model") else None
    if exchange.status in {400, 422} and b"embedding" in exchange.reply.lower():
        raise NotOffered("the server says that this model gives no embeddings")


def _vector(item: Any) -> list[float]:
    found = item.get("embedding") if isinstance(item, dict) else None
    if isinstance(found, str):
        return _decoded(found)
    vector = take(item, "embedding", list)
    ensure(vector, "an embedding is empty")
    if not all(is_number(x) and math.isfinite(x) for x in vector):
        raise Failed(f"an embedding holds something that is not a number: {brief(vector)}")
    return [float(x) for x in vector]


def _decoded(text: str) -> list[float]:
    try:
        data = base64.b64decode(text, validate=True)
        vector = list(struct.unpack(f"<{len(data) // 4}f", data))
    except (ValueError, struct.error):
        raise Failed(f"an embedding is not base64 of 32-bit floats: {brief(text)}") from None
    ensure(vector, "an embedding is empty")
    return vector


def _distance(one: list[float], two: list[float]) -> float:
    if len(one) != len(two):
        raise Failed(f"one vector has {len(one)} numbers, another {len(two)}")
    return 1 - sum(a * b for a, b in zip(one, two, strict=True)) / ((math.hypot(*one) * math.hypot(*two)) or 1)


@case("shape", asks="one text", holds="object list, one vector with index 0, the model's name, and usage")
async def _shape(t: Trial) -> None:
    exchange = await _post(t)
    _offered(exchange)
    document = exchange.json()
    ensure(take(document, "object", str) == "list", f"object is {document['object']!r}, not 'list'")
    data = take(document, "data", list)
    ensure(len(data) == 1, f"one text gave {len(data)} vectors")
    item = data[0]
    ensure(take(item, "object", str) == "embedding", f"an item's object is {item['object']!r}, not 'embedding'")
    ensure(take(item, "index", int) == 0, "the index is not 0")
    _vector(item)
    take(document, "model", str)


@case("base64", asks="encoding_format = base64, and float", holds="the same vector", offered=BY_FIELD)
async def _base64(t: Trial) -> None:
    plain = (await _embed(t))[0]
    exchange = await _post(t, encoding_format="base64")
    honoured(exchange, {"encoding_format": None})
    spelled = _decoded(take(exchange.json(), "data.0.embedding", str))
    ensure(_distance(plain, spelled) < 1e-3, "base64 and float give different vectors")


@case("order", asks="three texts at once, and one by one", holds="the same vectors, in the order of the texts")
async def _order(t: Trial) -> None:
    together = await _embed(t, input=TEXTS)
    for text, vector in zip(TEXTS, together, strict=True):
        alone = (await _embed(t, input=text))[0]
        ensure(_distance(alone, vector) < 0.01, f"{text!r} has different vectors in a list and alone")


@case("dimension", asks="texts of several lengths", holds="vectors of one dimension, and not all the same")
async def _dimension(t: Trial) -> None:
    vectors = await _embed(t, input=["a", *TEXTS])
    sizes = {len(vector) for vector in vectors}
    ensure(len(sizes) == 1, f"the dimensions are {sorted(sizes)}")
    ensure(_distance(vectors[1], vectors[2]) > 1e-6, "different texts have the same vector")


@case("ids", asks="token ids, and the text that they spell", holds="the same vector")
async def _ids(t: Trial) -> None:
    by_text = (await _embed(t))[0]
    ids = await t.known.ids(TEXTS[0])
    for given in (ids, [ids]):
        ensure(
            _distance((await _embed(t, input=given))[0], by_text) < 0.01, "ids and their text give different vectors"
        )


@case("usage", asks="one text, and the text twice", holds="prompt tokens equal the total; the text twice counts double")
async def _usage(t: Trial) -> None:
    await _embed(t)
    one = read_usage(t.exchanges[-1].json())
    await _embed(t, input=[TEXTS[0], TEXTS[0]])
    two = read_usage(t.exchanges[-1].json())
    if one is None or two is None:
        raise Failed("the answer has no usage")
    ensure(one.prompt == one.total > 0, f"usage is {one.prompt} prompt tokens of {one.total} in total")
    ensure(two.prompt == 2 * one.prompt, f"a text counts as {one.prompt} tokens, the text twice as {two.prompt}")


@case(
    "dimensions", asks="dimensions: the model's own, and half of it", holds="vectors of that length", offered=BY_FIELD
)
async def _dimensions(t: Trial) -> None:
    size = len((await _embed(t))[0])
    for want in (size, size // 2):
        exchange = await _post(t, dimensions=want)
        if exchange.status != 200 and want != size:
            refused(exchange, f"dimensions = {want}", "dimensions")
            return
        honoured(exchange, {"dimensions": None})
        got = len(_vector(take(exchange.json(), "data.0", dict)))
        ensure(got == want, f"with dimensions = {want} the vector has {got} numbers: it is ignored")


_BAD: tuple[tuple[str, str, Any], ...] = (
    ("input_missing", "input", LEFT_OUT),
    ("input_number", "input", 5),
    ("input_empty_list", "input", []),
    ("input_mixed", "input", ["a", 5]),
    ("input_huge_id", "input", [10**9]),
    ("format", "encoding_format", "int8"),
    ("dimensions_zero", "dimensions", 0),
    ("unknown", UNKNOWN_FIELD, 1),
)


for _row in _BAD:
    refusal(CASES, *_row, plain=_embed, post=_post)


@case("too_long", asks="a text twice as long as the context", holds="4xx")
async def _too_long(t: Trial) -> None:
    await _embed(t)
    limit = await t.known.context_length()
    refused(await _post(t, input="word " * 2 * limit), f"a text of about {2 * limit} tokens")
