"""`drivetrain doctor`: what this machine has, what is installed, and what to install.

With a URL it examines that server. Without one it does not use the network.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from drivetrain.cli.flags import options
from drivetrain.cli.flags.keys import KEY_VARIABLE
from drivetrain.cli.terminal import output
from drivetrain.cli.terminal.report_files import add_report, check_writable
from drivetrain.core.errors import InvalidSetting

DEFAULT_TIMEOUT_S = 5.0

_EPILOG = f"""examples:
  drivetrain doctor
  drivetrain doctor --json
  drivetrain doctor http://127.0.0.1:8000
  drivetrain doctor https://llm.example --api-key-file keys.txt --admin-key-file admin.txt
  drivetrain doctor http://127.0.0.1:8000 --report doctor.html
  drivetrain doctor http://127.0.0.1:8000 --json | jq '.findings[] | .what'

With a URL, it reads /health, /ready, /status, /metrics, /v1/models and /admin/models of that server and changes
nothing. The key is the first one in --api-key-file, or the value of {KEY_VARIABLE}. It is sent only to that
server and never shown. The exit code is 0 if all is well, 1 if a finding needs action (marked !), and 2 if no server
answers or it is not a Drivetrain server.
"""


def add(commands: options.Commands) -> None:
    parser = commands.add_parser(
        "doctor",
        help="check this machine, or with a URL that server",
        description="Report on this machine and what is installed, or examine a running server and say what to do.",
        usage="%(prog)s [URL] [option ...]",
        epilog=_EPILOG,
    )
    parser.add_argument("url", metavar="URL", nargs="?", help="a running server, such as http://127.0.0.1:8000")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    group = parser.add_argument_group("with a URL")
    add_report(group)
    add_access(group)
    group.add_argument("--admin-key-file", type=Path, metavar="FILE", help="the admin key, if /admin has its own")
    parser.show_first("--json", "--report", "--api-key-file", "--admin-key-file", "--timeout")
    parser.set_defaults(run=run)


def add_access(group: Any) -> None:
    """How a server is asked; `ps` has these flags too."""
    group.add_argument("--api-key-file", type=Path, metavar="FILE", help="keys, one per line; the first one is sent")
    group.add_argument(
        "--api-key-env", metavar="NAME", default=KEY_VARIABLE,
        help=f"the variable that holds the key, if no file is given (default: {KEY_VARIABLE})",
    )  # fmt: skip
    group.add_argument(
        "--timeout", type=options.number, default=DEFAULT_TIMEOUT_S, metavar="S",
        help=f"seconds to wait for each page (default: {DEFAULT_TIMEOUT_S:g})",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    options.check_range(args, "timeout", 0.1, 3600, " seconds")
    check_writable(args.report)
    if args.url is not None:
        from drivetrain.cli.doctor import server as doctor_server

        return doctor_server.run(args)
    if args.report is not None:
        raise InvalidSetting("--report is about a server: give its URL, such as http://127.0.0.1:8000", param="url")
    if args.api_key_file is not None or args.admin_key_file is not None:
        raise InvalidSetting("a key is for a server: give its URL, such as http://127.0.0.1:8000", param="url")
    return _machine(args)


def _machine(args: argparse.Namespace) -> int:
    from drivetrain.cli.doctor.machine import examine

    report = examine()
    if args.json:
        output.document(report)
    else:
        output.line("\n".join(_lines(report)))
    return 0


def _lines(report: dict[str, Any]) -> list[str]:
    from drivetrain.store.display import size

    memory, store = report["memory"], report["store"]
    rows = [
        ("drivetrain", report["drivetrain"]),
        ("python", report["python"]),
        ("platform", report["platform"]),
        ("cpu", _cpu(report["cpu"])),
        ("memory", f"{size(memory['available_bytes'])} free of {size(memory['total_bytes'])}"),
        *(("device", _device(device)) for device in report["devices"]),
        *(("device", problem) for problem in report["device_problems"]),
        *(("engine", _engine(engine)) for engine in report["engines"]),
        *(("package", _package(package)) for package in report["packages"]),
        ("store", f"{store['path']}  {store['num_models']} models, {size(store['free_bytes'])} free"),
    ]
    if store["problem"]:
        rows[-1] = ("store", f"{store['path']}  {store['problem']}")
    if report["environment"]:
        rows.append(("environment", ", ".join(report["environment"])))
    width = max(len(name) for name, _ in rows)
    return [f"{name:<{width}}  {text}" for name, text in rows]


def _cpu(cpu: dict[str, Any]) -> str:
    bound = f"bound to {cpu['bound']}" if cpu["bound"] < cpu["count"] else ""
    quota = f"a CPU quota of {cpu['quota']:g}" if cpu["quota"] is not None else ""
    why = f" ({', '.join(filter(None, (bound, quota)))})" if bound or quota else ""
    return f"{cpu['usable']} of {cpu['count']} usable{why}  {cpu['model']}".rstrip()


def _device(device: dict[str, Any]) -> str:
    from drivetrain.store.display import size

    memory = f"  {size(device['total_bytes'])}" if device.get("total_bytes") else ""
    return f"{device['device']}  {device['name']}{memory}"


def _engine(engine: dict[str, Any]) -> str:
    if engine["ready"]:
        return f"{engine['name']}  ready"
    return f"{engine['name']}  {engine['problem']}; run: {engine['install']}"


def _package(package: dict[str, Any]) -> str:
    version = package["version"] or "not installed"
    unfit = f"  (needs {package['needs']})" if package["version"] and not package["fits"] else ""
    return f"{package['name']}  {version}{unfit}"
