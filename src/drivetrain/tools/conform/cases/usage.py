"""Usage: the counts must match what was really read and sampled."""

from __future__ import annotations

from drivetrain.tools.conform.answers import COMPLETIONS
from drivetrain.tools.conform.case import BY_ENDPOINT, Area, Cases
from drivetrain.tools.conform.cases.shapes import one_length
from drivetrain.tools.conform.requester import PROMPT
from drivetrain.tools.conform.trial import Trial
from drivetrain.tools.conform.verdict import ensure

CASES = Cases(Area.USAGE, BY_ENDPOINT)
case = CASES.case


@case("adds_up", asks="a short answer", holds="prompt and completion tokens add up to the total; both are above 0")
async def _adds_up(t: Trial) -> None:
    api = await t.known.text_api()
    usage = (await t.generate(api)).counted
    ensure(usage.total == usage.prompt + usage.completion, f"{usage.prompt} + {usage.completion} is not {usage.total}")
    ensure(usage.prompt > 0, "the prompt is counted as no tokens")
    ensure(usage.completion > 0, "the answer is counted as no tokens")


@case("streamed", asks="the same answer streamed and whole", holds="the same usage")
async def _streamed(t: Trial) -> None:
    sample = await t.known.sample()
    whole = (await t.generate(sample.api, **sample.fields)).counted
    streamed = (await t.stream(sample.api, **sample.fields, stream_options={"include_usage": True})).counted
    ensure(streamed == whole, f"streamed {streamed}, whole {whole}")


@case("prompt_grows", asks="a prompt, and twice the prompt", holds="more prompt tokens")
async def _prompt_grows(t: Trial) -> None:
    api = await t.known.text_api()
    once = (await t.generate(api, **api.prompt_fields(PROMPT))).counted.prompt
    twice = (await t.generate(api, **api.prompt_fields(f"{PROMPT} {PROMPT}"))).counted.prompt
    ensure(twice > once, f"{once} prompt tokens, and {twice} for twice the prompt")


@case("prompt_ids", asks="a completion of a prompt whose ids are known", holds="as many prompt tokens as ids")
async def _prompt_ids(t: Trial) -> None:
    await t.known.offers(COMPLETIONS)
    ids = await t.known.ids(PROMPT)
    got = (await t.generate(COMPLETIONS)).counted.prompt
    ensure(got == len(ids), f"{got} prompt tokens; /tokenize gives {len(ids)} ids")


@case("several", asks="n = 2 with max_tokens = 5", holds="10 completion tokens; the prompt counts once")
async def _several(t: Trial) -> None:
    api = await t.known.text_api()
    one = (await one_length(t, api, 5, temperature=1)).counted
    two = (await one_length(t, api, 5, temperature=1, n=2)).counted
    ensure(two.completion == 10, f"two choices of 5 tokens are counted as {two.completion}")
    ensure(
        two.prompt == one.prompt, f"the prompt counts as {two.prompt} tokens with n = 2, and as {one.prompt} without"
    )


@case("stopped", asks="an answer ended by a stop", holds="the tokens up to the stop, and no more than were sampled")
async def _stopped(t: Trial) -> None:
    sample = await t.known.sample()
    whole = (await t.generate(sample.api, **sample.fields)).counted.completion
    ended = (await t.generate(sample.api, **sample.fields, stop=sample.cut(0.4, 2))).counted.completion
    ensure(1 <= ended <= whole, f"an answer of {whole} tokens, ended by a stop, is counted as {ended}")
    limit = sample.fields["max_tokens"]
    ensure(ended < limit, f"a stop ended the answer early, but all {limit} tokens of max_tokens are counted")
