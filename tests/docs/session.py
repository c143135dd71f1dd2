"""A reader at work: a copy of the checkout, a new home, a shell that remembers, and servers in other terminals."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from docs.fences import ROOT, Block

DRIVER = Path(__file__).with_name("driver.py")
TYPIST = Path(__file__).with_name("typist.py")
PATIENCE_S = 500

_PORTS = re.compile(r"((?:127\.0\.0\.1|localhost):|--port )(\d{4,5})\b")
_SERVES = re.compile(r"(?:\w+=\S*(?:\$\([^)]*\))?\S* )*(?:drivetrain serve|make serve)\b(?!.*(?:--explain|--help))")
_CHATS = re.compile(r"drivetrain (?:run|chat) [\w./-]+(?: --[\w-]+ [\w./-]+)*")
"""Without a message, so somebody types."""
_PORT = re.compile(r"--port (\d+)")

PROLOGUE = """
set -eo pipefail
in_another_terminal() {  # a port and a command that goes on: until it is ready, and in place of what was on its port
  if [ -e "$TERMINALS/$1" ]; then
    local before=-$(cat "$TERMINALS/$1")
    kill -- $before 2>/dev/null || true
    while kill -0 -- $before 2>/dev/null; do sleep 0.1; done
  fi
  DRIVETRAIN_PORT=$1 setsid bash -c "$2" > "$TERMINALS/$1.log" 2>&1 < /dev/null &
  local pid=$!
  echo $pid > "$TERMINALS/$1"
  disown
  until curl -fs "http://127.0.0.1:$1/ready" > /dev/null; do
    kill -0 $pid 2>/dev/null || { echo "it ended: $2" >&2; cat "$TERMINALS/$1.log" >&2; return 1; }
    sleep 0.2
  done
}
"""


class Failed(AssertionError):
    """A block did not do what the page says."""


class Session:
    """Blocks are run in their order. `close` ends the servers."""

    def __init__(self, folder: Path, environment: Path, weights: Path) -> None:
        self.folder = folder / "drivetrain"
        self._state = folder / "state"
        self._terminals = folder / "terminals"
        self._terminals.mkdir(parents=True)
        self._ports: dict[str, str] = {}
        self._driver: subprocess.Popen[str] | None = None
        self._printed = ""
        _copy_checkout(self.folder)
        (self.folder / ".venv").symlink_to(environment)
        home = folder / "home"
        _link_weights(weights, home / ".cache" / "drivetrain")
        self._environment = _environment(home, environment, self._terminals)
        self._environment["DRIVETRAIN_PORT"] = self._free_port("8000")

    def run(self, block: Block) -> None:
        """Raises `Failed`."""
        for command in block.first:
            self._shell(command + "\n", block.place)
        if block.language == "sh":
            self._printed = self._shell(block.text, block.place)
        elif block.language == "python":
            self._python(block)
        elif block.is_output:
            check_output(block, self._printed)

    def close(self) -> None:
        if self._driver is not None:
            with self._driver as driver:  # which closes its pipes, and waits for its end
                assert driver.stdin is not None
                driver.stdin.close()
        for file in self._terminals.iterdir():
            if file.suffix != ".log":
                _end(int(file.read_text()))

    def _shell(self, text: str, place: str) -> str:
        script = PROLOGUE
        if self._state.exists():
            script += f". {self._state}\n"
        script += self._prepared(text) + f"export -p > {self._state}\n"
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        if done.returncode != 0:
            raise Failed(f"{place} exits with {done.returncode}\n{text}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
        return done.stdout

    def _prepared(self, text: str) -> str:
        """With free ports, and with each server in a terminal of its own."""
        lines = list[str]()
        for line in self._with_free_ports(text).replace("\\\n", " ").splitlines():
            command = line.partition("  #")[0].rstrip()
            if _SERVES.match(command):
                port = _PORT.search(command)
                where = port[1] if port else self._free_port("8000")
                line = f"in_another_terminal {where} {_quoted(command.removesuffix('&'), where)}"
            elif _CHATS.fullmatch(command):
                line = f"python {TYPIST} {command}"
            lines.append(line)
        return "\n".join(lines) + "\n"

    def _with_free_ports(self, text: str) -> str:
        return _PORTS.sub(lambda found: found[1] + self._free_port(found[2]), text)

    def _free_port(self, port: str) -> str:
        if port not in self._ports:
            with socket.create_server(("127.0.0.1", 0)) as free:
                self._ports[port] = str(free.getsockname()[1])
        return self._ports[port]

    def _python(self, block: Block) -> None:
        driver = self._driver or self._started()
        assert driver.stdin is not None
        assert driver.stdout is not None
        asked = {"text": self._with_free_ports(block.text), "place": block.place}
        driver.stdin.write(json.dumps(asked) + "\n")
        driver.stdin.flush()
        answer = driver.stdout.readline()
        problem = json.loads(answer) if answer else "the interpreter has ended"
        if problem:
            raise Failed(f"{block.place}\n{block.text}\n{problem}")

    def _started(self) -> subprocess.Popen[str]:
        log: IO[str] = (self._terminals / "python.log").open("w")
        with log:
            self._driver = subprocess.Popen(
                [str(self.folder / ".venv" / "bin" / "python"), str(DRIVER)],
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        return self._driver


def check_output(block: Block, printed: str) -> None:
    """Each line before the first `...` was printed, in this order; numbers may be others, and gaps wider."""
    wanted = block.text.partition("\n...")[0].splitlines()
    at = 0
    for line in filter(str.strip, wanted):
        cells = [_cell(word) for word in line.split()]
        found = re.compile(r"\s+".join(cells)).search(printed, at)
        if found is None:
            raise Failed(f"{block.place}: no line like {line!r} was printed:\n{printed}")
        at = found.end()


def _cell(word: str) -> str:
    """A number may also be a -, which means none."""
    if re.fullmatch(r"-|[\d.,]+", word):
        return r"(?:-|[\d.,]+)"
    return re.sub(r"\d+", r"\\d+", re.escape(word))


def _copy_checkout(folder: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True)
    for name in listed.stdout.decode().splitlines():
        source, target = ROOT / name, folder / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


def _link_weights(store: Path, target: Path) -> None:
    """The pulled model, which is not downloaded again: by hard links where it can be, so that `rm` harms nothing."""

    def link(source: str, to: str) -> None:
        try:
            os.link(source, to)
        except OSError:
            shutil.copy2(source, to)

    for part in ("models", "derived"):
        if (store / part).is_dir():
            shutil.copytree(store / part, target / part, copy_function=link)


def _environment(home: Path, environment: Path, terminals: Path) -> dict[str, str]:
    kept = ("LANG", "TERM", "PIP_INDEX_URL", "PIP_CACHE_DIR", "http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE")
    inherited: Mapping[str, str] = {name: os.environ[name] for name in kept if name in os.environ}
    return {
        **inherited,
        "HOME": str(home),
        "PATH": f"{environment / 'bin'}:{os.environ['PATH']}",
        "TERMINALS": str(terminals),
        "HF_HUB_OFFLINE": "1",
        "DRIVETRAIN_MAX_TOKENS": "100",  # where nobody says otherwise: the small model may find no end
        "OMP_WAIT_POLICY": "passive",
        "CXX": "no-compiler-here",
        "PIP_NO_BUILD_ISOLATION": "0",  # which means that there is none
        "PIP_QUIET": "1",
        "PIP_CONSTRAINT": str(ROOT / "constraints.txt"),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }


def _quoted(command: str, port: str) -> str:
    """`make` has a port of its own."""
    import shlex

    return shlex.quote(f"{command} PORT={port}" if command.startswith("make") else command)


def _end(group: int) -> None:
    try:
        os.killpg(group, signal.SIGTERM)
    except ProcessLookupError:
        return


assert sys.platform != "win32"
