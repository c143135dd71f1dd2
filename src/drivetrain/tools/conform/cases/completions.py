"""`/v1/completions`, not streamed."""

from __future__ import annotations

from typing import Any

from drivetrain.tools.conform.answers import COMPLETIONS, ParsedAnswer, read_stream, read_whole
from drivetrain.tools.conform.case import BY_EFFECT, BY_ENDPOINT, BY_FIELD, Area, Cases
from drivetrain.tools.conform.cases.shapes import add_refusal, check_length, check_shape, check_unknown_model
from drivetrain.tools.conform.reading import brief, honoured
from drivetrain.tools.conform.requester import LEFT_OUT, PROMPT
from drivetrain.tools.conform.survey import answered
from drivetrain.tools.conform.trial import Trial
from drivetrain.tools.conform.verdict import NotRun, ensure

CASES = Cases(Area.COMPLETIONS, BY_ENDPOINT, needs=COMPLETIONS)
case = CASES.case

API = COMPLETIONS
TWO = ["One", "Two two"]
SUFFIX = " The end, and nothing more is said about the boat."


@case("shape", asks="a short answer", holds="id, object text_completion, created, model, one choice with index 0",
      is_plain=True)  # fmt: skip
async def _shape(t: Trial) -> None:
    exchange = await t.post(API.path, t.body(API))
    answered(exchange, "prompt")
    check_shape(API, exchange)


@case("length", asks="max_tokens = 5", holds="exactly 5 tokens and finish_reason length")
async def _length(t: Trial) -> None:
    await check_length(t, API, max_tokens=5)


@case("default_length", asks="no max_tokens", holds="16 tokens, as the OpenAI API says")
async def _default_length(t: Trial) -> None:
    answer = await t.generate(API, max_tokens=LEFT_OUT, **await t.known.steady(API))
    got = answer.counted.completion
    if answer.first.reason == "stop" and got <= 16:
        raise NotRun(f"the model ended its answer by itself after {got} tokens")
    ensure(got == 16, f"without max_tokens the answer has {got} tokens, not 16")


@case("ids", asks="the prompt as token ids, and as a string", holds="the same prompt, the same answer")
async def _ids(t: Trial) -> None:
    ids = await t.known.ids(PROMPT)
    await t.known.sample()
    text = await t.generate(API)
    by_ids = await _prompts(t, prompt=ids)
    _same(text, by_ids, "the string", "its ids")


@case("prompt_token_ids", asks="prompt_token_ids in place of prompt", holds="the same as the string", offered=BY_EFFECT)
async def _prompt_token_ids(t: Trial) -> None:
    ids = await t.known.ids(PROMPT)
    exchange = await t.post(API.path, t.body(API, prompt=LEFT_OUT, prompt_token_ids=ids))
    honoured(
        exchange, {"prompt_token_ids": None, "prompt": None}
    )  # without the one, a server that ignores the other has no prompt
    by_ids = read_whole(API, exchange)
    await t.known.sample()
    _same(await t.generate(API), by_ids, "the string", "prompt_token_ids")


async def _prompts(t: Trial, *, streamed: bool = False, **fields: Any) -> ParsedAnswer:
    """Unlike a plain string, any other form of prompt may be refused by name."""
    exchange = await t.post(API.path, t.body(API, **fields, **({"stream": True} if streamed else {})))
    honoured(exchange, fields)
    return read_stream(API, exchange) if streamed else read_whole(API, exchange)


def _same(one: ParsedAnswer, two: ParsedAnswer, first: str, second: str) -> None:
    ensure(
        one.counted.prompt == two.counted.prompt,
        f"{first} counts as {one.counted.prompt} prompt tokens, {second} as {two.counted.prompt}",
    )
    ensure(one.text == two.text, f"{first} is answered with {brief(one.text)}, {second} with {brief(two.text)}")


@case("list", asks="a list of two prompts", holds="two choices, in the order of the prompts; usage of both")
async def _list(t: Trial) -> None:
    both = await _prompts(t, prompt=TWO)
    indices = [choice.index for choice in both.choices]
    ensure(indices == [0, 1], f"two prompts gave the indices {indices}")
    alone = [(await t.generate(API, prompt=prompt)).counted.prompt for prompt in TWO]
    ensure(
        both.counted.prompt == sum(alone),
        f"the list counts as {both.counted.prompt} prompt tokens, its prompts alone as {alone}",
    )


@case(
    "list_order", asks="a list of two prompts with n = 2 and echo", holds="choices 0 and 1 belong to the first prompt"
)
async def _list_order(t: Trial) -> None:
    await _check_order(t, streamed=False)


@case("list_streamed", asks="the same, streamed", holds="each event's index belongs to the right prompt")
async def _list_streamed(t: Trial) -> None:
    await _check_order(t, streamed=True)


