"""`drivetrain serve MODEL`: the OpenAI API and the web page, until a signal."""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import os
import shlex
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drivetrain.cli import options, output
from drivetrain.core.errors import InvalidSetting, MissingExtra

if TYPE_CHECKING:
    from drivetrain import assembly
    from drivetrain.core.capabilities import Capabilities
    from drivetrain.server.settings import ServerSettings
    from drivetrain.worker.settings import Settings

KEY_VARIABLE = "DRIVETRAIN_API_KEY"
_PACKAGES = ("starlette", "uvicorn", "h11", "pydantic")
_EPILOG = """examples:
  drivetrain serve smollm2-135m
  drivetrain serve ./my-model --port 9000 --name my-model
  drivetrain serve http://127.0.0.1:8080/v1 http://127.0.0.1:8081/v1 --model name
  drivetrain serve org/name --host 0.0.0.0 --api-key-file keys.txt

The page is at http://127.0.0.1:8000/, the API at /v1. TLS is a proxy's work. SIGTERM or Ctrl-C lets running
requests end (see --drain-s); a second one ends at once.
"""


def add(commands: options.Commands) -> None:
    parser = commands.add_parser(
        "serve",
        help="an HTTP server: the OpenAI API and a web page",
        description="Serve a model over HTTP, as the OpenAI API does, with a chat page at /.",
        usage="%(prog)s MODEL [option ...]",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    options.add_model(parser)
    options.add_remote(parser, several=True)
    _add_server(parser.add_argument_group("server"))
    options.add_settings(parser)
    parser.set_defaults(run=run)


def _add_server(group: Any) -> None:
    """The flags are few and fixed, so that `--help` needs no package of the extra."""
    number, count = options.number, options.whole_number
    group.add_argument("--host", metavar="ADDRESS", help="the address to listen on (default: 127.0.0.1)")
    group.add_argument("--port", type=count, metavar="N", help="the port; 0 picks a free one (default: 8000)")
    group.add_argument("--api-key-file", type=Path, metavar="FILE", help=f"keys, one a line (or one in {KEY_VARIABLE})")
    group.add_argument(
        "--insecure-no-key",
        action="store_true",
        default=None,
        help="listen beyond this machine without a key (dangerous)",
    )
    group.add_argument(
        "--allowed-hosts", type=options.comma_list, metavar="A,B", help="further host names that requests may name"
    )
    group.add_argument(
        "--unknown-fields",
        choices=("refuse", "warn"),
        help="what becomes of a field that nobody knows (default: refuse)",
    )
    group.add_argument("--max-body-bytes", type=count, metavar="N", help="of one request (default: 33554432)")
    group.add_argument("--max-header-bytes", type=count, metavar="N", help="of one request (default: 32768)")
    group.add_argument("--max-connections", type=count, metavar="N", help="open at once (default: 2048)")
    group.add_argument("--max-prompts", type=count, metavar="N", help="in one completion request (default: 64)")
    group.add_argument(
        "--receipt-timeout-s", type=number, metavar="X", help="in which a request must have arrived (default: 30)"
    )


_FLAGS = (
    "host", "port", "insecure_no_key", "allowed_hosts", "unknown_fields", "max_body_bytes", "max_header_bytes",
    "max_connections", "max_prompts", "receipt_timeout_s",
)  # fmt: skip


def run(args: argparse.Namespace) -> int:
    resolved = options.read_settings(args)
    if args.explain:
        return options.explain(args, resolved)
    if any(importlib.util.find_spec(package) is None for package in _PACKAGES):
        raise MissingExtra("the HTTP server", extra="server")
    _serve(args, resolved.settings, _server_settings(args, resolved.settings))
    return 0


def _server_settings(args: argparse.Namespace, worker: Settings) -> ServerSettings:
    from drivetrain.server.settings import ServerSettings

    given = {name: value for name in _FLAGS if (value := getattr(args, name)) is not None}
    return ServerSettings(**given, api_keys=_keys(args.api_key_file), write_timeout_s=worker.reader_timeout_s)


def _keys(file: Path | None) -> tuple[str, ...]:
    """From the file, a key a line; else from the environment."""
    if file is None:
        key = os.environ.get(KEY_VARIABLE, "").strip()
        return (key,) if key else ()
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is not text"
        raise InvalidSetting(f"the key file {file} cannot be read: {reason}", param="api_key_file") from exc
    keys = tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))
    if not keys:
        raise InvalidSetting(f"the key file {file} holds no key", param="api_key_file")
    return keys


