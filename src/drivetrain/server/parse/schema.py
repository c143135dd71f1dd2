"""What each endpoint accepts: fields from the table of parameters, and those that exist only over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from drivetrain.core.constraint import ConstraintForm, ConstraintOf
from drivetrain.core.errors import InvalidRequest, Unsupported
from drivetrain.core.kinds import Boolean, Ids, Integer, Kind, OneOf, Schema, String, is_one_of, shown
from drivetrain.core.messages import Messages
from drivetrain.core.parameters import PARAMETERS
from drivetrain.server.parse.body import Body, Field


class Encoding(StrEnum):
    FLOAT = "float"
    BASE64 = "base64"


class FormatType(StrEnum):
    TEXT = "text"
    JSON_OBJECT = "json_object"
    JSON_SCHEMA = "json_schema"


class Anything(Kind):
    """For an inert field: it is never looked at."""

    takes = "anything"

    def judge(self, name: str, value: Any) -> Any:
        return value

    def schema(self) -> Schema:
        return {}


class Object(Kind):
    takes = "an object"

    def judge(self, name: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.refuse(name, value)
        return value

    def schema(self) -> Schema:
        return {"type": "object"}


@dataclass(frozen=True, slots=True)
class Refused(Kind):
    """What cannot be done here, for the reason `why`: only values that ask for nothing are accepted."""

    neutral: tuple[Any, ...]
    why: str = "is not supported yet; leave it out"

    @property
    def takes(self) -> str:
        return " or ".join(map(repr, self.neutral)) or "left out"

    def judge(self, name: str, value: Any) -> None:
        if not is_one_of(value, self.neutral):
            raise Unsupported(f"{name} {self.why}", param=name)

    def schema(self) -> Schema:
        return {"enum": [*self.neutral]} if self.neutral else {"type": "null"}


class PromptForms(Kind):
    """The four forms of prompts and inputs in the OpenAI API, as one tuple of texts and id lists."""

    takes = "a string, a list of strings, token ids, or a list of token id lists"

    def judge(self, name: str, value: Any) -> tuple[str | tuple[int, ...], ...]:
        if isinstance(value, str):
            return (_TEXT.judge(name, value),)
        if not isinstance(value, list):
            raise self.refuse(name, value)
        if not value:
            raise InvalidRequest(f"{name} is an empty list", param=name)
        if isinstance(value[0], int):
            return (_IDS.judge(name, value),)
        kind: Kind = _TEXT if isinstance(value[0], str) else _IDS
        if kind is _IDS and not isinstance(value[0], list):
            raise InvalidRequest(f"{name}[0] must be a string or token ids, not {shown(value[0])}", param=f"{name}[0]")
        return tuple([kind.judge(f"{name}[{i}]", item) for i, item in enumerate(value)])

    def schema(self) -> Schema:
        lists = [{"type": "array", "items": kind.schema(), "minItems": 1} for kind in (_TEXT, _IDS)]
        return {"anyOf": [_TEXT.schema(), _IDS.schema(), *lists]}


_TEXT, _IDS = String(), Ids(non_empty=True)


def like(name: str, meaning: str = "", *, kind: Kind | None = None, nothing: tuple[Any, ...] = ()) -> Field:
    """The field for one of our parameters, with another meaning or kind if given."""
    parameter = PARAMETERS[name]
    return Field(kind or parameter.kind, meaning or parameter.meaning, nothing=nothing)


def inert(kind: Kind) -> Field:
    return Field(kind, "accepted and ignored", inert=True)


def later(*neutral: Any) -> Field:
    return Field(Refused(neutral), "not supported yet: only a value that has no effect is accepted", refused=True)


def chats_only(*neutral: Any) -> Field:
    why = "goes with messages; send it to /v1/chat/completions"
    return Field(Refused(neutral, why), "for chats: only a value that has no effect is accepted", refused=True)


def prompts_only(*neutral: Any) -> Field:
    why = "goes with prompt; send it to /v1/completions"
    return Field(Refused(neutral, why), "for completions: only a value that has no effect is accepted", refused=True)


def older(instead: str, *neutral: Any) -> Field:
    why = f"is the older form of {instead}; send {instead}"
    return Field(Refused(neutral, why), f"use {instead}: only a value that has no effect is accepted", refused=True)


MODEL = Field(String(), "a name from /v1/models", required=True)
MODEL_OR_ONLY = Field(String(), "may be left out if there is only one")

_STREAM_OPTIONS = Body(
    "StreamOptions",
    {
        "include_usage": Field(Boolean(), "send the usage in a last chunk"),
        "continuous_usage_stats": Field(Boolean(), "send the usage so far in every chunk; needs include_usage"),
        "include_obfuscation": Field(Refused((False,)), "must be false: nothing is padded", refused=True),
    },
)

_FOR_CHATS: Mapping[str, tuple[Any, ...]] = {
    "tools": ([],),
    "tool_choice": ("auto", "none"),
    "parallel_tool_calls": (True, False),
    "chat_template_kwargs": ({},),
    "max_reasoning_tokens": (),
    "functions": ([],),
    "function_call": ("none", "auto"),
}
"""Fields of chats alone, each with the values that ask a completion for nothing."""

_OWN_SPELLING = _FOR_CHATS.keys() | {
    "messages", "prompt", "suffix", "prompt_token_ids", "images", "echo", "logprobs", "prompt_logprobs", "constraint",
    "reasoning_effort",
}  # fmt: skip
"""Parameters that endpoints name or place in their own ways."""

_NOT_HERE = frozenset({"request_id", "trace_context", "exponential_decay_length_penalty", "sequence_bias"})
"""The first two are headers; the others are for Python callers."""

_NOTHING: Mapping[str, tuple[Any, ...]] = {
    "max_tokens": (-1,),
    "stop": ("",),
    "top_k": (-1,),
    "dry_range": (-1,),
}
"""Values by which clients of other servers ask for nothing."""

SAMPLING: Mapping[str, Field] = {
    name: like(name, nothing=_NOTHING.get(name, ())) for name in PARAMETERS if name not in _OWN_SPELLING | _NOT_HERE
}

SCHEMA_CONSTRAINT = ConstraintOf(ConstraintForm.JSON_SCHEMA)

_JSON_SCHEMA_FORMAT = Body(
    "JsonSchemaFormat",
    {
        "name": inert(String()),
        "description": inert(String()),
        "schema": Field(SCHEMA_CONSTRAINT, "the text is JSON of this schema, on one line", required=True),
        "strict": Field(Boolean(), "true or false: the schema holds either way", inert=True),
    },
)

_RESPONSE_FORMAT = Body(
    "ResponseFormat",
    {
        "type": Field(OneOf(FormatType), "text asks for nothing", required=True),
        "json_schema": Field(_JSON_SCHEMA_FORMAT, "the schema, for the type json_schema"),
        "schema": Field(SCHEMA_CONSTRAINT, "the schema, for the type json_object, as llama.cpp has it"),
    },
)


def _forms(names: Mapping[str, ConstraintForm]) -> dict[str, Field]:
    meanings = {
        ConstraintForm.JSON_SCHEMA: "the text is JSON of this schema, on one line",
        ConstraintForm.JSON: "the text is a JSON object, on one line",
        ConstraintForm.REGEX: "the whole text matches this regex",
        ConstraintForm.CHOICE: "the text is one of these",
        ConstraintForm.GRAMMAR: "the text follows this grammar, in GBNF or Lark",
    }
    nothing = {ConstraintForm.JSON: (False,)}
    return {
        name: Field(ConstraintOf(form), meanings[form], nothing=nothing.get(form, ())) for name, form in names.items()
    }


_STRUCTURED = _forms(
    {
        "json": ConstraintForm.JSON_SCHEMA,
        "json_object": ConstraintForm.JSON,
        "regex": ConstraintForm.REGEX,
        "choice": ConstraintForm.CHOICE,
        "grammar": ConstraintForm.GRAMMAR,
    }
)

CONSTRAINTS: Mapping[str, Field] = {
    "response_format": Field(_RESPONSE_FORMAT, "what the text must be, as the OpenAI API has it"),
    "structured_outputs": Field(
        Body("StructuredOutputs", _STRUCTURED, one_of=tuple(_STRUCTURED)), "what the text must be, as vLLM has it"
    ),
    **_forms(
        {
            "json_schema": ConstraintForm.JSON_SCHEMA,
            "regex": ConstraintForm.REGEX,
            "choice": ConstraintForm.CHOICE,
            "grammar": ConstraintForm.GRAMMAR,
            "guided_json": ConstraintForm.JSON_SCHEMA,
            "guided_json_object": ConstraintForm.JSON,
            "guided_regex": ConstraintForm.REGEX,
            "guided_choice": ConstraintForm.CHOICE,
            "guided_grammar": ConstraintForm.GRAMMAR,
        }
    ),
}
"""What clients of several servers call `constraint`. A request has at most one of them."""

_INERT: Mapping[str, Field] = {
    "user": inert(String()),
    "metadata": inert(Object()),
    "store": inert(Boolean()),
    "service_tier": inert(String()),
    "prompt_cache_key": inert(String()),
    "prompt_cache_retention": inert(String()),
    "safety_identifier": inert(String()),
    "verbosity": inert(String()),
    "keep_alive": inert(Anything()),
    "cache_prompt": inert(Boolean()),
}

_INERT_WITHOUT_CHAT = {**_INERT, "reasoning_effort": inert(String())}

_LATER: Mapping[str, Field] = {
    "modalities": later(["text"]),
    "audio": later(),
    "prediction": later(),
    "web_search_options": later(),
    "best_of": Field(Integer(1), "must equal n: no choice is dropped", refused=True),
    "logits_processors": later([]),
    "skip_special_tokens": later(True),
}

_ANSWER: Mapping[str, Field] = {
    "model": MODEL,
    "stream": Field(Boolean(), "server-sent events, ended by [DONE]"),
    "stream_options": Field(_STREAM_OPTIONS, "needs stream"),
    **SAMPLING,
    **CONSTRAINTS,
    "return_token_ids": Field(Boolean(), "return the token ids of the prompt and of each choice too"),
}
"""What chat and completions have in common."""

CHAT = Body(
    "ChatBody",
    {
        **_ANSWER,
        "messages": Field(Messages(), PARAMETERS["messages"].meaning, required=True),
        "max_completion_tokens": like("max_tokens", "the same as max_tokens", nothing=(-1,)),
        "logprobs": Field(Boolean(), "return the logprobs of the answer's tokens"),
        "top_logprobs": Field(Integer(), "alternatives per token; needs logprobs"),
        "tools": like("tools", nothing=([],)),
        "tool_choice": like("tool_choice"),
        "parallel_tool_calls": like("parallel_tool_calls"),
        "chat_template_kwargs": like("chat_template_kwargs", nothing=({},)),
        "reasoning_effort": like("reasoning_effort"),
        "max_reasoning_tokens": like("max_reasoning_tokens"),
        "functions": older("tools", []),
        "function_call": older("tool_choice", "none", "auto"),
        "suffix": prompts_only(""),
        **_INERT,
        **_LATER,
    },
)

SUFFIX = like("suffix", "the text after the answer, which fills the gap between prompt and this", nothing=("",))

COMPLETION = Body(
    "CompletionBody",
    {
        **_ANSWER,
        "prompt": Field(PromptForms(), PromptForms.takes),
        "prompt_token_ids": like("prompt_token_ids", "the prompt as token ids, instead of prompt"),
        "suffix": SUFFIX,
        "echo": like("echo"),
        "logprobs": like("logprobs", kind=Integer(), nothing=(False,)),
        **{name: chats_only(*neutral) for name, neutral in _FOR_CHATS.items()},
        **_INERT_WITHOUT_CHAT,
        **_LATER,
    },
)

EMBEDDING = Body(
    "EmbeddingBody",
    {
        "model": MODEL,
        "input": Field(PromptForms(), PromptForms.takes, required=True),
        "encoding_format": Field(OneOf(Encoding), "float by default"),
        "dimensions": Field(Integer(1), "must be the model's own number: vectors are not shortened"),
        "timeout_s": like("timeout_s"),
        "truncate_prompt_tokens": Field(
            Refused((-1,), "would cut the input; shorten it, or leave this out"),
            "only -1: no input is cut, and one that does not fit is refused",
            refused=True,
        ),
        **_INERT_WITHOUT_CHAT,
    },
)

TOKENIZE = Body(
    "TokenizeBody",
    {
        "model": MODEL_OR_ONLY,
        "prompt": Field(String(), "the text; or give messages"),
        "suffix": like("suffix", "what comes behind the gap after prompt", nothing=("",)),
        "messages": Field(Messages(), "a chat, rendered as for an answer"),
        "tools": like("tools", "the functions that are rendered with messages", nothing=([],)),
        "add_special_tokens": Field(Boolean(), "add the tokenizer's own special tokens; by default, as for an answer"),
    },
    one_of=("prompt", "messages"),
)

DETOKENIZE = Body("DetokenizeBody", {"model": MODEL_OR_ONLY, "tokens": Field(Ids(), "token ids", required=True)})

ADMIN = Body("AdminBody", {"model": Field(String(), "a name or an alias from /v1/models", required=True)}, strict=True)
