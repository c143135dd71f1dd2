"""The flags of the HTTP server, which `serve` and `deploy` share.

They are listed here so that `--help` needs no package of the extra.
"""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any

from drivetrain.cli.flags import options


def add_server_flags(group: Any) -> None:
    number, count = options.number, options.whole_number
    group.add_argument("--host", metavar="ADDRESS", help="the address to listen on (default: 127.0.0.1)")
    group.add_argument("--port", type=count, metavar="N", help="the port; 0 picks a free one (default: 8000)")
    group.add_argument(
        "--insecure-no-key",
        action="store_true",
        default=None,
        help="let other machines connect without a key (dangerous)",
    )
    group.add_argument(
        "--allowed-hosts", type=options.comma_list, metavar="A,B", help="more host names that requests may use"
    )
    group.add_argument(
        "--allowed-origins",
        type=options.comma_list,
        metavar="A,B",
        help="origins whose pages may call this server, such as https://chat.example (CORS); * allows all",
    )
    group.add_argument(
        "--unknown-fields",
        choices=("refuse", "warn"),
        help="what to do with a field that is not honoured (default: refuse)",
    )
    group.add_argument(
        "--metrics-compat",
        choices=("none", "vllm"),
        help="metric names to add to /metrics, for dashboards that read them (default: none)",
    )
    group.add_argument("--max-body-bytes", type=count, metavar="N", help="bytes per request body (default: 33554432)")
    group.add_argument(
        "--max-bodies-bytes", type=count, metavar="N", help="bytes of all request bodies at once (default: 268435456)"
    )
    group.add_argument("--max-body-values", type=count, metavar="N", help="values per request body (default: 1000000)")
    group.add_argument(
        "--max-header-bytes", type=count, metavar="N", help="bytes of headers per request (default: 32768)"
    )
    group.add_argument("--max-prompts", type=count, metavar="N", help="prompts per completion request (default: 64)")
    group.add_argument(
        "--receipt-timeout-s", type=number, metavar="X", help="seconds for a whole request to arrive (default: 30)"
    )


def given_server_settings(args: argparse.Namespace) -> dict[str, Any]:
    """The given ones, by their names in `ServerSettings`."""
    from drivetrain.server.settings import ServerSettings

    names = (field.name for field in fields(ServerSettings))
    return {name: value for name in names if (value := getattr(args, name, None)) is not None}