async def _check_order(t: Trial, *, streamed: bool) -> None:
    answer = await _prompts(t, streamed=streamed, prompt=TWO, n=2, echo=True, temperature=1)
    indices = [choice.index for choice in answer.choices]
    ensure(indices == [0, 1, 2, 3], f"two prompts with n = 2 gave the indices {indices}")
    await t.known.echoes()
    for choice in answer.choices:
        prompt = TWO[choice.index // 2]
        ensure(
            choice.text.startswith(prompt),
            f"choice {choice.index} is {brief(choice.text)}; it must begin with {prompt!r}",
        )


@case("lists_of_ids", asks="a list of two lists of ids", holds="the prompt tokens are counted as sent")
async def _lists_of_ids(t: Trial) -> None:
    lists = [await t.known.ids(prompt) for prompt in TWO]
    answer = await _prompts(t, prompt=lists)
    ensure(len(answer.choices) == 2, f"two lists of ids gave {len(answer.choices)} choices")
    want = sum(map(len, lists))
    ensure(answer.counted.prompt == want, f"{want} ids are counted as {answer.counted.prompt} prompt tokens")


@case("echo", asks="echo", holds="the text is the prompt, then the answer", offered=BY_FIELD)
async def _echo(t: Trial) -> None:
    echoed = await t.generate(API, echo=True)
    ensure(echoed.text.startswith(PROMPT), f"with echo the text is {brief(echoed.text)}; it must begin with the prompt")
    await t.known.sample()
    plain = await t.generate(API)
    ensure(echoed.text == PROMPT + plain.text, f"after the prompt comes {brief(echoed.text[len(PROMPT):])}, "
           f"without echo {brief(plain.text)}")  # fmt: skip
    ensure(echoed.counted.completion == plain.counted.completion, "echo changes the count of completion tokens")


@case("echo_alone", asks="echo with max_tokens = 0", holds="the prompt and nothing more", offered=BY_FIELD)
async def _echo_alone(t: Trial) -> None:
    await t.known.echoes()
    answer = await t.generate(API, echo=True, max_tokens=0)
    ensure(answer.text == PROMPT, f"the text is {brief(answer.text)}, not the prompt")
    ensure(answer.counted.completion == 0, f"usage counts {answer.counted.completion} completion tokens, not 0")


@case(
    "suffix",
    asks="a suffix",
    holds="it is added to the prompt; what the model fills in is not judged",
    offered=BY_FIELD,
)
async def _suffix(t: Trial) -> None:
    answer = await t.generate(API, suffix=SUFFIX)
    plain = await t.generate(API)
    ensure(
        answer.counted.prompt > plain.counted.prompt,
        "suffix is accepted but adds nothing to the prompt: it is ignored",
    )


@case("suffix_streamed", asks="a suffix, streamed", holds="the text of the same request not streamed", offered=BY_FIELD)
async def _suffix_streamed(t: Trial) -> None:
    whole = await t.generate(API, suffix=SUFFIX)
    await t.known.sample()
    streamed = await t.stream(API, suffix=SUFFIX)
    ensure(whole.text == streamed.text, f"the stream fills in {brief(streamed.text)}, not {brief(whole.text)}")


@case("suffix_list", asks="a list of two prompts with a suffix", holds="each has the suffix", offered=BY_FIELD)
async def _suffix_list(t: Trial) -> None:
    alone = [(await t.generate(API, prompt=prompt, suffix=SUFFIX)).counted.prompt for prompt in TWO]
    both = (await _prompts(t, prompt=TWO, suffix=SUFFIX)).counted.prompt
    ensure(both == sum(alone), f"the list counts as {both} prompt tokens, its prompts alone as {alone}")


@case(
    "suffix_special_tokens",
    asks="a suffix that spells special tokens, such as <|fim_middle|>",
    holds="they stay text: the prompt has more tokens than with one letter in their place",
    offered=BY_FIELD,
)
async def _suffix_special_tokens(t: Trial) -> None:
    letter = (await t.generate(API, suffix="x", max_tokens=1)).counted.prompt
    for spelled in ("<|fim_middle|>", "<fim_middle>", "<|endoftext|>", "</s>"):
        count = (await t.generate(API, suffix=spelled, max_tokens=1)).counted.prompt
        ensure(count > letter, f"{spelled} in a suffix became one special token: it ends the text behind the gap")


@case("best_of", asks="best_of = 3 with n = 1", holds="usage counts three sampled answers", offered=BY_FIELD)
async def _best_of(t: Trial) -> None:
    steady = await t.known.steady(API)
    answer = await t.generate(API, best_of=3, n=1, temperature=1, max_tokens=5, **steady)
    counted = answer.counted.completion
    ensure(counted > 5, f"best_of = 3 is accepted, but only {counted} tokens were sampled: it is ignored")


_BAD_PROMPTS: tuple[tuple[str, str, object], ...] = (
    ("empty_list", "an empty list", []),
    ("empty_ids", "a list of an empty list", [[]]),
    ("number", "a number", 5),
    ("mixed", "a list of a string and a number", ["a", 1]),
    ("negative_id", "a negative token id", [-1]),
    ("huge_id", "a token id beyond any vocabulary", [10**9]),
)


for _name, _what, _prompt in _BAD_PROMPTS:
    add_refusal(CASES, f"prompt_{_name}", API, f"a prompt that is {_what}", prompt=_prompt)


@case("unknown_model", asks="an unknown model", holds="404")
async def _unknown_model(t: Trial) -> None:
    await check_unknown_model(t, API)
