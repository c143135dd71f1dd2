"""The measurements, as JSON that later runs add to, and as a Markdown table."""

from __future__ import annotations

import json
import os
import platform
import statistics
from pathlib import Path
from typing import Any

from servers.compare import Pair, calm, foreign_cores
from servers.peer import Peer


class Report:
    """Holds every pair. The table shows the calm ones, or all if none was calm."""

    def __init__(self, ours: Peer, tokens: int) -> None:
        self._head = {"ours": ours.title, "new_tokens": tokens, "machine": f"{os.cpu_count()} x {_processor()}"}
        self._peers: dict[str, dict[str, Any]] = {}

    def add_file(self, path: Path) -> None:
        """Raises `RuntimeError` if the file is about something else."""
        held = json.loads(path.read_text())
        self._peers = held.pop("peers")
        if held != self._head:
            raise RuntimeError(f"{path} is about {held}, not {self._head}")

    def add(self, peer: Peer, streams: int, pair: Pair) -> None:
        entry = self._peers.setdefault(peer.name, {"pairs": {}})
        entry.update({"title": peer.title, "versions": peer.versions, "variables": dict(peer.variables)})
        entry["pairs"].setdefault(str(streams), []).append(pair)

    @property
    def json(self) -> str:
        return json.dumps({**self._head, "peers": self._peers}, indent=1)

    @property
    def markdown(self) -> str:
        lines = [
            "| peer | streams | pairs | ours, tok/s | peer, tok/s | ratio | ours, first token | peer, first token |"
        ]
        lines.append("|---|---|---|---|---|---|---|---|")
        for entry in self._peers.values():
            for streams, pairs in sorted(entry["pairs"].items(), key=lambda item: int(item[0])):
                taken = [pair for pair in pairs if calm(pair)] or pairs
                lines.append(f"| {entry['title']} | {streams} | {len(taken)} of {len(pairs)} | {_medians(taken)} |")
        return "\n".join(lines)


def _medians(pairs: list[Pair]) -> str:
    def median(side: str, name: str) -> float:
        return float(statistics.median(pair[side][name] for pair in pairs))

    ratios = [pair["ours"]["tokens_per_s"] / pair["peer"]["tokens_per_s"] for pair in pairs]
    speeds = f"{median('ours', 'tokens_per_s'):.1f} | {median('peer', 'tokens_per_s'):.1f}"
    firsts = f"{median('ours', 'first_token_s'):.3f} s | {median('peer', 'first_token_s'):.3f} s"
    spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    return f"{speeds} | {spread} | {firsts} | {max(map(foreign_cores, pairs)):.2f} cores"


def _processor() -> str:
    """The name that Linux gives it; on other systems, the one that Python knows."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
