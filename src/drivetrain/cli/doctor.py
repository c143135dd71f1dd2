"""`drivetrain doctor`: what this machine has, what is installed, and what to install. The network is not touched."""

from __future__ import annotations

import argparse
from typing import Any

from drivetrain.cli import options, output

_EPILOG = """examples:
  drivetrain doctor
  drivetrain doctor --json
"""


def add(commands: options.Commands) -> None:
    parser = commands.add_parser(
        "doctor",
        help="hardware, engines, versions, and what to install",
        description="What this machine has and what is installed.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from drivetrain.cli.machine import examine

    report = examine()
    if args.json:
        output.document(report)
    else:
        output.line("\n".join(_lines(report)))
    return 0


def _lines(report: dict[str, Any]) -> list[str]:
    from drivetrain.store.wording import size

    cpu, memory, store = report["cpu"], report["memory"], report["store"]
    rows = [
        ("drivetrain", report["drivetrain"]),
        ("python", report["python"]),
        ("platform", report["platform"]),
        ("cpu", f"{cpu['usable']} of {cpu['count']} usable  {cpu['model']}".rstrip()),
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


def _device(device: dict[str, Any]) -> str:
    from drivetrain.store.wording import size

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
