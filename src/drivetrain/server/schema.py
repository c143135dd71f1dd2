"""The request bodies. Types are strict and names are known; ranges are told here and enforced by the contract."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from drivetrain.core.parameters import MAX_INT, MAX_SALT_CHARS, MAX_SEED, PARAMETERS

_CONTENT_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "array",
            "minItems": 1,
            "items": {
                "anyOf": [
                    {
                        "type": "object",
                        "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
                        "required": ["type", "text"],
                    },
                    {
                        "type": "object",
                        "properties": {
                            "type": {"const": "image_url"},
                            "image_url": {
                                "type": "object",
                                "properties": {"url": {"type": "string", "minLength": 1}},
                                "required": ["url"],
                            },
                        },
                        "required": ["type", "image_url"],
                    },
                ]
            },
        },
    ]
}
_MESSAGES_SCHEMA: dict[str, Any] = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "description": "Keys beside role and content are ignored, but tool_calls and function_call are refused.",
        "properties": {
            "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
            "content": _CONTENT_SCHEMA,
        },
        "required": ["role", "content"],
    },
}

Messages = Annotated[Any, WithJsonSchema(_MESSAGES_SCHEMA)]
"""Judged by `core/messages.py`, which names the place of a fault."""

Ids = list[int]
IdLists = list[list[int]]


def _field(name: str, /, meaning: str = "", **schema: Any) -> Any:
    """An optional field. The schema part is for readers: `core/parameters.check` enforces it, in its own words."""
    described = meaning or PARAMETERS[name].meaning
    return Field(default=None, description=described, json_schema_extra=schema or None)


def _range(low: float, high: float) -> dict[str, Any]:
    return {"minimum": low, "maximum": high}


def _above(low: float, high: float) -> dict[str, Any]:
    return {"exclusiveMinimum": low, "maximum": high}


_INERT = "accepted and not used"


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    include_usage: bool | None = Field(default=None, description="a last chunk with the usage")
    include_obfuscation: Literal[False] | None = Field(default=None, description="only false: nothing is padded")


class GenerateBody(BaseModel):
    """What chat and completions have in common."""

    model_config = ConfigDict(strict=True, extra="forbid")

    model: str = Field(description="a name from /v1/models")
    stream: bool | None = Field(default=None, description="server-sent events, ended by [DONE]")
    stream_options: StreamOptions | None = Field(default=None, description="only with stream")

    max_tokens: int | None = _field("max_tokens", **_range(0, MAX_INT))
    n: int | None = _field("n", **_range(1, MAX_INT))
    seed: int | None = _field("seed", **_range(-MAX_SEED - 1, MAX_SEED))
    stop: str | list[str] | None = _field("stop", minLength=1)
    temperature: float | None = _field("temperature", **_range(0, 2))
    top_p: float | None = _field("top_p", **_above(0, 1))
    presence_penalty: float | None = _field("presence_penalty", **_range(-2, 2))
    frequency_penalty: float | None = _field("frequency_penalty", **_range(-2, 2))
    logit_bias: dict[str, float] | None = _field("logit_bias", propertyNames={"pattern": "^[0-9]{1,9}$"})

    top_k: int | None = _field("top_k", **_range(0, MAX_INT))
    min_p: float | None = _field("min_p", **_range(0, 1))
    typical_p: float | None = _field("typical_p", **_above(0, 1))
    top_h: float | None = _field("top_h", **_above(0, 1))
    epsilon_cutoff: float | None = _field("epsilon_cutoff", **_range(0, 0.999))
    eta_cutoff: float | None = _field("eta_cutoff", **_range(0, 0.999))
    repetition_penalty: float | None = _field("repetition_penalty", **_above(0, 10))
    encoder_repetition_penalty: float | None = _field("encoder_repetition_penalty", **_above(0, 10))
    no_repeat_ngram_size: int | None = _field("no_repeat_ngram_size", **_range(0, MAX_INT))
    encoder_no_repeat_ngram_size: int | None = _field("encoder_no_repeat_ngram_size", **_range(0, MAX_INT))
    guidance_scale: float | None = _field("guidance_scale", **_range(0, 100))
    bad_words_ids: IdLists | None = _field("bad_words_ids")
    suppress_tokens: Ids | None = _field("suppress_tokens")
    begin_suppress_tokens: Ids | None = _field("begin_suppress_tokens")

    min_tokens: int | None = _field("min_tokens", **_range(0, MAX_INT))
    stop_token_ids: Ids | None = _field("stop_token_ids")
    stop_sequences: IdLists | None = _field("stop_sequences")
    ignore_eos: bool | None = _field("ignore_eos")
    include_stop_str_in_output: bool | None = _field("include_stop_str_in_output")
    context_length: int | None = _field("context_length", **_range(1, MAX_INT))
    overflow: Literal["error", "truncate_left", "truncate_middle"] | None = _field("overflow")
    timeout_s: float | None = _field("timeout_s", **_above(0, 1e9))
    cache_salt: str | None = _field("cache_salt", minLength=1, maxLength=MAX_SALT_CHARS)
    return_token_ids: bool | None = _field("", "give the ids of the prompt and of each choice too")

    user: str | None = _field("", _INERT)
    metadata: dict[str, Any] | None = _field("", _INERT)
    store: Literal[False] | None = _field("", "only false: nothing is stored")
    service_tier: str | None = _field("", _INERT)
    prompt_cache_key: str | None = _field("", _INERT)
    safety_identifier: str | None = _field("", _INERT)


class ChatBody(GenerateBody):
    messages: Messages = Field(description=PARAMETERS["messages"].meaning)
    max_completion_tokens: int | None = _field("", "the same as max_tokens", **_range(0, MAX_INT))
    logprobs: bool | None = _field("", "logprobs of the answer's tokens")
    top_logprobs: int | None = _field("", "with so many alternatives; needs logprobs", **_range(0, MAX_INT))


_PROMPT = "a text, a list of texts, token ids, or a list of token id lists"


class CompletionBody(GenerateBody):
    prompt: str | list[str] | list[int] | list[list[int]] | None = _field("", _PROMPT)
    prompt_token_ids: Ids | None = _field("", "the prompt as token ids, in place of prompt", minItems=1)
    echo: bool | None = _field("echo")
    logprobs: int | None = _field("logprobs", **_range(0, MAX_INT))


class EmbeddingBody(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    model: str = Field(description="a name from /v1/models")
    input: str | list[str] | list[int] | list[list[int]] = Field(description=_PROMPT)
    encoding_format: Literal["float", "base64"] | None = Field(default=None, description="float if left out")
    dimensions: int | None = Field(
        default=None, description="only the model's own number: none is cut", json_schema_extra={"minimum": 1}
    )
    timeout_s: float | None = _field("timeout_s", **_above(0, 1e9))
    user: str | None = _field("", _INERT)


class TokenizeBody(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    model: str | None = Field(default=None, description="may be left out where there is only one")
    prompt: str | None = Field(default=None, description="a text; or else messages")
    messages: Messages | None = Field(default=None, description="a chat, rendered as for an answer")


class DetokenizeBody(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    model: str | None = Field(default=None, description="may be left out where there is only one")
    tokens: Ids = Field(description="token ids")
