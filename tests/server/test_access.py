"""Who may come in: keys on every route, host names and origins on a loopback address."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from drivetrain.core.errors import InvalidSetting
from drivetrain.server.app import ROUTES
from drivetrain.server.settings import ServerSettings
from probe import engine_of
from server.serving import Served, fake, serving

KEY = "sécret-key"


@pytest.fixture(scope="module")
def locked() -> Iterator[Served]:
    with serving(fake(), api_keys=(KEY, "second"), allowed_hosts=("models.example",)) as made:
        yield made


PATHS = [path.replace("{name:path}", "fake").replace("{name}", "app.js") for _, path, _ in ROUTES]
EVERYWHERE = sorted({*PATHS, *(f"{path.rstrip('/')}/" for path in PATHS), "/nothing", "/v1", "/health/x", "//health"})


@pytest.mark.parametrize("path", EVERYWHERE)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "HEAD", "DELETE", "TRACE"])
def test_no_key_no_way(locked: Served, method: str, path: str) -> None:
    status, headers, data = locked.request(method, path)
    if path.rstrip("/") in {"/health", "/ready"}:
        assert status == (405 if method in {"POST", "DELETE", "TRACE"} else 200)
        return
    if path.rstrip("/") in {"", "/app.js"} and method in {"GET", "HEAD"}:
        assert status == 200
        return
    assert status == 401
    assert headers["www-authenticate"]
    if method != "HEAD":
        told = json.loads(data)
        assert (told if path.startswith("/api/") else told["error"])["code"] == "invalid_api_key"


@pytest.mark.parametrize(
    "given", ["Bearer wrong", "Bearer", "Bearer ", KEY, "Basic !!", "Basic " + base64.b64encode(b"u:x").decode(), "x y"]
)
def test_wrong_keys(locked: Served, given: str) -> None:
    """One that is not known is told apart from none."""
    headers = {"authorization": given.encode().decode("latin-1")}
    status, _, data = locked.request("GET", "/v1/models", headers=headers)
    wrong = given.startswith(("Bearer wrong", "Basic dTp4"))
    assert (status, json.loads(data)["error"]["message"].partition(":")[0]) == (
        401,
        "this API key is not known here" if wrong else "an API key is required",
    )


@pytest.mark.parametrize("key", [KEY, "second"])
@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "Basic"])
def test_right_keys(locked: Served, scheme: str, key: str) -> None:
    value = base64.b64encode(f"me:{key}".encode()).decode() if scheme == "Basic" else key
    headers = {"authorization": f"{scheme} {value}".encode().decode("latin-1")}
    for path in ("/v1/models", "/v1/models/", "/v1/models/fake", "/", "/status", "/metrics", "/ready", "/openapi.json"):
        assert locked.request("GET", path, headers=headers)[0] == 200
        assert locked.request("OPTIONS", path, headers=headers)[0] == 200


def test_the_official_client(locked: Served) -> None:
    client = locked.client.with_options(api_key="second")
    assert [model.id for model in client.models.list()] == ["fake"]
    with pytest.raises(openai.AuthenticationError):
        locked.client.with_options(api_key="wrong").models.list()


def test_a_browser_is_asked(locked: Served) -> None:
    """By the page, which needs no key; by the browser itself only for what has no page."""
    status, _, data = locked.request("GET", "/", headers={"accept": "text/html"})
    assert (status, data[:15]) == (200, b"<!doctype html>")
    status, headers, _ = locked.request("GET", "/status", headers={"accept": "text/html"})
    assert (status, headers["www-authenticate"][:5]) == (401, "Basic")
    status, headers, _ = locked.request("GET", "/status", headers={"accept": "*/*"})
    assert (status, headers["www-authenticate"]) == (401, "Bearer")
    status, headers, data = locked.request("GET", "/vendor/temml.js")
    assert (status, headers["content-type"], b"temml" in data) == (200, "text/javascript; charset=utf-8", True)
    for path in (
        "/store.py",
        "/vendor/nothing.js",
        "/vendor/../store.js",
        "/vendor",
        "/app.js/x",
        "/../guard.py",
        "/%2e%2e/guard.py",
        "/index.html.bak",
    ):
        assert locked.request("GET", path)[0] == 401


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200), ("localhost:8000", 200), ("LOCALHOST", 200), ("[::1]:80", 200), ("models.example", 200),
        ("evil.example", 403), ("evil.example:8000", 403), ("127.0.0.1.evil.example", 403), ("", 403), ("[", 403),
    ],
)  # fmt: skip
def test_hosts(locked: Served, host: str, status: int) -> None:
    assert locked.request("GET", "/health", headers={"host": host})[0] == status


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:1", 200), ("https://localhost:1", 200), ("http://localhost:2", 403), ("null", 403),
        ("http://evil.example", 403), ("http://[", 403), ("", 403),
    ],
)  # fmt: skip
def test_origins(locked: Served, origin: str, status: int) -> None:
    assert locked.request("GET", "/health", headers={"host": "localhost:1", "origin": origin})[0] == status


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.1", "example.org", ""])
def test_other_machines_need_a_key_or_a_word(host: str) -> None:
    with pytest.raises(InvalidSetting, match="insecure-no-key"):
        ServerSettings(host=host)
    assert ServerSettings(host=host, api_keys=("k",)).host == host
    assert ServerSettings(host=host, insecure_no_key=True).host == host


PAGE = "https://chat.example"


@pytest.fixture(scope="module")
def open_to_a_page() -> Iterator[Served]:
    with serving(fake(), api_keys=(KEY,), allowed_origins=(PAGE, "http://localhost:3000")) as made:
        yield made


def asking(origin: str, **more: str) -> dict[str, str]:
    return {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type,x-stainless-os",
        **more,
    }


@pytest.mark.parametrize("origin", [PAGE, "http://localhost:3000", PAGE.upper()])
def test_a_browser_may_ask_for_an_allowed_page_without_a_key(open_to_a_page: Served, origin: str) -> None:
    status, headers, data = open_to_a_page.request("OPTIONS", "/v1/chat/completions", headers=asking(origin))
    assert (status, data) == (204, b"")
    assert headers["access-control-allow-origin"] == origin
    assert headers["access-control-allow-headers"] == "authorization,content-type,x-stainless-os"
    assert "POST" in headers["access-control-allow-methods"]
    assert headers["vary"] == "origin"
    assert "access-control-allow-credentials" not in headers


@pytest.mark.parametrize("origin", ["https://evil.example", "http://chat.example", f"{PAGE}:444", "null", "", "*"])
@pytest.mark.parametrize("method", ["OPTIONS", "POST"])
def test_a_page_that_is_not_allowed(open_to_a_page: Served, origin: str, method: str) -> None:
    status, headers, data = open_to_a_page.request(method, "/v1/chat/completions", headers=asking(origin))
    assert (status, json.loads(data)["error"]["code"]) == (403, "origin_not_allowed")
    assert "--allowed-origins" in json.loads(data)["error"]["message"]
    assert not [name for name in headers if name.startswith("access-control-")]
    assert headers["vary"] == "origin"


def test_an_allowed_page_reads_answers_and_refusals(open_to_a_page: Served) -> None:
    key = {"authorization": f"Bearer {KEY}".encode().decode("latin-1")}
    for given, expected in (({}, 401), (key, 200)):
        status, headers, _ = open_to_a_page.request("GET", "/v1/models", headers={"origin": PAGE, **given})
        assert status == expected
        assert headers["access-control-allow-origin"] == PAGE
        exposed = headers["access-control-expose-headers"].split(", ")
        assert {"x-request-id", "retry-after", "x-drivetrain-ignored"} <= set(exposed)
    status, headers, _ = open_to_a_page.request("GET", "/v1/models", headers=key)
    assert (status, headers.get("access-control-allow-origin")) == (200, None)


def test_only_a_question_needs_no_key(open_to_a_page: Served) -> None:
    assert open_to_a_page.request("OPTIONS", "/v1/models", headers={"origin": PAGE})[0] == 401
    assert open_to_a_page.request("GET", "/v1/models", headers=asking(PAGE))[0] == 401


def test_what_needs_no_key_brings_no_large_body(open_to_a_page: Served) -> None:
    key = {"authorization": f"Bearer {KEY}".encode().decode("latin-1")}
    body = b"a" * 100_000
    assert open_to_a_page.request("OPTIONS", "/v1/models", body, asking(PAGE))[0] == 413
    assert open_to_a_page.request("GET", "/health", body)[0] == 413
    assert open_to_a_page.request("GET", "/health", body[:1000])[0] == 200
    assert open_to_a_page.request("GET", "/health", body, key)[0] == 200


def test_every_page_may_use_the_api_and_not_the_rest() -> None:
    with serving(fake(), allowed_origins=("*",)) as everybody:
        for path, headers, status in (
            ("/v1/models", {}, 200),
            ("/v1/models", {"authorization": "Basic eDp5"}, 403),
            ("/admin/models", {}, 403),
            ("/admin", {}, 403),
        ):
            got, told, _ = everybody.request("GET", path, headers={"origin": PAGE, **headers})
            assert got == status
            assert told.get("access-control-allow-origin") == ("*" if status == 200 else None)
        assert everybody.request("OPTIONS", "/v1/models", headers=asking("null"))[0] == 204
        assert everybody.request("OPTIONS", "/admin/models/load", headers=asking(PAGE))[0] == 403


def test_no_page_is_allowed_unless_it_is_said(locked: Served) -> None:
    status, headers, data = locked.request("OPTIONS", "/v1/models", headers=asking(PAGE))
    assert status == 403
    assert "--allowed-origins" in json.loads(data)["error"]["message"]
    assert "vary" not in headers


@pytest.mark.parametrize("origin", ["chat.example", f"{PAGE}/", f"{PAGE}/chat", "https://", "null", "https://a b"])
def test_an_origin_is_spelled_as_a_browser_does(origin: str) -> None:
    with pytest.raises(InvalidSetting, match="an origin looks like"):
        ServerSettings(allowed_origins=(origin,))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("insecure_no_key", "no"), ("port", "8000"), ("port", 65536), ("allowed_hosts", "chat.example"),
        ("api_keys", ("\udc80",)), ("max_headers", True), ("keep_alive_s", float("nan")), ("unknown_fields", "drop"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_by_name(name: str, value: Any) -> None:
    """As a config of Ray may have them: `insecure_no_key: "no"` must not let anybody in."""
    with pytest.raises(InvalidSetting) as caught:
        ServerSettings(**{name: value})
    assert caught.value.param == name


def test_keys_are_not_shown() -> None:
    assert "hush" not in repr(ServerSettings(api_keys=("hush",)))


def test_a_probe_is_told_that_it_is_not_ready_and_no_name() -> None:
    with serving(fake(), api_keys=(KEY,)) as served:
        assert served.request("GET", "/ready")[0] == 200
        engine_of(served.worker).die()  # the fake
        status, _, data = served.request("GET", "/ready")
        assert (status, json.loads(data)) == (503, {"status": "not ready"})
        status, _, data = served.request(
            "GET", "/ready", headers={"authorization": f"Bearer {KEY}".encode().decode("latin-1")}
        )
        assert (status, list(json.loads(data)["models"])) == (503, ["fake"])
