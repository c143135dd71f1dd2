"""Wrong servers for the cases of errors, leaving, ids, embeddings, tokens, images, keys and odd input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from toy_rules import CONTEXT
from toy_server import CARD, Faults, Reply
from wrongs import Make, Wrong, answers, asked, each_event, errors, ignores, messages, reword, says, streams, usage

from drivetrain.tools.conform.cases import robustness
from drivetrain.tools.conform.cases.images import data_uri, png
from drivetrain.tools.conform.requester import PROMPT

# Errors


def _as_good(made: Reply) -> None:
    made.status, made.document = 200, {"ok": True}


def _status(status: int) -> Make:
    def change(made: Reply) -> None:
        made.status = status

    return errors(change)


def _error(**fields: Any) -> Make:
    return errors(lambda made: made.document["error"].update(fields))


def _clamp(body: dict[str, Any]) -> None:
    if body.get("max_tokens", 0) > CONTEXT:
        body["max_tokens"] = 8


ERRORS = (
    Wrong(
        "errors are 200",
        errors(_as_good),
        says("was accepted", "errors", "body_broken", "body_list", "body_empty", "body_null")
        | says("was accepted", "errors", "body_no_utf8", "body_deep")
        | says("status 200", "errors", "unknown_path", "wrong_method")
        | {"refusals.temperature_nan": "was accepted"},
    ),
    Wrong("no type", errors(lambda made: made.document["error"].pop("type")), {"errors.shape": "no type"}),
    Wrong("422", _status(422), {"errors.status": "status 422"}),
    Wrong("no param", _error(param=None), {"errors.param": "error.param is None"}),
    Wrong(
        "no name",
        _error(param=None, message="bad"),
        {"refusals.top_k_negative": "without naming top_k"},
    ),
    Wrong("a path", _error(message="/usr/lib/x.py line 3"), {"errors.no_leak": "an error says '/usr/'"}),
    Wrong(
        "no code",
        _error(code=None),
        says("error.code is None", "errors", "unknown_model_code", "over_context_code"),
    ),
    Wrong(
        "cuts long prompts",
        asked(lambda b: "messages" in b and b.update(overflow="truncate_left")),
        {"errors.over_context": "was accepted", "errors.over_context_streamed": "was started"},
    ),
    Wrong("clamps max_tokens", asked(_clamp), {"errors.over_with_answer": "was accepted"}),
    Wrong("waits for all", lambda: Faults(waits_for_all=True), {"errors.large_body": "does not refuse a body"}),
    Wrong("large headers are a crash", _status(500), {"errors.large_headers": "not 431"}),
)

# Leaving and ids


def _forgets_after_leaving() -> Faults:
    left: list[bool] = []

    def reply(path: str, body: Any, made: Reply) -> Reply:
        if made.step_s:
            left.append(True)
        elif left and made.status == 200 and made.events is None and path.endswith("/chat/completions"):
            for choice in made.document["choices"]:
                reword(choice, lambda text: text[::-1])
        return made

    return Faults(reply=reply)


LEAVING = (
    Wrong("goes on", lambda: Faults(keeps_running=True), says("still running", "cancel", "streamed", "whole")),
    Wrong(
        "one at a time, to its end",
        lambda: Faults(keeps_running=True, one_slot=True),
        {"cancel.many": "those that were left are still running"},
    ),
    Wrong("forgets after leaving", _forgets_after_leaving, {"cancel.next": "a different answer"}),
    Wrong("one id", answers(lambda d, b: d.update(id="x")), {"ids.unique": "same id"}),
    Wrong("one id for streams", streams(lambda e: each_event(e, "id", "x")), {"ids.streams_unique": "same id"}),
    Wrong("one request id", lambda: Faults(request_id=lambda given: "always"), {"ids.header": "always"}),
)

# Embeddings, tokens


def _vectors(change: Callable[[list[Any]], Any]) -> Make:
    return answers(lambda document, body: change(document["data"]), "/embeddings")


def _turn(data: list[Any]) -> None:
    vectors = [item["embedding"] for item in data][::-1]
    for item, vector in zip(data, vectors, strict=True):
        item["embedding"] = vector


def _shorten(data: list[Any]) -> None:
    for item in data:
        item["embedding"] = item["embedding"][: 16 - item["index"]]


def _two_numbers(data: list[Any]) -> None:
    for item in data:
        if isinstance(item["embedding"], str):
            item["embedding"] = "AACAPwAAAAA="


def _results(change: Callable[[list[Any]], Any]) -> Make:
    return answers(lambda document, body: change(document["results"]), "/rerank")


def _by_company(results: list[Any]) -> None:
    for result in results:
        result["relevance_score"] /= len(results)


def _later_first(results: list[Any]) -> None:
    results.sort(key=lambda result: (-result["relevance_score"], -result["index"]))


def _no_objects(body: dict[str, Any]) -> None:
    if "query" in body and isinstance(body.get("documents"), list):
        body["documents"] = [str(one) if isinstance(one, dict) else one for one in body["documents"]]


def _cut_input(body: dict[str, Any]) -> None:
    if isinstance(body.get("input"), str):
        body["input"] = body["input"][:1000]


def _one_id_more(document: dict[str, Any], body: Any) -> None:
    document["tokens"].append(1)
    document["count"] += 1


EXTRAS = (
    Wrong(
        "vectors of another kind",
        _vectors(lambda data: data[0].update(object="vector")),
        {"embeddings.shape": "'vector'"},
    ),
    Wrong("other base64", _vectors(_two_numbers), {"embeddings.base64": "16 numbers, another 2"}),
    Wrong("vectors turned", _vectors(_turn), {"embeddings.order": "different vectors in a list"}),
    Wrong("ragged vectors", _vectors(_shorten), {"embeddings.dimension": "dimensions are"}),
    Wrong(
        "embeddings count 1",
        usage(lambda u, b: u.update(prompt_tokens=1, total_tokens=1)),
        {"embeddings.usage": "the text twice as 1"},
    ),
    Wrong("dimensions are not cut", ignores("dimensions"), {"embeddings.dimensions": "is ignored"}),
    Wrong("long texts are cut", asked(_cut_input), {"embeddings.too_long": "was accepted"}),
    Wrong("results turned", _results(lambda results: results.reverse()), {"rerank.shape": "do not fall"}),
    Wrong("top_n is ignored", ignores("top_n"), {"rerank.top_n": "there are 4 results"}),
    Wrong("scores by company", _results(_by_company), {"rerank.alone": "among others"}),
    Wrong("later ones first", _results(_later_first), {"rerank.equal": "the later one comes first"}),
    Wrong("objects are not read", asked(_no_objects), {"rerank.objects": "other scores"}),
    Wrong("texts are kept back", ignores("return_documents"), {"rerank.texts": "document is None"}),
    Wrong(
        "other scores",
        answers(lambda document, body: document["data"][0].update(score=0.9), "/score"),
        {"rerank.score": "in /rerank"},
    ),
    Wrong("a wrong count", answers(lambda d, b: d.update(count=0), "/tokenize"), {"tokens.ids": "count is 0"}),
    Wrong(
        "turned text",
        answers(lambda d, b: d.update(prompt=d["prompt"][::-1]), "/detokenize"),
        {"tokens.back": "decode to"},
    ),
    Wrong("one id more", answers(_one_id_more, "/tokenize"), {"tokens.chat": "usage counts"}),
)

# Images, keys, odd input


def _images_become(url: Any) -> Make:
    """Every picture is taken for this one; None takes it away."""

    def change(message: dict[str, Any]) -> None:
        if isinstance(message.get("content"), list):
            parts = [p for p in message["content"] if url is not None or p.get("type") == "text"]
            message["content"] = [p if p.get("type") == "text" else {**p, "image_url": {"url": url}} for p in parts]

    return messages(change)


def _nobody(path: str, body: Any, made: Reply) -> Reply:
    return Reply(403, {"error": {"message": "no", "type": "e", "param": None, "code": None}})


def _opens(opens: Callable[[str, str], bool]) -> Make:
    return lambda: Faults(open_paths=opens)


def _lists_for_options() -> Faults:
    def reply(path: str, body: Any, made: Reply) -> Reply:
        return Reply(200, CARD) if made.status == 200 and made.document is None else made

    return Faults(open_paths=lambda method, path: method == "OPTIONS", reply=reply)


_PLAIN = {"model", "messages", "max_tokens", "temperature", "ignore_eos"}


def _crash(path: str, body: Any, made: Reply) -> Reply:
    """At anything but a plain chat."""
    if path != "/v1/chat/completions" or (isinstance(body, dict) and set(body) <= _PLAIN and _is_plain(body)):
        return made
    return Reply(500, {"error": {"message": "Internal Server Error", "type": "e", "param": None, "code": None}})


def _is_plain(body: dict[str, Any]) -> bool:
    return bool(body["messages"] and body["messages"][0]["content"] == PROMPT and body["temperature"] == 0)


REST = (
    Wrong("blind", _images_become(None), {"images.png": "is ignored"}),
    Wrong(
        "any image",
        _images_become(data_uri(png(64, 64))),
        says("was accepted", "images", "corrupt", "bare_string", "file", "bomb", "private"),
    ),
    Wrong("fetches", lambda: Faults(fetches=True), {"images.private": "fetched a picture"}),
    Wrong(
        "open",
        _opens(lambda method, path: True),
        says("not 401", "auth", "missing", "wrong", "error", "beside"),
    ),
    Wrong("locked below /v1", _opens(lambda method, path: not path.startswith("/v1")), {"auth.beside": "/tokenize"}),
    Wrong("OPTIONS lists", _lists_for_options, {"auth.options": "lists the models"}),
    Wrong("health is closed", _opens(lambda method, path: False), {"auth.health": "status 401"}),
    Wrong("nobody gets in", lambda: Faults(reply=_nobody), {"auth.right": "status 403"}),
    Wrong("crashes", lambda: Faults(reply=_crash), {case.id: "status 500" for case in robustness.CASES}),
)
