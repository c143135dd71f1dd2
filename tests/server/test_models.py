"""`/v1/models`, `/health`, `/ready`, `/status`, `/metrics`, `/openapi.json`, and what every answer carries."""

from __future__ import annotations

import json

import openai
import pytest

from server.serving import Served


def test_list(served: Served) -> None:
    models = list(served.client.models.list())
    assert [m.id for m in models] == [served.model]
    assert models[0].object == "model"
    assert models[0].created > 1_700_000_000


def test_retrieve(served: Served) -> None:
    model = served.client.models.retrieve(served.model)
    assert model.id == served.model
    assert model.model_extra is not None
    capabilities = model.model_extra["capabilities"]
    assert capabilities["context_length"] > 0
    assert capabilities["limits"]["max_n"] == 16
    assert capabilities["parameters"]["n"]["maximum"] == 16
    temperature = capabilities["parameters"]["temperature"]
    assert (temperature["type"], temperature["minimum"], temperature["maximum"]) == ("number", 0, 2)
    assert temperature["default"] == capabilities["defaults"]["temperature"]["value"]
    assert capabilities["parameters"]["echo"]["endpoints"] == ["completions"]
    if "logprobs" in capabilities["parameters"]:
        logprobs = capabilities["parameters"]["logprobs"]
        assert (logprobs["endpoints"], logprobs["type"], logprobs.get("maximum")) == (
            ["chat", "completions"], "boolean", None,
        )  # fmt: skip
        assert [logprobs["completions"][key] for key in ("type", "minimum", "maximum")] == ["integer", 0, 20]
    assert "suffix" not in capabilities["parameters"]


def test_what_is_not_listed_is_refused(served: Served) -> None:
    asking = {"top_k": 5, "min_p": 0.5, "typical_p": 0.5, "logit_bias": {"1": 1}, "presence_penalty": 1, "n": 2}
    _, _, data = served.request("GET", f"/v1/models/{served.model}")
    listed = json.loads(data)["capabilities"]["parameters"]
    for name, value in asking.items():
        body = {"model": served.model, "prompt": "Hi", "max_tokens": 2, name: value}
        status, document = served.post("/v1/completions", body)
        assert status == (200 if name in listed else 400), document
        if status == 400:
            assert document["error"]["param"] == name


def test_unknown_model(served: Served) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        served.client.models.retrieve("nobody/knows-me")
    assert caught.value.code == "model_not_found"
    for path, body in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/v1/completions", {"prompt": "Hi"}),
        ("/v1/embeddings", {"input": "Hi"}),
        ("/tokenize", {"prompt": "Hi"}),
        ("/detokenize", {"tokens": [1]}),
    ):
        error = served.refused(path, {"model": "nobody", **body}, 404)
        assert (error["code"], error["param"]) == ("model_not_found", "model")


def test_live(served: Served) -> None:
    served.works()
    served.settle()
    for path in ("/health", "/ready"):
        assert served.request("GET", path)[0] == 200
    status = json.loads(served.request("GET", "/status")[2])
    assert status["state"] == "ready"
    assert status["running"] == status["waiting"] == 0
    assert status["tokens_per_s"] >= 0
    assert status["completion_tokens"] >= 2
    assert status["first_token_s"]
    assert status["memory"][0]["total_bytes"] > 0
    text = served.request("GET", "/metrics")[2].decode()
    assert f'drivetrain_requests_running{{model="{served.model}"}} 0' in text
    assert f'drivetrain_requests_total{{ending="finished",model="{served.model}"}}' in text


def test_openapi(served: Served) -> None:
    document = json.loads(served.request("GET", "/openapi.json")[2])
    body = document["components"]["schemas"]["ChatBody"]
    assert body["additionalProperties"] is False
    assert {"model", "messages"} <= set(body["required"])


@pytest.mark.parametrize("path", ["/", "/health", "/v1/models", "/nothing"])
def test_every_answer_is_guarded(served: Served, path: str) -> None:
    _, headers, _ = served.request("GET", path)
    assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-request-id"].startswith("req-")
    assert "server" not in headers
    assert "access-control-allow-origin" not in headers


def test_a_request_id_is_kept(served: Served) -> None:
    assert served.request("GET", "/health", headers={"x-request-id": "mine-1"})[1]["x-request-id"] == "mine-1"
    assert served.request("GET", "/health", headers={"x-request-id": "a b" * 60})[1]["x-request-id"] != "a b" * 60


def test_addresses_and_methods(served: Served) -> None:
    assert served.request("GET", "/v1/models/")[0] == 200
    assert served.request("GET", "/v1/nothing")[0] == 404
    assert served.request("GET", "/../etc/passwd")[0] == 404
    assert served.request("GET", "/..%2fapp.py")[0] == 404
    assert served.request("GET", "/%2e%2e")[0] == 404
    status, headers, data = served.request("DELETE", "/v1/models")
    assert status == 405
    assert headers["allow"]
    assert json.loads(data)["error"]["code"] == "method_not_allowed"
    assert served.request("GET", "/v1/chat/completions")[0] == 405
    assert served.request("OPTIONS", "/v1/chat/completions")[0] == 200
    assert served.request("HEAD", "/health")[2] == b""


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/v1/audio/speech", "/v1/chat/completions, /v1/completions, /v1/responses, /v1/messages"),
        ("/v1/v1/completions", "; did you mean /v1/completions? Give a base URL with a single /v1"),
        ("/v1/v1/nothing", "no such endpoint; see"),
        ("/chat/completions", "; did you mean /v1/chat/completions? Give a base URL that ends in /v1"),
        ("/embeddings", "; did you mean /v1/embeddings?"),
        ("/responses", "; did you mean /v1/responses? Give a base URL that ends in /v1"),
        ("/messages/", "; did you mean /v1/messages?"),
        ("/tags", "; did you mean /api/tags? Give a base URL that ends in /api"),
        ("/v1/api/chat", "; did you mean /api/chat? Give a base URL without /v1"),
        ("/api/v1/chat/completions", "; did you mean /v1/chat/completions? Give a base URL without /api"),
        ("/openai/v1/embeddings", "; did you mean /v1/embeddings? Give a base URL without /openai"),
        ("/v1/complete", "; did you mean /v1/messages?"),
        ("/generate", "; did you mean /v1/completions?"),
        ("/chat", "; did you mean /v1/chat/completions?"),
        ("/api/nothing", "; under /api there are /api/chat, /api/generate"),
        ("/nothing", "no such endpoint; see /openapi.json"),
    ],
)
def test_a_wrong_address_names_the_right_one(served: Served, path: str, said: str) -> None:
    status, _, data = served.request("POST", path, {})
    assert status == 404
    error = json.loads(data)["error"]
    assert said in (error if path.startswith("/api/") else error["message"])


def test_the_page(served: Served) -> None:
    status, headers, data = served.request("GET", "/")
    assert status == 200
    assert b"<html" in data
    assert headers["cache-control"] == "no-cache"
    again = served.request("GET", "/", headers={"if-none-match": headers["etag"]})
    assert (again[0], again[2]) == (304, b"")
