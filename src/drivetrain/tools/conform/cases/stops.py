"""Stop strings. No text is known beforehand, so the model is asked once and stops are taken from its answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from drivetrain.tools.conform.answers import COMPLETIONS, ParsedAnswer
from drivetrain.tools.conform.case import BY_EFFECT, BY_ENDPOINT, Area, Cases
from drivetrain.tools.conform.reading import brief, refused
from drivetrain.tools.conform.survey import Sample
from drivetrain.tools.conform.trial import Trial
from drivetrain.tools.conform.verdict import NotRun, ensure

CASES = Cases(Area.STOPS, BY_ENDPOINT)
case = CASES.case

SNOWMAN = "\u2603\u2603\u2603"
MANY = 1000


def cut_at(text: str, stops: Sequence[str]) -> str | None:
    """The text before the stop that is completed first, or the longest if several are. None if there is no stop."""
    found = [(text.index(stop) + len(stop), -len(stop), text.index(stop)) for stop in stops if stop in text]
    return text[: min(found)[2]] if found else None


async def _check(t: Trial, sample: Sample, stops: Sequence[str], **fields: Any) -> None:
    stop: Any = list(stops) if len(stops) > 1 else stops[0]
    want = cut_at(sample.text, stops)
    assert want is not None
    _ends_at(await t.generate(sample.api, **sample.fields, stop=stop, **fields), want, stops, "")
    _ends_at(await t.stream(sample.api, **sample.fields, stop=stop, **fields), want, stops, "streamed: ")


def _ends_at(answer: ParsedAnswer, want: str, stops: Sequence[str], how: str) -> None:
    text, reason = answer.text, answer.first.reason
    for stop in stops:
        ensure(stop not in text, f"{how}the stop {stop!r} is in the text {brief(text, 160)}")
    over = text.removeprefix(want)
    leaked = text.startswith(want) and over and any(stop.startswith(over) for stop in stops)
    ensure(not leaked, f"{how}the text ends with {over!r}, a part of the stop {brief(list(stops))}")
    ensure(text == want, f"{how}the text is {brief(text, 160)}; up to the stop it is {brief(want, 160)}")
    ensure(reason == "stop", f"{how}finish_reason is {reason!r}, not 'stop'")


@case("string", asks="a stop from the middle of a known answer", holds="exactly the text before it; reason stop")
async def _string(t: Trial) -> None:
    sample = await t.known.sample()
    await _check(t, sample, [sample.cut(0.5, 3)])


@case("one_character", asks="a stop of one character", holds="exactly the text before it; reason stop")
async def _one_character(t: Trial) -> None:
    sample = await t.known.sample()
    await _check(t, sample, [sample.cut(0.7, 1)])


@case("spanning", asks="stops of several lengths, within tokens and across them", holds="the same for each")
async def _spanning(t: Trial) -> None:
    sample = await t.known.sample()
    for at, size in ((0.3, 9), (0.35, 5), (0.4, 10), (0.45, 2)):
        await _check(t, sample, [sample.cut(at, size)])


@case("first_of_several", asks="two stops, the later one first", holds="the one completed first in the text wins")
async def _first_of_several(t: Trial) -> None:
    sample = await t.known.sample()
    earlier = sample.cut(0.3, 3)
    await _check(t, sample, [sample.cut_after(earlier), earlier])


@case("nested", asks="a long stop, and a short one inside it", holds="the short one wins: it is completed first")
async def _nested(t: Trial) -> None:
    sample = await t.known.sample()
    outer = sample.cut(0.3, 8)
    await _check(t, sample, [outer, outer[1:4] or outer])


@case("at_once", asks="a stop that the answer begins with", holds="an empty text and reason stop")
async def _at_once(t: Trial) -> None:
    sample = await t.known.sample()
    stop = sample.text[:2]
    if "\ufffd" in stop:
        raise NotRun("the answer begins with half a character")
    await _check(t, sample, [stop])


@case("beside", asks="a stop that begins like the end of the answer but goes on", holds="the whole text, to its end")
async def _beside(t: Trial) -> None:
    sample = await t.known.sample()
    stop = sample.text[-3:] + SNOWMAN
    for answer in (
        await t.generate(sample.api, **sample.fields, stop=stop),
        await t.stream(sample.api, **sample.fields, stop=stop),
    ):
        ensure(
            answer.text == sample.text,
            f"a stop that never occurs removed text: {brief(answer.text[-40:])} instead of {brief(sample.text[-40:])}",
        )


@case("unicode", asks="a stop with a character beyond ASCII", holds="exactly the text before it; reason stop")
async def _unicode(t: Trial) -> None:
    sample = await t.known.sample()
    text = sample.text
    at = next((i for i, c in enumerate(text) if not c.isascii() and c != "\ufffd"), None)
    if at is None:
        api = sample.api
        fields = {
            **sample.fields,
            **api.prompt_fields("Repeat exactly: 🌍🎉你好, 世界! 🌍🎉你好, 世界!"),
            "temperature": 0,
        }
        text = (await t.generate(api, **fields)).text
        at = next((i for i, c in enumerate(text) if not c.isascii() and c != "\ufffd"), None)
        if at is None:
            raise NotRun("the model's answers have only ASCII characters")
        sample = Sample(api, fields, text)
    await _check(t, sample, [text[at]])


@case("completions", asks="a stop from the middle of a known completion", holds="exactly the text before it")
async def _completions(t: Trial) -> None:
    await t.known.offers(COMPLETIONS)
    sample = await t.known.sample(COMPLETIONS)
    await _check(t, sample, [sample.cut(0.5, 3)])


@case(
    "included",
    asks="include_stop_str_in_output",
    holds="the text ends with the stop and nothing more",
    offered=BY_EFFECT,
)
async def _included(t: Trial) -> None:
    sample = await t.known.sample()
    stop = sample.cut(0.5, 3)
    want = sample.text[: sample.text.index(stop)] + stop
    answer = await t.generate(sample.api, **sample.fields, stop=stop, include_stop_str_in_output=True)
    ensure(answer.text == want, f"the text is {brief(answer.text, 160)}, not {brief(want, 160)}")


@case("ids", asks="stop_token_ids with an id of a known answer", holds="the answer ends there", offered=BY_EFFECT)
async def _ids(t: Trial) -> None:
    sample = await t.known.sample()
    await t.generate(sample.api, stop_token_ids=[0])
    ids = await t.known.sample_ids()
    stop = ids[len(ids) // 2]
    ended = await t.generate(sample.api, **sample.fields, stop_token_ids=[stop])
    want, got = ids.index(stop) + 1, ended.counted.completion
    ensure(got == want, f"the answer has {got} tokens; the stop id is token number {want}")
    ensure(sample.text.startswith(ended.text), f"the text is {brief(ended.text)}, not the beginning of the answer")
    ensure(ended.first.reason == "stop", f"finish_reason is {ended.first.reason!r}, not 'stop'")


def _bad_stop(name: str, what: str, value: Any) -> None:
    @case(f"refuse_{name}", asks=f"a stop that is {what}", holds="400 that names stop")
    async def _bad(t: Trial) -> None:
        api = await t.known.text_api()
        await t.refuse(api, "stop", value)


_bad_stop("empty", "a list of an empty string", [""])
_bad_stop("empty_in_list", "a list with an empty string", ["a", ""])
_bad_stop("number", "a number", 5)


@case("null", asks="stop = null", holds="the same as no stop")
async def _null(t: Trial) -> None:
    sample = await t.known.sample()
    answer = await t.generate(sample.api, **sample.fields, stop=None)
    ensure(answer.text == sample.text, f"with null the text is {brief(answer.text)}, without it {brief(sample.text)}")


@case("many", asks=f"{MANY} stops, the last of them in the answer", holds="400 that names stop, or the stop works")
async def _many(t: Trial) -> None:
    """Last, because a server that accepts them may be busy for a while."""
    sample = await t.known.sample()
    stops = [f"{SNOWMAN}{i}" for i in range(MANY - 1)] + [sample.cut(0.5, 3)]
    exchange = await t.post(sample.api.path, t.body(sample.api, **sample.fields, stop=stops))
    if exchange.status != 200:
        refused(exchange, f"{MANY} stops", "stop")
        return
    _ends_at(
        await t.generate(sample.api, **sample.fields, stop=stops), cut_at(sample.text, stops) or "", stops[-1:], ""
    )
