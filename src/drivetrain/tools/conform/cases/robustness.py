"""No input, however odd, causes a 5xx other than 503 and 504, or stops the server."""

from __future__ import annotations

from typing import Any

from drivetrain.tools.conform.case import BY_ENDPOINT, Area, Cases
from drivetrain.tools.conform.client import Broken
from drivetrain.tools.conform.reading import brief, message_of
from drivetrain.tools.conform.trial import Trial
from drivetrain.tools.conform.verdict import Failed, ensure

CASES = Cases(Area.ROBUSTNESS, BY_ENDPOINT)


def _deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


_ODD: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("zero_bytes", "zero characters in the text", {"say": "a\0b\0c"}),
    ("surrogate", "half a surrogate pair in the text", {"say": "\ud800"}),
    ("controls", "control characters in the text", {"say": "".join(map(chr, range(1, 32)))}),
    ("empty_text", "an empty text", {"say": ""}),
    ("long_word", "one word of 5,000 letters", {"say": "a" * 5000}),
    ("long_name", "a field name of 10,000 letters", {"x" * 10_000: 1}),
    ("many_fields", "2,000 unknown fields", {f"x{i}": i for i in range(2000)}),
    ("deep_value", "a value 200 lists deep", {"metadata": _deep(200)}),
    ("huge_number", "a number of 400 digits as temperature", {"temperature": 10**400}),
    ("object_everywhere", "an object as every value", {"max_tokens": {}, "stop": {}, "n": {}, "stream": {}}),
    ("null_everywhere", "null as model and messages", {"model": None, "messages": None, "prompt": None}),
    ("huge_seed", "a seed of 40 digits", {"seed": 10**40}),
    ("strange_stop", "a stop of zero characters and surrogates", {"stop": ["\0", "\udfff"]}),
)


def _odd(name: str, what: str, fields: dict[str, Any]) -> None:
    @CASES.case(name, asks=what, holds="no 5xx, and the next request is answered")
    async def _check(t: Trial) -> None:
        api = await t.known.text_api()
        text = fields.get("say")
        sent = api.prompt_fields(text) if text is not None else fields
        try:
            exchange = await t.post(api.path, t.body(api, **sent))
        except Broken as exc:
            raise Failed(f"{what}: {exc}") from None
        status = exchange.status
        ensure(status < 500 or status in {503, 504}, f"{what}: status {status}: {message_of(exchange)}")
        after = await t.post(api.path, t.body(api))
        ensure(after.status == 200, f"after {what} a plain request has status {after.status}: {brief(after.reply)}")


for _row in _ODD:
    _odd(*_row)
