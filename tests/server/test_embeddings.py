"""`/v1/embeddings`, `/tokenize` and `/detokenize`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import drivetrain
from server.serving import Served, serving

PATH = "/v1/embeddings"


@pytest.fixture
def embedder(served: Served) -> Served:
    assert served.worker.capabilities.embeddings
    return served


def bad(served: Served, **fields: Any) -> dict[str, Any]:
    return served.refused(PATH, {"model": served.model, "input": "Hi", **fields})


def test_base64_is_float(embedder: Served) -> None:
    default = embedder.client.embeddings.create(model=embedder.model, input="Hello")
    plain = embedder.client.embeddings.create(model=embedder.model, input="Hello", encoding_format="float")
    assert default.data[0].embedding == pytest.approx(plain.data[0].embedding, abs=1e-6)
    assert math.hypot(*plain.data[0].embedding) == pytest.approx(1, abs=1e-3)
    assert default.usage.total_tokens == default.usage.prompt_tokens > 0


def test_lists_and_ids(embedder: Served) -> None:
    create = embedder.client.embeddings.create
    both = create(model=embedder.model, input=["Hello", "Goodbye"], encoding_format="float")
    assert [item.index for item in both.data] == [0, 1]
    ids = embedder.post("/tokenize", {"prompt": "Hello"})[1]["tokens"]
    for given in (ids, [ids]):
        by_ids = create(model=embedder.model, input=given, encoding_format="float")
        assert by_ids.data[0].embedding == pytest.approx(both.data[0].embedding, abs=1e-5)


def test_dimensions(embedder: Served) -> None:
    size = embedder.worker.metadata.embedding_size
    made = embedder.client.embeddings.create(model=embedder.model, input="Hi", dimensions=size, encoding_format="float")
    assert len(made.data[0].embedding) == size
    assert bad(embedder, dimensions=size - 1)["param"] == "dimensions"


def test_no_input_is_cut(embedder: Served) -> None:
    create = embedder.client.embeddings.create
    made = create(model=embedder.model, input="Hi", extra_body={"truncate_prompt_tokens": -1})
    assert made.data[0].embedding
    assert bad(embedder, truncate_prompt_tokens=8)["param"] == "truncate_prompt_tokens"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("input", None), ("input", ""), ("input", []), ("input", [""]), ("input", [[]]), ("input", 5),
        ("input", ["a", 5]), ("input", [-1]), ("input", [10**9]), ("input", [10**30]), ("input", ["a"] * 2049),
        ("encoding_format", "int8"), ("dimensions", 0), ("dimensions", "8"), ("timeout_s", -1), ("timeout_s", 1e8),
        ("nonsense", 1),
    ],
)  # fmt: skip
def test_bad_values(embedder: Served, name: str, value: Any) -> None:
    assert bad(embedder, **{name: value})["param"].startswith(name)


def test_too_long(embedder: Served) -> None:
    error = bad(embedder, input="word " * 2 * embedder.worker.capabilities.context_length)
    assert error["code"] == "context_length_exceeded"


def test_what_the_tokenizer_is_called_by(served: Served) -> None:
    """Of a model by its name, or of the only one."""
    tokenizer = served.worker.metadata
    for query in ("", f"?model={served.model}"):
        status, _, body = served.request("GET", f"/tokenizer_info{query}")
        told = json.loads(body)
        assert status == 200
        assert set(told) == {"bos_token", "eos_token", "pad_token", "chat_template"}
        assert told["chat_template"] == tokenizer.chat_template
        for token in filter(None, (told["bos_token"], told["eos_token"])):
            assert served.post("/tokenize", {"prompt": token, "add_special_tokens": False})[1]["count"] == 1
    assert served.request("GET", "/tokenizer_info?model=other")[0] == 404


def test_a_model_without_embeddings_says_so(checkpoint: Callable[[str], Path]) -> None:
    with serving(lambda: drivetrain.Worker.open(checkpoint("t5"))) as one:
        assert not one.worker.capabilities.embeddings
        assert bad(one)["param"] == "input"


def test_tokens_there_and_back(served: Served) -> None:
    _, document = served.post("/tokenize", {"model": served.model, "prompt": "Hello wörld"})
    assert document["count"] == len(document["tokens"])
    assert document["max_model_len"] == served.worker.capabilities.context_length
    _, back = served.post("/detokenize", {"tokens": document["tokens"]})
    assert back["prompt"].endswith("Hello wörld")


def test_tokens_without_the_tokenizers_own(served: Served) -> None:
    counts = {}
    for special in (None, True, False):
        body = {"model": served.model, "prompt": "Hello", "add_special_tokens": special}
        counts[special] = served.post("/tokenize", body)[1]["count"]
    assert counts[False] <= counts[True]
    assert counts[None] in {counts[True], counts[False]}


def test_tokens_of_a_chat(served: Served) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    _, document = served.post("/tokenize", {"messages": messages})
    answer = served.client.chat.completions.create(model=served.model, messages=messages, max_tokens=1)  # type: ignore[arg-type]
    assert answer.usage is not None
    assert document["count"] == answer.usage.prompt_tokens


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": []}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": [{"role": "x"}]}, "messages[0].role"),
        ("/tokenize", {"content": "a"}, "content"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": [1, 10**12]}, "tokens[1]"),
        ("/detokenize", {"tokens": [1.5]}, "tokens[0]"),
    ],
)
def test_bad_tokens(served: Served, path: str, body: dict[str, Any], param: str) -> None:
    assert served.refused(path, body)["param"] == param
