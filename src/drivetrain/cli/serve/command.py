"""`drivetrain serve [MODEL]`: the OpenAI API and the web page, until a signal."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain.cli.flags import options
from drivetrain.cli.flags.keys import KEY_VARIABLE, key_in_environment, read_keys
from drivetrain.cli.flags.server_options import ServerStated, add_server_flags, read_server
from drivetrain.cli.serve import fleet
from drivetrain.cli.serve.dropin import Dropin, add_dropin_flags
from drivetrain.cli.serve.fleet import add_fleet_flags
from drivetrain.cli.serve.greeting import greet
from drivetrain.cli.serve.logs import add_log_flags, start_log
from drivetrain.cli.serve.tracing import add_tracing_flags, tracing
from drivetrain.core.errors import MissingExtra
from drivetrain.telemetry.memory import growing_heap, settle_heap

if TYPE_CHECKING:
    from drivetrain.assembly import Worker
    from drivetrain.core.engine import Progress
    from drivetrain.scale.fleet.fleet import Fleet
    from drivetrain.server.settings import ServerSettings
    from drivetrain.telemetry.tracing import GenAiTracer
    from drivetrain.worker.settings import Settings
    from drivetrain.worker.sources import Resolved

_PACKAGES = ("starlette", "uvicorn", "h11", "prometheus_client")
_EPILOG = """examples:
  drivetrain serve smollm2-135m
  drivetrain serve                       all that is pulled
  drivetrain serve ./my-model --port 9000 --name my-model
  drivetrain serve http://127.0.0.1:8080/v1 http://127.0.0.1:8081/v1 --model name
  drivetrain serve org/name --host 0.0.0.0 --api-key-file keys.txt
  drivetrain serve smollm2-135m code=./code.gguf --max-loaded 1 --alias gpt-4o=smollm2-135m

The page is at http://127.0.0.1:8000/, the API at /v1. For TLS, put a proxy in front. SIGTERM or Ctrl-C lets
running requests finish (see --drain-s); a second one stops the server at once. The settings of the server come
from flags, then DRIVETRAIN_X, then [serve] in the TOML file; a key may also be in DRIVETRAIN_API_KEY.
"""


def add(commands: options.Commands) -> None:
    parser = commands.add_parser(
        "serve",
        help="serve models over HTTP: the OpenAI API and a web page",
        description="Serve models over HTTP with the OpenAI API, and a chat page at /.",
        usage="%(prog)s [MODEL ...] [option ...]",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "models",
        metavar="MODEL",
        nargs="*",
        help="a short name, a folder, a .gguf file, a Hugging Face id or a URL; NAME=MODEL gives it a name; "
        "several URLs are upstreams of one model, otherwise each is a model of its own; without any, what is pulled",
    )
    options.add_quiet(parser)
    options.add_remote(parser)
    add_server_flags(parser.add_argument_group("server"))
    add_fleet_flags(parser.add_argument_group("several models"))
    add_log_flags(parser.add_argument_group("log"))
    add_tracing_flags(parser.add_argument_group("traces"))
    add_dropin_flags(parser.add_argument_group("worker of FastChat or DB-GPT"))
    options.add_settings(parser)
    parser.show_first(
        "--host", "--port", "--name", "--engine", "--slots", "--context-length", "--api-key-file", "--max-loaded",
        "--config", "--explain",
    )  # fmt: skip
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    stated = read_server(args)
    several = fleet.read(args)
    chosen = fleet.choose(args, several) if several is not None else []
    if several is None:
        args.model, *args.more_urls = args.models
        resolved = [options.read_settings(args)]
    else:
        resolved = [one.resolved for one in chosen]
    server = _server_settings(stated, [one.settings for one in resolved])
    if args.explain:
        from drivetrain.cli.serve.explain import explain

        explain(stated, server, chosen or [_alone(args.model, resolved[0])], fleet.told(args, several))
        return 0
    if any(importlib.util.find_spec(package) is None for package in _PACKAGES):
        raise MissingExtra("the HTTP server", extra="server")
    start_log(args)
    dropin = Dropin.read(args, server)
    with growing_heap(), tracing(args) as tracer:
        open_models: Callable[[Progress], tuple[Fleet, Fleet | Worker]]
        if several is None:
            open_models = partial(_one_model, args, resolved[0].settings, tracer)
        else:
            open_models = partial(_several_models, chosen, several, tracer)
        _serve(server, dropin, tracer, open_models, key_file=_key_file(stated), quiet=args.quiet)
    return 0


def _alone(model: str, resolved: Resolved) -> fleet.FleetModel:
    from drivetrain import assembly

    return fleet.FleetModel(resolved.settings.name or assembly.name_of(model) or model, model, resolved)


def _server_settings(stated: ServerStated, workers: Sequence[Settings]) -> ServerSettings:
    from drivetrain.server.settings import ServerSettings

    key, _ = key_in_environment(KEY_VARIABLE)
    return ServerSettings(
        **stated.given,
        api_keys=read_keys(_key_file(stated)) or ((key,) if key else ()),
        admin_keys=read_keys(_key_file(stated, "admin_key_file")),
        write_timeout_s=max(worker.reader_timeout_s for worker in workers),
    )


def _key_file(stated: ServerStated, name: str = "api_key_file") -> Path | None:
    value = stated.value(name)
    return None if value is None else Path(value)


def _one_model(
    args: argparse.Namespace, settings: Settings, tracer: GenAiTracer | None, progress: Progress
) -> tuple[Fleet, Worker]:
    """Weights are fetched here in the main thread, where Ctrl-C works at once."""
    from drivetrain import assembly
    from drivetrain.scale.fleet.fleet import Fleet

    parts = assembly.open_parts(args.model, settings, progress=progress)
    worker = parts.worker(progress=progress, tracer=tracer, warm=True)
    return Fleet.of({parts.spec.name: worker}), worker


def _several_models(
    chosen: Sequence[fleet.FleetModel], several: fleet.FleetArguments, tracer: GenAiTracer | None, progress: Progress
) -> tuple[Fleet, Fleet]:
    from drivetrain.cli.serve.offers import make_fleet

    models = make_fleet(chosen, several, progress, tracer)
    return models, models


def _serve(
    server: ServerSettings,
    dropin: Dropin,
    tracer: GenAiTracer | None,
    open_models: Callable[[Progress], tuple[Fleet, Fleet | Worker]],
    *,
    key_file: Path | None,
    quiet: bool,
) -> None:
    """The address is bound first, so that a port in use is reported before a model is fetched.

    `open_models` gives the fleet to serve, and what is started and stopped with the server.
    """
    import asyncio

    from drivetrain.cli.serve.running import recorded
    from drivetrain.cli.terminal.progress import progress_line
    from drivetrain.server.app import create_app
    from drivetrain.server.run import Stop, address_of, bind, serve

    def ready() -> None:
        settle_heap()
        progress.close()
        headline = "\n".join(f"{member.name} is {member.state}." for member in models.members)
        several = len(models.members) > 1
        greet(headline, dict(models), address_of(sock), key_file, server, several=several)

    async def main() -> None:
        stop = Stop()
        app = create_app(models, server, tracer, dropin.routes)
        try:
            with stop.on_signals():
                async with dropin.registration(models, sock) as registration:
                    start, drain = registration.after(owner.start), registration.before(models.drain)
                    await serve(app, server, sock, start=start, drain=drain, stop=stop, ready=ready)
        finally:
            await owner.stop()

    with bind(server) as sock, recorded(sock), progress_line(quiet=quiet) as progress:
        models, owner = open_models(progress)
        asyncio.run(main())
