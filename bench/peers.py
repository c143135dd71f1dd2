"""The servers that ours is measured against: install them, run one, or measure them against ours.

    python bench/peers.py setup                        all of them, in .venv-peers/NAME
    python bench/peers.py run vllm --port 8401         until Ctrl-C; `measure` uses it while it runs
    python bench/peers.py measure vllm --streams 1,16  against `drivetrain serve`

Peers: vllm, transformers, transformers-cb, fastchat, llamacpp; `run` also knows ours.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from servers.compare import Comparison, Side
from servers.environment import ROOT
from servers.fastchat import FASTCHAT
from servers.llamacpp import LLAMACPP
from servers.ours import DEFAULT, ours
from servers.peer import Peer
from servers.process import ServerGroup, answers, free_port, started
from servers.report import Report
from servers.transformers_serve import TRANSFORMERS, TRANSFORMERS_CB
from servers.vllm import VLLM

PEERS = {peer.name: peer for peer in (VLLM, TRANSFORMERS, TRANSFORMERS_CB, FASTCHAT, LLAMACPP)}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    args = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that whatever was started is stopped
    try:
        if args.command == "setup":
            for name in args.peers:
                PEERS[name].setup(say)
        elif args.command == "run":
            run(args.peer, args.port, args.ours)
        else:
            asyncio.run(measure(args))
    except RuntimeError as exc:
        sys.exit(str(exc))
    except KeyboardInterrupt:
        sys.exit(130)


def arguments() -> argparse.Namespace:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("setup", help="make the environments and the weights that are missing")
    command.add_argument("peers", nargs="*", type=_known, default=list(PEERS), metavar="PEER", help="default: all")
    command = commands.add_parser("run", help="one server in the foreground")
    command.add_argument("peer", choices=[*PEERS, "ours"], metavar="PEER")
    command.add_argument("--port", type=int, default=0, help="default: a free one")
    _our_options(command)
    command = commands.add_parser("measure", help="ours against each peer, in turns")
    command.add_argument("peers", nargs="+", choices=list(PEERS), metavar="PEER")
    command.add_argument("--streams", type=_numbers, default=[1, 4, 16], metavar="N,N", help="default: 1,4,16")
    command.add_argument("--pairs", type=int, default=5, help="calm pairs per number of streams (default: 5)")
    command.add_argument("--tokens", type=int, default=64, help="new tokens per request (default: 64)")
    command.add_argument("--seed", type=int, help="seed of the prompts (default: a new one each time)")
    command.add_argument(
        "--json", type=Path, metavar="FILE", help="write the JSON here; pairs that are already in it count too"
    )
    _our_options(command)
    return parser.parse_args()


def _our_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--ours",
        default=shlex.join(DEFAULT),
        metavar="OPTIONS",
        help=f"options of drivetrain serve (default: {shlex.join(DEFAULT)})",
    )


def _known(name: str) -> str:
    if name not in PEERS:
        raise argparse.ArgumentTypeError(f"{name} is not one of {', '.join(PEERS)}")
    return name


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def run(name: str, port: int, options: str) -> None:
    peer = _peer(name, options)
    with serving(peer, port) as group:
        state = _state(name)
        state.write_text(json.dumps({"pgid": group.pgid, "port": group.port, "title": peer.title}))
        try:
            print(f"{peer.title}: http://127.0.0.1:{group.port}{peer.form.path}; Ctrl-C ends it", flush=True)
            while group.alive:
                time.sleep(1)
            raise RuntimeError(f"{name} ended on its own; see {_log(name)}")
        finally:
            state.unlink()


async def measure(args: argparse.Namespace) -> None:
    seed = args.seed if args.seed is not None else random.randrange(10**6)
    mine = _peer("ours", args.ours)
    report = Report(mine, args.tokens)
    if args.json and args.json.exists():
        report.add_file(args.json)
    with running_or_started(mine) as ours_group:
        for peer in (PEERS[name] for name in args.peers):
            with running_or_started(peer) as group:
                comparison = Comparison(Side(mine, ours_group), Side(peer, group), args.tokens, seed, say)
                for streams in args.streams:
                    async for pair in comparison.pairs(streams, args.pairs):
                        report.add(peer, streams, pair)
                        if args.json:
                            args.json.write_text(report.json + "\n")
    print(report.json, report.markdown, sep="\n\n")


def _peer(name: str, options: str) -> Peer:
    return ours(shlex.split(options)) if name == "ours" else PEERS[name]


@contextmanager
def serving(peer: Peer, port: int = 0) -> Iterator[ServerGroup]:
    """A server started for this use only."""
    if peer.environment is not None and not peer.environment.complete:
        raise RuntimeError(f"first: python bench/peers.py setup {peer.name}")
    port = port or free_port()
    began = time.monotonic()
    say(f"{peer.name}: starting on port {port} (at most {peer.ready_s:.0f} s)")
    command = [peer.python, *peer.arguments(port)]
    with started(command, peer.variables, port, _log(peer.name), peer.ready_path, peer.ready_s) as group:
        say(f"{peer.name}: ready after {time.monotonic() - began:.1f} s")
        yield group
    say(f"{peer.name}: stopped")


@contextmanager
def running_or_started(peer: Peer) -> Iterator[ServerGroup]:
    """The server that `run` has started, if there is one; it is left running."""
    state = _state(peer.name)
    if state.is_file():
        running = json.loads(state.read_text())
        group = ServerGroup(running["pgid"], running["port"])
        if group.alive and answers(group.port, peer.ready_path):
            if running["title"] != peer.title:
                raise RuntimeError(f"{peer.name} runs as {running['title']}, not as {peer.title}")
            say(f"{peer.name}: using the one on port {group.port}")
            yield group
            return
    with serving(peer) as group:
        yield group


def _log(name: str) -> Path:
    return ROOT / "run" / f"{name}.log"


def _state(name: str) -> Path:
    return ROOT / "run" / f"{name}.json"


if __name__ == "__main__":
    main()
