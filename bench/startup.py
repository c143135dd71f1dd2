"""How long `import drivetrain` and `drivetrain --help` take, next to a bare interpreter: medians of fresh processes."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time

RUNS = 11

COMMANDS = {
    "bare interpreter": [sys.executable, "-c", "pass"],
    "import drivetrain": [sys.executable, "-c", "import drivetrain"],
    "import drivetrain, Worker": [sys.executable, "-c", "import drivetrain; drivetrain.Worker"],
    "drivetrain --help": [sys.executable, "-m", "drivetrain", "--help"],
}


def seconds(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def main() -> None:
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(RUNS):  # interleaved, so that a slow moment affects all of them
        for name, command in COMMANDS.items():
            times[name].append(seconds(command))
    medians = {name: round(statistics.median(values), 4) for name, values in times.items()}
    print(json.dumps({"runs": RUNS, "median_s": medians}, indent=2))


if __name__ == "__main__":
    main()
