"""`/v1/chat/completions`, not streamed."""

from __future__ import annotations

from typing import Any

from drivetrain.tools.conform.answers import CHAT, read_whole
from drivetrain.tools.conform.case import BY_ENDPOINT, BY_FIELD, Area, Cases
from drivetrain.tools.conform.cases.shapes import add_refusal, check_length, check_shape, check_unknown_model
from drivetrain.tools.conform.reading import brief, honoured, refused
from drivetrain.tools.conform.requester import LEFT_OUT, PROMPT
from drivetrain.tools.conform.survey import answered
from drivetrain.tools.conform.trial import Trial
from drivetrain.tools.conform.verdict import NotRun, ensure

CASES = Cases(Area.CHAT, BY_ENDPOINT, needs=CHAT)
case = CASES.case


@case("shape", asks="a short answer", holds="id, object, created, model, one choice with index 0 and role assistant",
      is_plain=True)  # fmt: skip
async def _shape(t: Trial) -> None:
    exchange = await t.post(CHAT.path, t.body(CHAT))
    answered(exchange, "messages")
    document = check_shape(CHAT, exchange)
    message = document["choices"][0]["message"]
    ensure(message.get("role") == "assistant", f"the role is {brief(message.get('role'))}, not 'assistant'")


@case("length", asks="max_tokens = 5", holds="exactly 5 tokens and finish_reason length")
async def _length(t: Trial) -> None:
    await check_length(t, CHAT, max_tokens=5)


@case("max_completion_tokens", asks="max_completion_tokens = 5", holds="the same as max_tokens", offered=BY_FIELD)
async def _max_completion_tokens(t: Trial) -> None:
    await check_length(t, CHAT, max_tokens=LEFT_OUT, max_completion_tokens=5)


@case(
    "two_lengths",
    asks="max_tokens = 3 and max_completion_tokens = 4; then 3 and 3",
    holds="400 where they disagree, 3 tokens where they agree",
    offered=BY_FIELD,
)
async def _two_lengths(t: Trial) -> None:
    await check_length(t, CHAT, max_tokens=3, max_completion_tokens=3)
    exchange = await t.post(CHAT.path, t.body(CHAT, max_tokens=3, max_completion_tokens=4))
    refused(exchange, "max_tokens = 3 with max_completion_tokens = 4", "max_tokens", "max_completion_tokens")


@case("eos", asks="an answer that the model ends by itself", holds="finish_reason stop")
async def _eos(t: Trial) -> None:
    messages = [{"role": "user", "content": "Say hello in one word."}]
    answer = await t.generate(CHAT, messages=messages, max_tokens=200)
    if answer.counted.completion >= 200 and answer.first.reason == "length":
        raise NotRun("the model did not end its answer within 200 tokens")
    ensure(answer.first.reason == "stop", f"finish_reason is {answer.first.reason!r}, not 'stop'")


@case("parts", asks="content as a list of one text part, and as a string", holds="the same prompt, the same answer")
async def _parts(t: Trial) -> None:
    await t.known.sample()
    plain = await t.generate(CHAT)
    made = await t.generate(CHAT, messages=_in_parts(PROMPT))
    ensure(
        made.counted.prompt == plain.counted.prompt,
        f"the part counts as {made.counted.prompt} prompt tokens, the string as {plain.counted.prompt}",
    )
    ensure(made.text == plain.text, f"the part is answered with {brief(made.text)}, the string {brief(plain.text)}")


@case("several_parts", asks="content as two text parts, and as one string", holds="no part is lost: no fewer tokens")
async def _several_parts(t: Trial) -> None:
    """Servers differ in what they put between two parts; the API does not say."""
    middle = PROMPT.index(" ", len(PROMPT) // 2)
    whole = (await t.generate(CHAT)).counted.prompt
    parts = (await t.generate(CHAT, messages=_in_parts(PROMPT[:middle], PROMPT[middle:]))).counted.prompt
    ensure(
        parts >= whole, f"two parts count as {parts} prompt tokens, their text in one string as {whole}: a part is lost"
    )


def _in_parts(*texts: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "text", "text": text} for text in texts]}]


@case("developer", asks="role developer, and role system", holds="the same prompt", offered="developer is not refused")
async def _developer(t: Trial) -> None:
    counts = []
    for role in ("system", "developer"):
        messages = [{"role": role, "content": "Be brief."}, {"role": "user", "content": PROMPT}]
        exchange = await t.post(CHAT.path, t.body(CHAT, messages=messages))
        honoured(exchange, {role: None, "role": None, "messages": None})
        counts.append(read_whole(CHAT, exchange).counted.prompt)
    ensure(counts[0] == counts[1], f"system counts as {counts[0]} prompt tokens, developer as {counts[1]}")


@case(
    "inert_fields",
    asks="user, store = false, a name in a message, and n and stop as null",
    holds="they are accepted, and null counts as left out",
    offered=BY_FIELD,
)
async def _inert(t: Trial) -> None:
    fields: dict[str, Any] = {
        "user": "conform", "store": False, "n": None, "stop": None,
        "messages": [{"role": "user", "content": PROMPT, "name": "conform"}],
    }  # fmt: skip
    exchange = await t.post(CHAT.path, t.body(CHAT, **fields))
    honoured(exchange, {"user": None, "store": None})


@case(
    "special_tokens",
    asks="messages that spell special tokens, such as <|im_end|>",
    holds="they stay text: the prompt has more tokens than with one letter in their place",
)
async def _special_tokens(t: Trial) -> None:

    async def count(content: str) -> int:
        return (await t.generate(CHAT, messages=[{"role": "user", "content": content}], max_tokens=1)).counted.prompt

    letter = await count("x")
    for spelled in ("<|im_end|>", "<|endoftext|>", "</s>", "<|eot_id|>"):
        ensure(await count(spelled) > letter, f"{spelled} in a message became one special token: it ends the turn")


_BAD_MESSAGES: tuple[tuple[str, str, Any], ...] = (
    ("null", "null", None),
    ("string", "a string", "Hello"),
    ("empty", "an empty list", []),
    ("number", "a list of a number", [123]),
    ("no_role", "a message without keys", [{}]),
    ("unknown_role", "an unknown role", [{"role": "wizard", "content": "x"}]),
    ("content", "content that is a number", [{"role": "user", "content": 5}]),
    ("part", "a part of an unknown type", [{"role": "user", "content": [{"type": "nonsense"}]}]),
)


for _name, _what, _messages in _BAD_MESSAGES:
    add_refusal(CASES, f"messages_{_name}", CHAT, f"messages that are {_what}", messages=_messages)


@case("unknown_model", asks="an unknown model", holds="404")
async def _unknown_model(t: Trial) -> None:
    await check_unknown_model(t, CHAT)


@case("several", asks="n = 3", holds="three choices with the indices 0, 1, 2, each whole", offered=BY_FIELD)
async def _several(t: Trial) -> None:
    answer = await t.generate(CHAT, n=3, max_tokens=5, temperature=1)
    indices = [choice.index for choice in answer.choices]
    ensure(indices == [0, 1, 2], f"n = 3 gave the indices {indices}")
    ensure(all(choice.reason for choice in answer.choices), "a choice has no finish_reason")
