"""`drivetrain deploy MODEL...`: the worker and the server on Ray Serve, with as many replicas as the load needs."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from drivetrain.cli.flags import options
from drivetrain.cli.flags.keys import KEY_VARIABLE, key_in_environment
from drivetrain.cli.flags.server_options import KEY_FILES, add_server_flags, read_server
from drivetrain.cli.serve.greeting import greet
from drivetrain.cli.serve.logs import add_log_flags, log_format, log_level
from drivetrain.cli.serve.tracing import add_tracing_flags, tracing
from drivetrain.cli.terminal import output
from drivetrain.cli.terminal.values import plain
from drivetrain.core.errors import InvalidSetting, MissingExtra
from drivetrain.telemetry.memory import settle_heap

if TYPE_CHECKING:
    from drivetrain.scale.ray.handle import HandleWorker
    from drivetrain.scale.ray.plan import IngressPlan, ModelPlan
    from drivetrain.server.settings import ServerSettings

_EPILOG = """examples:
  drivetrain deploy smollm2-135m
  drivetrain deploy smollm2-135m --replicas 1:4 --slots 8 --num-cpus 2
  drivetrain deploy chat=org/name embed=./my-embedder --address auto
  drivetrain deploy smollm2-135m --replicas 1:4 --dry-run > serve.yaml; serve deploy serve.yaml

Without --address, a private Ray runs on this machine until Ctrl-C. With it, the models stay on that cluster; run the
command again with other settings to update them, replica by replica. Keys come from DRIVETRAIN_API_KEY in the
cluster's environment.
"""

_NOT_HERE = (*KEY_FILES, "max_connections")
"""Keys come from the environment of the cluster, which has its own limits."""


def add(commands: options.Commands) -> None:
    number, count = options.number, options.whole_number
    parser = commands.add_parser(
        "deploy",
        help="serve models on Ray Serve, scaled with the load",
        description="Serve models on Ray Serve: replicas of workers behind the server that `drivetrain serve` runs.",
        usage="%(prog)s [NAME=]MODEL ... [option ...]",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "models", metavar="MODEL", nargs="+", help="a model, as for serve; NAME=MODEL gives it a public name"
    )
    group = parser.add_argument_group("deployment", "These apply to each model.")
    group.add_argument(
        "--replicas", metavar="MIN:MAX", default="1:1", help="replicas: a range, or one number (default: 1)"
    )
    group.add_argument(
        "--target-ongoing", type=number, metavar="X", help="requests per replica to aim for (default: 8)"
    )
    group.add_argument("--max-ongoing", type=count, metavar="N", help="most requests per replica (default: 16)")
    group.add_argument(
        "--max-queued", type=count, metavar="N", help="requests that may wait for a replica (default: 64)"
    )
    group.add_argument("--num-cpus", type=number, metavar="X", help="CPUs per replica (default: 1)")
    group.add_argument(
        "--num-gpus", type=number, metavar="X", help="GPUs per replica (default: vLLM's tensor_parallel_size, or 0)"
    )
    group.add_argument(
        "--upscale-delay-s", type=number, metavar="X", help="seconds of load before replicas are added (default: 5)"
    )
    group.add_argument(
        "--downscale-delay-s",
        type=number,
        metavar="X",
        help="seconds of low load before replicas are removed (default: 60)",
    )
    group.add_argument(
        "--surge",
        type=count,
        metavar="PERCENT",
        help="extra replicas that an update starts before it stops old ones; they need room (default: 25, with GPUs 0)",
    )
    group.add_argument("--ingress-replicas", type=count, metavar="N", default=1, help="HTTP servers (default: 1)")
    group = parser.add_argument_group("cluster")
    group.add_argument(
        "--address", metavar="ADDRESS", help="a running Ray: auto, or HOST:PORT (default: start a private one)"
    )
    add_server_flags(parser.add_argument_group("server"), without=_NOT_HERE)
    group.add_argument("-q", "--quiet", action="store_true", help="log warnings and errors only")
    group.add_argument(
        "--dry-run", action="store_true", help="print the configuration for `serve deploy` and KubeRay, and exit"
    )
    add_log_flags(group)
    add_tracing_flags(group)
    options.add_settings(parser)
    parser.show_first(
        "--replicas", "--num-cpus", "--num-gpus", "--address", "--dry-run", "--host", "--port", "--engine"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from drivetrain.scale.ray.observability import Observability
    from drivetrain.scale.ray.plan import IngressPlan, arguments_of, config_of
    from drivetrain.server.settings import ServerSettings

    models = [_plan(args, given) for given in args.models]
    if len({model.deployment for model in models}) < len(models):
        raise InvalidSetting("two models have the same name; rename one with NAME=MODEL", param="models")
    stated = read_server(args, without=_NOT_HERE)
    host, port = stated.value("host"), stated.value("port")
    server = {**stated.given, "host": host, "port": port}  # in Serve's file too, where its own address stands beside it
    default_s = ServerSettings(**{**server, "insecure_no_key": True}).write_timeout_s  # each ingress has its own keys
    reading_s = max(model.settings.get("reader_timeout_s", default_s) for model in models)
    if reading_s != default_s:
        server["write_timeout_s"] = reading_s
    ingress = IngressPlan(
        server=server, num_replicas=args.ingress_replicas, longest_s=max(model.longest_s for model in models)
    )
    if (
        args.address is not None
        and not args.dry_run
        and not any(key_in_environment(KEY_VARIABLE))
        and not stated.value("insecure_no_key")
    ):
        raise InvalidSetting(
            f"a running Ray may accept other machines, whatever --host says: set {KEY_VARIABLE} here"
            " and on its nodes, or pass --insecure-no-key",
            param="address",
        )
    if args.address is None and not args.dry_run:
        if args.ingress_replicas > 1:
            raise InvalidSetting(
                "without --address this process is the only HTTP server; --ingress-replicas needs --address",
                param="ingress_replicas",
            )
        if args.surge is not None:
            raise InvalidSetting("without --address nothing is ever updated; --surge needs --address", param="surge")
    if importlib.util.find_spec("ray") is None:
        raise MissingExtra("a deployment", extra="ray")
    with tracing(args):
        pass  # reports problems with the flags here, and not in every replica
    observability = Observability(
        log_format=log_format(args),
        log_level=log_level(args),
        otlp_endpoint=args.otlp_endpoint,
        trace_content=args.trace_content,
        trace_sample=args.trace_sample,
    ).arguments
    arguments = arguments_of(models, ingress, observability)
    if args.dry_run:
        import yaml

        config = config_of(arguments, host=host, port=port)
        output.line(yaml.safe_dump(config, sort_keys=False).rstrip())
        return 0
    _deploy(args, models, ingress, arguments, host=host, port=port)
    return 0


def _plan(args: argparse.Namespace, given: str) -> ModelPlan:
    from drivetrain import assembly
    from drivetrain.scale.ray.plan import SURGE, ModelPlan
    from drivetrain.worker import sources

    name, model = options.named_model(given)
    given_settings = options.given_settings(args)
    resolved = sources.read_settings(assembly.SETTINGS, name or model, given_settings, config=args.config)
    # A replica reads neither files nor the environment of this machine.
    settings = {key: plain(value) for key, value in options.changed(resolved).items() if key != "name"}
    lowest, highest = _replicas(args.replicas)
    chosen = {
        key: value
        for key in ("target_ongoing", "max_ongoing", "max_queued", "num_cpus", "upscale_delay_s", "downscale_delay_s")
        if (value := getattr(args, key)) is not None
    }
    parallel = resolved.settings.engine_options.get("vllm_args", {}).get("tensor_parallel_size", 0)
    num_gpus = args.num_gpus if args.num_gpus is not None else float(parallel)
    return ModelPlan(
        model=model,
        name=name or resolved.settings.name or assembly.name_of(model) or _host(model),
        settings=settings,
        min_replicas=lowest,
        max_replicas=highest,
        num_gpus=num_gpus,
        surge=args.surge if args.surge is not None else 0 if num_gpus else SURGE,
        longest_s=resolved.settings.max_timeout_s,
        **chosen,
    )


def _host(model: str) -> str:
    """What a URL that names no model is called: only its server knows the model's name."""
    from drivetrain.store.references import parse

    return parse(model).name


