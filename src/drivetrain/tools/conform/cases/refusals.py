"""Values of the wrong type or out of range. Each must be refused by name, never ignored and never repaired.

Two values at the edge, which OpenAI's own description allows, may have their effect instead.
"""

from __future__ import annotations

from typing import Any

from drivetrain.tools.conform.answers import CHAT, COMPLETIONS, Api, ParsedAnswer, read_whole
from drivetrain.tools.conform.case import BY_EFFECT, BY_ENDPOINT, Area, Cases
from drivetrain.tools.conform.reading import brief, refused
from drivetrain.tools.conform.requester import LEFT_OUT
from drivetrain.tools.conform.trial import REFUSAL_S, Trial
from drivetrain.tools.conform.verdict import ensure

CASES = Cases(Area.REFUSALS, BY_ENDPOINT)

_ANY: tuple[tuple[str, str, Any], ...] = (
    ("max_tokens_negative", "max_tokens", -2),
    ("max_tokens_fraction", "max_tokens", 1.5),
    ("max_tokens_string", "max_tokens", "5"),
    ("max_tokens_bool", "max_tokens", True),
    ("temperature_negative", "temperature", -0.1),
    ("temperature_above_2", "temperature", 2.1),
    ("temperature_string", "temperature", "hot"),
    ("top_p_above_1", "top_p", 1.1),
    ("top_p_negative", "top_p", -0.5),
    ("presence_penalty_above_2", "presence_penalty", 2.1),
    ("presence_penalty_below_2", "presence_penalty", -2.1),
    ("frequency_penalty_above_2", "frequency_penalty", 3),
    ("frequency_penalty_string", "frequency_penalty", "much"),
    ("n_zero", "n", 0),
    ("n_million", "n", 1_000_000),
    ("n_string", "n", "2"),
    ("seed_string", "seed", "x"),
    ("seed_huge", "seed", 2**70),
    ("logit_bias_key", "logit_bias", {"x": 1}),
    ("logit_bias_value", "logit_bias", {"1": 101}),
    ("logit_bias_list", "logit_bias", [1]),
    ("stream_string", "stream", "yes"),
    ("user_number", "user", 5),
    ("model_number", "model", 7),
    ("model_missing", "model", LEFT_OUT),
)
_EXTRA: tuple[tuple[str, str, Any], ...] = (
    ("top_k_negative", "top_k", -7),
    ("top_k_string", "top_k", "many"),
    ("min_p_above_1", "min_p", 2),
    ("repetition_penalty_negative", "repetition_penalty", -1),
    ("min_tokens_negative", "min_tokens", -1),
    ("min_tokens_over_max_tokens", "min_tokens", 100),
    ("stop_token_ids_negative", "stop_token_ids", [-1]),
    ("stop_token_ids_string", "stop_token_ids", "x"),
    ("ignore_eos_string", "ignore_eos", "perhaps"),
)
_CHAT: tuple[tuple[str, str, Any], ...] = (
    ("messages_missing", "messages", LEFT_OUT),
    ("logprobs_number", "logprobs", 3),
    ("top_logprobs_alone", "top_logprobs", 5),
)
_COMPLETIONS: tuple[tuple[str, str, Any], ...] = (
    ("logprobs_negative", "logprobs", -1),
    ("logprobs_true", "logprobs", True),
    ("echo_string", "echo", "perhaps"),
    ("best_of_below_n", "best_of", 0),
)


def _row(api: Api | None, name: str, field: str, value: Any, offered: str = BY_ENDPOINT) -> None:
    shown = f"no {field}" if value is LEFT_OUT else f"{field} = {brief(value, 24)}"
    where = f" in {api.name}" if api else ""

    @CASES.case(name, asks=shown + where, holds=f"4xx that names {field}", offered=offered)
    async def _check(t: Trial) -> None:
        chosen = api or await t.known.text_api()
        await t.known.offers(chosen)
        await t.refuse(chosen, field, value)


for _one in _ANY:
    _row(None, *_one)
for _one in _EXTRA:
    _row(None, *_one, BY_EFFECT)
for _one in _CHAT:
    _row(CHAT, *_one)
for _one in _COMPLETIONS:
    _row(COMPLETIONS, *_one)


@CASES.case("max_completion_tokens_negative", asks="max_completion_tokens = -2 in chat",
            holds="4xx that names max_completion_tokens, or max_tokens")  # fmt: skip
async def _max_completion_tokens(t: Trial) -> None:
    await t.known.offers(CHAT)
    exchange = await t.post(CHAT.path, t.body(CHAT, max_tokens=LEFT_OUT, max_completion_tokens=-2))
    refused(exchange, "max_completion_tokens = -2", "max_completion_tokens", "max_tokens")


@CASES.case("temperature_nan", asks="temperature = NaN, which is not JSON", holds="4xx")
async def _nan(t: Trial) -> None:
    api = await t.known.text_api()
    refused(await t.post(api.path, t.body(api, temperature=float("nan"))), "temperature = NaN")


@CASES.case("max_tokens_zero", asks="max_tokens = 0", holds="4xx that names max_tokens, or an answer with no tokens")
async def _max_tokens_zero(t: Trial) -> None:
    api = await t.known.text_api()
    answer = await _answered(t, api, "max_tokens")
    if answer is not None:
        got = answer.counted.completion
        ensure(got == 0, f"max_tokens = 0 was accepted, but the answer has {got} tokens")


@CASES.case("top_p_zero", asks="top_p = 0 at temperature 2", holds="4xx that names top_p, or the greedy text")
async def _top_p_zero(t: Trial) -> None:
    api = await t.known.text_api()
    await t.known.sample()
    answer = await _answered(t, api, "top_p", temperature=2)
    if answer is not None:
        greedy = (await t.generate(api)).text
        ensure(answer.text == greedy, f"top_p = 0 was accepted, but gave {brief(answer.text)}; greedy is {greedy!r}")


async def _answered(t: Trial, api: Api, name: str, **fields: Any) -> ParsedAnswer | None:
    """The answer with this field set to 0; None if the field was refused by name."""
    limit = min(REFUSAL_S, t.client.timeout_s)
    exchange = await t.ask("POST", t.base + api.path, t.body(api, **{name: 0}, **fields), timeout_s=limit)
    if exchange.status == 200:
        return read_whole(api, exchange)
    refused(exchange, f"{name} = 0", name)
    return None


@CASES.case("max_tokens_huge", asks="max_tokens of 400 digits", holds="4xx")
async def _huge(t: Trial) -> None:
    """Last, because a server that accepts it may be busy for good."""
    api = await t.known.text_api()
    refused(await t.post(api.path, t.body(api, max_tokens=10**400)), "max_tokens of 400 digits")
