"""`/api/chat`, `/api/generate` and `/api/embed`: Ollama's API, and the requests that it means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from drivetrain.core.constraint import Constraint, ConstraintForm, constraint
from drivetrain.core.errors import InvalidRequest
from drivetrain.core.kinds import Boolean, Integer, Kind, Schema, String
from drivetrain.core.messages import Message
from drivetrain.core.request import Overflow
from drivetrain.families.template_variables import REASON
from drivetrain.server.parse.body import Body, Field, Values
from drivetrain.server.parse.ollama_content import IMAGES, MESSAGE_LIST, chat_of, said
from drivetrain.server.parse.ollama_options import AT_THE_TOP, OPTIONS, VECTOR_OPTIONS, of_options
from drivetrain.server.parse.schema import MODEL, SAMPLING, SCHEMA_CONSTRAINT, SUFFIX, Anything, Refused, inert, like
from drivetrain.server.parse.translate import ParsedRequest, new_id, parsed_request, shared_values, top_logprobs

_EFFORTS = ("low", "medium", "high", "max")


class Think(Kind):
    """Whether to reason, or how much, as an effort in our words."""

    takes = f"true, false, {', '.join(_EFFORTS)}"

    def judge(self, name: str, value: Any) -> str:
        if value is True or value is False:
            return REASON if value else "none"
        if not isinstance(value, str) or value not in _EFFORTS:
            raise self.refuse(name, value)
        return value

    def schema(self) -> Schema:
        return {"enum": [True, False, *_EFFORTS]}


class Format(Kind):
    takes = "json, or a JSON schema, which is an object"

    def judge(self, name: str, value: Any) -> Constraint:
        if value == "json":
            return Constraint(ConstraintForm.JSON)
        if not isinstance(value, Mapping):
            raise self.refuse(name, value)
        return constraint(ConstraintForm.JSON_SCHEMA, value, name=name)

    def schema(self) -> Schema:
        return {"anyOf": [{"const": "json"}, {**SCHEMA_CONSTRAINT.schema(), "type": "object"}]}


@dataclass(frozen=True, slots=True)
class TextOrTexts(Kind):
    takes = "a string or a list of strings"

    def judge(self, name: str, value: Any) -> tuple[str, ...]:
        if isinstance(value, str):
            return (_TEXT.judge(name, value),)
        if not isinstance(value, list):
            raise self.refuse(name, value)
        return tuple(_TEXT.judge(f"{name}[{i}]", item) for i, item in enumerate(value))

    def schema(self) -> Schema:
        return {"anyOf": [_TEXT.schema(), {"type": "array", "items": _TEXT.schema()}]}


_TEXT = String()
_KEEP_ALIVE = Field(Anything(), "changes nothing: a model stays loaded until another one needs the room")


def _only(why: str, *neutral: Any) -> Field:
    return Field(Refused(neutral, why), "only a value that has no effect is accepted", refused=True)


_ANSWER: Mapping[str, Field] = {
    "model": MODEL,
    "stream": Field(Boolean(), "one JSON object a line; true by default"),
    "format": Field(Format(), "what the text must be", nothing=("",)),
    "options": Field(OPTIONS, "how to sample"),
    "think": Field(Think(), "whether and how much to reason", nothing=("",)),
    "keep_alive": _KEEP_ALIVE,
    "logprobs": Field(Boolean(), "return the logprobs of the answer's tokens"),
    "top_logprobs": Field(Integer(), "alternatives per token; needs logprobs"),
    "truncate": Field(Boolean(), "cut the middle of a prompt that does not fit; false by default"),
    "shift": _only("is not supported: a context that is full ends the answer; send false", False),
    **{name: SAMPLING[name] for name in AT_THE_TOP},
    "chat_template_kwargs": like("chat_template_kwargs", nothing=({},)),
    "max_reasoning_tokens": like("max_reasoning_tokens"),
}

OLLAMA_CHAT = Body(
    "OllamaChatBody",
    {
        **_ANSWER,
        "messages": Field(MESSAGE_LIST, "the chat so far; without any, the model is loaded", nothing=([],)),
        "tools": like("tools", nothing=([],)),
    },
    elsewhere={"prompt": "/api/generate", "input": "/api/embed"},
)

OLLAMA_GENERATE = Body(
    "OllamaGenerateBody",
    {
        **_ANSWER,
        "prompt": Field(String(), "a message of the user; without one, the model is loaded", nothing=("",)),
        "system": Field(String(), "a system message before it", nothing=("",)),
        "images": IMAGES,
        "raw": Field(Boolean(), "the prompt is used as it is, without a template"),
        "suffix": SUFFIX,
        "template": _only("is not supported: prompts are rendered by the model's own template; leave it out", ""),
        "context": _only("is not supported: nothing is kept between requests; send messages to /api/chat", []),
    },
    elsewhere={"messages": "/api/chat", "tools": "/api/chat", "input": "/api/embed"},
)

OLLAMA_EMBED = Body(
    "OllamaEmbedBody",
    {
        "model": MODEL,
        "input": Field(TextOrTexts(), "a text, or several", required=True),
        "truncate": Field(Boolean(), "true asks to cut long texts: one that does not fit is refused all the same"),
        "dimensions": Field(Integer(1), "must be the model's own number: vectors are not shortened", nothing=(0,)),
        "options": Field(VECTOR_OPTIONS, "accepted and ignored: vectors are not sampled"),
        "keep_alive": _KEEP_ALIVE,
        "timeout_s": like("timeout_s"),
    },
)

OLLAMA_EMBEDDINGS = Body(
    "OllamaEmbeddingsBody",
    {
        "model": MODEL,
        "prompt": Field(String(), "the text; without one, the model is loaded", nothing=("",)),
        **{name: OLLAMA_EMBED.fields[name] for name in ("options", "keep_alive", "timeout_s")},
    },
)

OLLAMA_SHOW = Body(
    "OllamaShowBody",
    {
        "model": Field(String(), "a name from /api/tags"),
        "name": Field(String(), "the same, as older clients have it"),
        "verbose": inert(Boolean()),
    },
    one_of=("model", "name"),
)

OLLAMA_PULL = Body(
    "OllamaPullBody",
    {
        **OLLAMA_SHOW.fields,
        "verbose": inert(Boolean()),
        "insecure": inert(Boolean()),
        "stream": Field(Boolean(), "the one line comes either way", inert=True),
    },
    one_of=("model", "name"),
)


def is_unused(body: Values) -> bool:
    """Whether the caller says that it needs the model no longer."""
    return str(body.get("keep_alive")) in {"0", "0.0", "0s", "0m", "0h"}


def ollama_chat_request(body: Values, headers: Mapping[str, str]) -> ParsedRequest:
    names = {"logprobs": "top_logprobs" if body.get("top_logprobs") else "logprobs"}
    values = _shared(body, headers, names) | {"messages": chat_of(body["messages"])}
    return _parsed(body, values, names)


def ollama_generate_request(body: Values, headers: Mapping[str, str]) -> ParsedRequest:
    """The prompt is one message of a chat, or all the model reads if it is `raw` or has a suffix."""
    names = {"messages": "prompt", "logprobs": "top_logprobs" if body.get("top_logprobs") else "logprobs"}
    values = _shared(body, headers, names)
    if alone := next((name for name in ("raw", "suffix") if body.get(name)), None):
        if "system" in body:
            raise InvalidRequest(f"system does not go with {alone}: write it into the prompt", param="system")
        values["prompt"] = body["prompt"]
        if values.get("reasoning_effort") == "none":  # a bare prompt asks for none either
            del values["reasoning_effort"]
        if "images" in body:
            values["images"] = said("", body["images"])
    else:
        system = [Message("system", said(body["system"], ()))] if "system" in body else []
        values["messages"] = (*system, Message("user", said(body["prompt"], body.get("images", ()))))
    return _parsed(body, values, names)


def _shared(body: Values, headers: Mapping[str, str], names: dict[str, str]) -> dict[str, Any]:
    values = shared_values(body, headers, names) | of_options(body.get("options", {}), names)
    values["logprobs"] = top_logprobs(body)
    for ours, theirs in (("constraint", "format"), ("reasoning_effort", "think")):
        names[ours] = theirs
        if theirs in body:
            values[ours] = body[theirs]
    if body.get("truncate") and "overflow" not in values:
        names["overflow"], values["overflow"] = "truncate", Overflow.TRUNCATE_MIDDLE
    return values


def _parsed(body: Values, values: dict[str, Any], names: dict[str, str]) -> ParsedRequest:
    body.setdefault("stream", True)
    return parsed_request(body, [values], names, new_id("ollama"), logprobs=bool(body.get("logprobs")))