def _replicas(text: str) -> tuple[int, int]:
    lowest, _, highest = text.partition(":")
    try:
        return int(lowest), int(highest or lowest)
    except ValueError:
        raise InvalidSetting(f"--replicas is {text!r}; it must be MIN:MAX or one number", param="replicas") from None


def _deploy(
    args: argparse.Namespace,
    models: list[ModelPlan],
    ingress: IngressPlan,
    arguments: Mapping[str, Any],
    *,
    host: str,
    port: int,
) -> None:
    from drivetrain.scale.ray import cluster
    from drivetrain.scale.ray.plan import settings_of

    settings = settings_of(ingress.server)
    if args.address is None:
        _serve_alone(arguments, settings)
        return
    with cluster.joined(args.address):
        cluster.run(dict(arguments), host=host, port=port)
    names = ", ".join(model.name for model in models)
    output.line(f"{names}: deployed. The page is at http://{host}:{port}/, the API at /v1.")


def _serve_alone(arguments: Mapping[str, Any], settings: ServerSettings) -> None:
    """The address is bound first, so that a port in use is reported before Ray starts."""
    import asyncio

    from drivetrain.scale.ray import cluster
    from drivetrain.server.run import address_of, bind

    with bind(settings) as sock, cluster.joined(None):
        from drivetrain.scale.ray.local import serve_alone
        from drivetrain.scale.ray.observability import observing
        from drivetrain.scale.ray.plan import OBSERVABILITY

        def ready(workers: Mapping[str, HandleWorker]) -> None:
            settle_heap()
            headline = f"{', '.join(workers)}: ready."
            greet(headline, workers, address_of(sock), None, settings, several=len(workers) > 1)

        with observing(arguments.get(OBSERVABILITY, {})) as tracer, cluster.replicas(arguments) as handles:
            asyncio.run(serve_alone(handles, settings, tracer, sock, ready))
