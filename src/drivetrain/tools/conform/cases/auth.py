"""Keys, if one is given: without it, only the probes (`/health`, `/ready`) are open.

OpenAI's API has only the paths below `/v1`; for the others, `auth.beside` expects what our server does.
"""

from __future__ import annotations

from collections.abc import Iterable

from drivetrain.tools.conform.case import Area, Cases
from drivetrain.tools.conform.reading import error_of
from drivetrain.tools.conform.trial import Trial
from drivetrain.tools.conform.verdict import NotOffered, NotRun, ensure

CASES = Cases(Area.AUTH, "the environment holds a key")
case = CASES.case

WRONG = "conform-wrong-key"
POST = ("/chat/completions", "/completions", "/embeddings")
BESIDE = (("POST", "/tokenize"), ("POST", "/detokenize"), ("GET", "/metrics"), ("GET", "/status"))
MOVED = {301, 302, 307, 308}


def _need_key(t: Trial) -> None:
    if not t.client.key:
        raise NotRun("no key was given; see DRIVETRAIN_API_KEY")


def _below_v1(t: Trial) -> list[tuple[str, str]]:
    """Every path of OpenAI's API."""
    listed = [("GET", t.base + path) for path in ("/models", "/models/", t.card)]
    return listed + [("POST", t.base + path) for path in POST]


async def _closed(t: Trial, paths: Iterable[tuple[str, str]], key: str, how: str) -> bool:
    """Whether any path requires a key. The others must be missing or redirect. Raises `Failed`."""
    locked = False
    for method, path in paths:
        exchange = await t.ask(method, path, {} if method == "POST" else None, key=key)
        closed = exchange.status in {401, 404, 405, 501} | MOVED
        ensure(closed, f"{exchange.request_line} {how} has status {exchange.status}, not 401")
        locked |= exchange.status == 401
    return locked


@case("missing", asks="every path below /v1 without a key", holds="401")
async def _missing(t: Trial) -> None:
    _need_key(t)
    ensure(await _closed(t, _below_v1(t), "", "without a key"), "no path requires a key")


@case("wrong", asks="every path below /v1 with a wrong key", holds="401")
async def _wrong(t: Trial) -> None:
    _need_key(t)
    ensure(await _closed(t, _below_v1(t), WRONG, "with a wrong key"), "no path refuses a wrong key")


@case("right", asks="the list of models with the key", holds="200")
async def _right(t: Trial) -> None:
    _need_key(t)
    exchange = await t.get("/models")
    ensure(exchange.status == 200, f"status {exchange.status} with the right key")


@case("error", asks="the list of models without a key", holds="an error object")
async def _error(t: Trial) -> None:
    _need_key(t)
    exchange = await t.ask("GET", f"{t.base}/models", key="")
    ensure(exchange.status == 401, f"status {exchange.status}, not 401")
    error_of(exchange)


@case("beside", asks="/tokenize, /detokenize, /metrics and /status without a key", holds="401, or they do not exist",
      offered="a key is given, and one of them exists")  # fmt: skip
async def _beside(t: Trial) -> None:
    _need_key(t)
    if not await _closed(t, [(method, t.root + path) for method, path in BESIDE], "", "without a key"):
        raise NotOffered("none of them exists")


@case("options", asks="OPTIONS without a key, as in a browser's preflight request", holds="nothing about the models")
async def _options(t: Trial) -> None:
    _need_key(t)
    exchange = await t.ask("OPTIONS", f"{t.base}/models", key="")
    ensure(exchange.status < 500, f"OPTIONS without a key has status {exchange.status}")
    ensure(t.model.encode() not in exchange.reply, "OPTIONS without a key lists the models")


@case("health", asks="/health without a key", holds="200", offered="/health exists")
async def _health(t: Trial) -> None:
    _need_key(t)
    exchange = await t.ask("GET", f"{t.root}/health", key="")
    if exchange.status in {404, 405}:
        raise NotOffered("/health does not exist")
    ensure(
        exchange.status == 200, f"/health without a key has status {exchange.status}: no probe can watch the process"
    )
