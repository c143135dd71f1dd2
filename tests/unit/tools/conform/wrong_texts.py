"""Wrong servers for the cases of models, chat, completions, streams and stops."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

from toy_server import CARD, Faults, Reply
from wrongs import Wrong, answers, asked, choices, chunks, each_event, ignores, messages, reword, says, streams

# Models, chat and completions


def _double(body: dict[str, Any]) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        if isinstance(body.get(name), int):
            body[name] += 1
    body.setdefault("max_tokens", 17) if "max_completion_tokens" not in body else None


def _first_part(message: dict[str, Any]) -> None:
    if isinstance(message.get("content"), list):
        message["content"] = message["content"][:1]


def _no_parts(message: dict[str, Any]) -> None:
    if isinstance(message.get("content"), list):
        message["content"] = ""


def _no_specials(message: dict[str, Any]) -> None:
    if isinstance(message.get("content"), str):
        message["content"] = re.sub(r"<[|/][^>]*>", "", message["content"])


def _no_specials_behind(body: dict[str, Any]) -> None:
    if isinstance(body.get("suffix"), str):
        body["suffix"] = re.sub(r"<[^>]*>", "x", body["suffix"])


def _fewer_ids(body: dict[str, Any]) -> None:
    for name in ("prompt", "prompt_token_ids", "input"):
        value = body.get(name)
        if isinstance(value, list) and value:
            lists = value if isinstance(value[0], list) else [value]
            cut = [ids[:-1] if ids and all(type(i) is int for i in ids) else ids for ids in lists]
            body[name] = cut if isinstance(value[0], list) else cut[0]


def _turned(body: dict[str, Any]) -> None:
    if isinstance(body.get("prompt"), list):
        body["prompt"] = body["prompt"][::-1]


def _only_first_prompt(body: dict[str, Any]) -> None:
    if isinstance(body.get("prompt"), list) and body["prompt"]:
        body["prompt"] = body["prompt"][:1] if isinstance(body["prompt"][0], (str, list)) else body["prompt"]


def _unknown_is_known(path: str, body: Any, made: Reply) -> Reply:
    return Reply(200, CARD) if path.startswith("/v1/models/") else made


def _inert_is_refused(path: str, body: Any, made: Reply) -> Reply:
    if isinstance(body, dict) and "store" in body:
        return Reply(400, {"error": {"message": "no names, please", "type": "e", "param": None, "code": None}})
    return made


MODELS = (
    Wrong("no list", answers(lambda d, b: d.update(object="models"), "/models"), {"models.list": "'models'"}),
    Wrong(
        "another name",
        answers(lambda d, b: d["data"][0].update(id="other"), "/models"),
        {"models.named": "not in the list"},
    ),
    Wrong("another card", answers(lambda d, b: d.update(id="other"), "/models/toy"), {"models.retrieve": "'other'"}),
    Wrong("every card", lambda: Faults(reply=_unknown_is_known), {"models.retrieve_unknown": "status 200"}),
)

ANSWERS = (
    Wrong(
        "no id",
        answers(lambda d, b: d.pop("id", None)),
        {"chat.shape": "no id", "completions.shape": "no id", "ids.unique": "ids are"},
    ),
    Wrong(
        "a token too many",
        asked(_double),
        says("counts 6 completion tokens, not 5", "chat", "length", "max_completion_tokens")
        | {"completions.length": "counts 6", "completions.default_length": "has 17 tokens, not 16"},
    ),
    Wrong(
        "lengths may disagree",
        asked(lambda b: "max_completion_tokens" in b and b.pop("max_tokens", None)),
        {"chat.two_lengths": "was accepted"},
    ),
    Wrong("always length", choices(lambda c, b: c.update(finish_reason="length")), {"chat.eos": "not 'stop'"}),
    Wrong("the first part", messages(_first_part), {"chat.several_parts": "a part is lost"}),
    Wrong("no parts", messages(_no_parts), {"chat.parts": "the part counts as"}),
    Wrong(
        "developer is user",
        messages(lambda m: m.get("role") == "developer" and m.update(role="user")),
        {"chat.developer": "developer"},
    ),
    Wrong("a name is refused", lambda: Faults(reply=_inert_is_refused), {"chat.inert_fields": "status 400"}),
    Wrong("no special tokens", messages(_no_specials), {"chat.special_tokens": "one special token"}),
    Wrong(
        "any model",
        asked(lambda b: b.update(model="toy")),
        {
            "chat.unknown_model": "must be 404",
            "completions.unknown_model": "must be 404",
        },
    ),
    Wrong(
        "one choice",
        ignores("n"),
        {
            "chat.several": r"indices \[0\]",
            "parameters.n": r"indices \[0\]",
            "streaming.several": "0 and 1",
            "usage.several": "counted as 5",
        },
    ),
    Wrong(
        "ids are cut",
        asked(_fewer_ids),
        {
            "completions.ids": "its ids",
            "completions.prompt_token_ids": "prompt_token_ids",
            "completions.lists_of_ids": "ids",
            "embeddings.ids": "different vectors",
        },
    ),
    Wrong(
        "one prompt of a list",
        asked(_only_first_prompt),
        says(r"indices \[0", "completions", "list", "list_order", "list_streamed")
        | {"completions.lists_of_ids": "1 choices"},
    ),
    Wrong("prompts turned", asked(_turned), says("must begin with", "completions", "list_order", "list_streamed")),
    Wrong("no echo", ignores("echo"), {"completions.echo": "must begin with the prompt"}),
    Wrong(
        "always a token",
        asked(lambda b: b.get("max_tokens") == 0 and b.update(max_tokens=1)),
        {"completions.echo_alone": "not the prompt"},
    ),
    Wrong(
        "no streamed echo",
        asked(lambda b: b.get("stream") and b.pop("echo", None)),
        {"streaming.echoed_characters": "must begin with the prompt"},
    ),
    Wrong(
        "no echo with logprobs",
        asked(lambda b: "logprobs" in b and b.pop("echo", None)),
        {"logprobs.completions_echo": "not null"},
    ),
    Wrong(
        "no suffix, no best_of",
        ignores("suffix", "best_of"),
        says("is ignored", "completions", "suffix", "best_of"),
    ),
    Wrong(
        "no streamed suffix",
        asked(lambda b: b.get("stream") and b.pop("suffix", None)),
        {"completions.suffix_streamed": "the stream fills in"},
    ),
    Wrong(
        "no suffix for a list",
        asked(lambda b: isinstance(b.get("prompt"), list) and b.pop("suffix", None)),
        {"completions.suffix_list": "its prompts alone"},
    ),
    Wrong(
        "no special tokens in a suffix",
        asked(_no_specials_behind),
        {"completions.suffix_special_tokens": "one special"},
    ),
)

# Streams


def _changing_id() -> Faults:
    numbers = itertools.count()

    def change(events: list[Any]) -> None:
        for event in events[:-1]:
            event["id"] = f"id-{next(numbers)}"

    return streams(change)()


def _halves(events: list[Any]) -> list[Any]:
    made: list[Any] = []
    for event in events:
        spelled = event if isinstance(event, str) else json.dumps(event)
        cut = re.search(r"\\ud8[0-9a-f]{2}\\ud[c-f][0-9a-f]{2}", spelled)
        if cut:
            made += [spelled.replace(cut.group(), cut.group()[:6]), spelled.replace(cut.group(), cut.group()[6:])]
        else:
            made.append(spelled)
    return made


def _role_again(events: list[Any]) -> None:
    for event in events[:-1]:
        for choice in event["choices"]:
            if "delta" in choice:
                choice["delta"]["role"] = "assistant"


def _no_usage(events: list[Any]) -> list[Any]:
    return [event for event in events if event == "[DONE]" or event["choices"]]


def _stream_error_as_text(path: str, body: Any, made: Reply) -> Reply:
    if made.events is not None and made.deadline_s is not None:
        made.events = [*made.events[:3], {**made.events[2], "choices": [_END]}, "[DONE]"]
        made.events[2]["choices"][0]["delta"]["content"] = "the time is over"
        made.events.insert(4, {**made.events[2], "choices": [], "usage": _FEW})
        made.deadline_s = None
    return made


def _begins_streams(path: str, body: Any, made: Reply) -> Reply:
    if made.status == 400 and isinstance(body, dict) and body.get("stream") is True:
        event = {"choices": [{"index": 0, "delta": {"content": str(made.document["error"])}}]}
        return Reply(200, events=[event, "[DONE]"])
    return made


_END = {"index": 0, "delta": {}, "finish_reason": "stop"}
_FEW = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
_ONE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}


STREAMS = (
    Wrong(
        "events are answers",
        streams(lambda e: each_event(e, "object", "answer")),
        says("'answer'", "streaming", "shape", "completions"),
    ),
    Wrong(
        "a role in each event",
        streams(_role_again),
        {"streaming.role": "came again", "streaming.several": "roles"},
    ),
    Wrong("ids change", _changing_id, {"streaming.one_id": "id changes"}),
    Wrong(
        "a reason in each event",
        chunks(lambda c: c.update(finish_reason="stop")),
        says("finish reasons", "streaming", "finish", "completions", "several"),
    ),
    Wrong(
        "no [DONE]",
        lambda: Faults(wire=lambda data: b"" if b"[DONE]" in data else data),
        says(r"\[DONE\]", "streaming", "done", "completions", "deadline"),
    ),
    Wrong(
        "streams in capitals",
        chunks(lambda c: reword(c, str.upper)),
        says("whole", "streaming", "text", "completions_text", "characters")
        | {"stops.string": "streamed: the text is"},
    ),
    Wrong(
        "no usage",
        streams(_no_usage),
        says("has none", "streaming", "usage", "completions_usage") | {"usage.streamed": "no usage"},
    ),
    Wrong(
        "usage in each event",
        streams(lambda e: each_event(e, "usage", _ONE)),
        {"streaming.no_usage": "without being asked for", "streaming.usage": "before the last"},
    ),
    Wrong(
        "a stream for each refusal",
        lambda: Faults(reply=_begins_streams),
        {"streaming.refused_before": "was started", "errors.over_context_streamed": "was started"},
    ),
    Wrong("half a character", streams(_halves), {"streaming.characters": "half a character"}),
    Wrong(
        "other characters",
        chunks(lambda c: reword(c, lambda text: text.encode("ascii", "replace").decode())),
        {"streaming.echoed_characters": "must begin with"},
    ),
    Wrong("no deadline", ignores("timeout_s"), {"streaming.deadline": "is ignored"}),
    Wrong(
        "the deadline as text",
        lambda: Faults(reply=_stream_error_as_text),
        {"streaming.deadline": "ended normally after|is ignored"},  # a busy machine brings it too late as well
    ),
)

# Stops


def _leak(choice: dict[str, Any], body: Any) -> None:
    stop = body.get("stop")
    if stop and choice["finish_reason"] == "stop":
        reword(choice, lambda text: text + (stop if isinstance(stop, str) else stop[0])[0])


def _only_first_stop(body: dict[str, Any]) -> None:
    if isinstance(body.get("stop"), list):
        body["stop"] = body["stop"][:1]


def _hold_back(choice: dict[str, Any], body: Any) -> None:
    if body.get("stop") and choice["finish_reason"] == "length":
        reword(choice, lambda text: text[:-3])


def _null_is_refused(path: str, body: Any, made: Reply) -> Reply:
    if isinstance(body, dict) and None in body.values():
        return Reply(400, {"error": {"message": "null is no value", "type": "e", "param": None, "code": None}})
    return made


STOPS = (
    Wrong(
        "no stops",
        ignores("stop"),
        says("is in the text", "stops", "string", "one_character", "spanning", "first_of_several", "nested")
        | says("is in the text", "stops", "at_once", "unicode", "completions", "many")
        | {"usage.stopped": "all 24 tokens", "stops.included": "the text is"},
    ),
    Wrong(
        "stops leak",
        choices(_leak),
        says("a part of the stop", "stops", "string", "spanning", "completions"),
    ),
    Wrong("only the first stop", asked(_only_first_stop), says("is in the text", "stops", "first_of_several", "many")),
    Wrong("what might be a stop is lost", choices(_hold_back), {"stops.beside": "removed text"}),
    Wrong(
        "no stop ids, no kept stops",
        ignores("stop_token_ids", "include_stop_str_in_output"),
        {"stops.ids": "token number", "stops.included": "the text is"},
    ),
    Wrong(
        "null is refused",
        lambda: Faults(reply=_null_is_refused),
        {"stops.null": "status 400", "chat.inert_fields": "status 400"},
    ),
)