def _serve(args: argparse.Namespace, settings: Settings, server: ServerSettings) -> None:
    """The address is taken first: a port in use is told before a model is fetched.

    Weights are fetched here in the main thread, where Ctrl-C is felt at once.
    """
    import asyncio

    from drivetrain import assembly
    from drivetrain.cli.progress import progress_line
    from drivetrain.server.run import address_of, bind

    with bind(server) as sock, progress_line(quiet=args.quiet) as progress:
        engine, spec = assembly.open_parts(args.model, settings, progress=progress)

        def greet(worker: assembly.Worker) -> None:
            gc.collect()
            gc.freeze()  # what is there now stays: no collection during a stream has to look at it
            progress.close()
            for note in worker.metadata.notes:
                output.note(f"note: {note}")
            output.line(_greeting(address_of(sock), spec.name, worker.capabilities, args.api_key_file, server))

        async def main() -> None:
            worker = assembly.Worker(engine, spec, settings, progress=progress)
            await _run_server(worker, spec.name, server, sock, lambda: greet(worker))

        asyncio.run(main())


async def _run_server(
    worker: assembly.Worker, name: str, settings: ServerSettings, sock: socket.socket, ready: Callable[[], None]
) -> None:
    from drivetrain.server.app import create_app
    from drivetrain.server.models import Models
    from drivetrain.server.run import Stop, serve

    models, stop = Models({name: worker}), Stop()
    app = create_app(models, settings)
    with stop.on_signals():
        try:
            await serve(app, settings, sock, start=worker.start, drain=models.drain, stop=stop, ready=ready)
        finally:
            await worker.stop()


def _greeting(
    address: str, model: str, capabilities: Capabilities, key_file: Path | None, server: ServerSettings
) -> str:
    """The page, and a curl and a Python line that work when pasted."""
    key = "none"
    if server.api_keys:
        key = f"$(grep -v '^#' {shlex.quote(str(key_file))} | head -n 1)" if key_file else f"${KEY_VARIABLE}"
    path, body, call = _example(model, capabilities)
    header = f' -H "authorization: Bearer {key}"' if server.api_keys else ""
    curl = f"curl {address}/v1/{path}{header} -H 'content-type: application/json' -d {shlex.quote(json.dumps(body))}"
    code = f'from openai import OpenAI; print(OpenAI(base_url="{address}/v1").{call})'
    python = f'OPENAI_API_KEY="{key}" python3 -c {shlex.quote(code)}'
    ways = {"The page": f"{address}/", "In a shell": curl, "In Python (pip install openai)": python}
    return f"{model} is ready.\n" + "".join(f"\n{way}:\n  {line}\n" for way, line in ways.items())


def _example(model: str, capabilities: Capabilities) -> tuple[str, dict[str, Any], str]:
    """For the curl line the path and the body, for the Python line the call."""
    name = json.dumps(model)
    if not capabilities.generation:
        call = f'embeddings.create(model={name}, input="Hello").data[0].embedding'
        return "embeddings", {"model": model, "input": "Hello"}, call
    if not capabilities.chat:
        call = f'completions.create(model={name}, prompt="Once upon a time").choices[0].text'
        return "completions", {"model": model, "prompt": "Once upon a time"}, call
    messages = [{"role": "user", "content": "Say hello in five words."}]
    call = f"chat.completions.create(model={name}, messages={json.dumps(messages)}).choices[0].message.content"
    return "chat/completions", {"model": model, "messages": messages}, call
