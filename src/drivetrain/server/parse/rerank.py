"""What the endpoints that score documents accept: Cohere's and Jina's fields, and vLLM's two texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from drivetrain.core.errors import InvalidRequest, Unsupported
from drivetrain.core.kinds import MAX_SHOWN_CHARS, Boolean, Integer, Kind, ListOf, Schema, String
from drivetrain.server.parse.body import Body, Field
from drivetrain.server.parse.schema import MODEL, Refused, inert, like

_TEXT, _QUERY = String(), String(non_empty=True)


class Documents(Kind):
    """Texts, each a string or an object with the string as its `text`, as one tuple of strings."""

    takes = "a list of strings, or of objects with a text"

    def judge(self, name: str, value: Any) -> tuple[str, ...]:
        return self._judge(name, value, None)

    def judge_leniently(self, name: str, value: Any, leave_out: Callable[[str], None]) -> tuple[str, ...]:
        return self._judge(name, value, leave_out)

    def schema(self) -> Schema:
        fields = {"type": "object", "properties": {"text": _TEXT.schema()}, "required": ["text"]}
        item = {"anyOf": [_TEXT.schema(), {**fields, "additionalProperties": False}]}
        return {"type": "array", "items": item, "minItems": 1}

    def _judge(self, name: str, value: Any, leave_out: Callable[[str], None] | None) -> tuple[str, ...]:
        if not isinstance(value, list):
            raise self.refuse(name, value)
        if not value:
            raise InvalidRequest(f"{name} is empty; send at least one document", param=name)
        return tuple([self._text(f"{name}[{i}]", item, leave_out) for i, item in enumerate(value)])

    def _text(self, name: str, item: Any, leave_out: Callable[[str], None] | None) -> str:
        if not isinstance(item, Mapping):
            return _TEXT.judge(name, item)
        for other in item:
            if other != "text":
                param = f"{name}.{other[:MAX_SHOWN_CHARS]}"
                if leave_out is None:
                    raise Unsupported(f"{param} would not be read; put what counts into text", param=param)
                leave_out(param)
        if "text" not in item:
            raise InvalidRequest(f"{name}.text is missing", param=f"{name}.text")
        return _TEXT.judge(f"{name}.text", item["text"])


RERANK = Body(
    "RerankBody",
    {
        "model": MODEL,
        "query": Field(_QUERY, "what the documents should answer", required=True),
        "documents": Field(Documents(), Documents.takes, required=True),
        "top_n": Field(Integer(1), "how many results; by default all"),
        "return_documents": Field(Boolean(), "whether results have their texts: so they do, but at /v2/rerank"),
        "max_tokens_per_doc": Field(Integer(1), "tokens of a document after which it is cut; by default it is not"),
        "timeout_s": like("timeout_s"),
        "rank_fields": Field(Refused(([], ["text"])), "only the text of a document is read", refused=True),
        "max_chunks_per_doc": Field(Refused(()), "documents are not split into chunks", refused=True),
        "user": inert(String()),
    },
)

_SIDE = ListOf(_TEXT, non_empty=True, or_one=True)

SCORE = Body(
    "ScoreBody",
    {
        "model": MODEL,
        "text_1": Field(_SIDE, "one text for all of text_2, or as many as there are", required=True),
        "text_2": Field(_SIDE, "a text or several, each scored with its text_1", required=True),
        "max_tokens_per_doc": Field(Integer(1), "tokens of a text_2 after which it is cut; by default it is not"),
        "timeout_s": like("timeout_s"),
        "user": inert(String()),
    },
)
