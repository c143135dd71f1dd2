"""Values of wrong types and out of range. Each must be refused by name, never ignored and never repaired."""

from __future__ import annotations

from typing import Any

from drivetrain.conform.answers import CHAT, COMPLETIONS, Api
from drivetrain.conform.asking import LEFT_OUT
from drivetrain.conform.case import BY_EFFECT, BY_ENDPOINT, Area, Cases
from drivetrain.conform.reading import brief, refused
from drivetrain.conform.trial import Trial

CASES = Cases(Area.REFUSALS, BY_ENDPOINT)

_ANY: tuple[tuple[str, str, Any], ...] = (
    ("max_tokens_negative", "max_tokens", -1),
    ("max_tokens_zero", "max_tokens", 0),
    ("max_tokens_fraction", "max_tokens", 1.5),
    ("max_tokens_string", "max_tokens", "5"),
    ("max_tokens_bool", "max_tokens", True),
    ("max_tokens_huge", "max_tokens", 10**400),
    ("temperature_negative", "temperature", -0.1),
    ("temperature_above_2", "temperature", 2.1),
    ("temperature_string", "temperature", "hot"),
    ("top_p_zero", "top_p", 0),
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
    ("max_completion_tokens_negative", "max_completion_tokens", -1),
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

    @CASES.case(name, asks=shown + where, holds=f"4xx with an error object that names {field}", offered=offered)
    async def _check(t: Trial) -> None:
        at = api or await t.known.text_api()
        await t.known.offers(at)
        await t.refuse(at, field, value)


for _one in _ANY:
    _row(None, *_one)
for _one in _EXTRA:
    _row(None, *_one, BY_EFFECT)
for _one in _CHAT:
    _row(CHAT, *_one)
for _one in _COMPLETIONS:
    _row(COMPLETIONS, *_one)


@CASES.case("temperature_nan", asks="temperature = NaN, which is no JSON", holds="4xx with an error object")
async def _nan(t: Trial) -> None:
    api = await t.known.text_api()
    refused(await t.post(api.path, t.body(api, temperature=float("nan"))), "temperature = NaN")
