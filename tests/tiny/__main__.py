"""`python -m tiny ROOT [NAME ...]` makes the checkpoints and says how long each took."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import tiny


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tiny", description=__doc__)
    parser.add_argument("root", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(tiny.ALL)}; all if none is named")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - set(tiny.ALL))
    if unknown:
        parser.error(f"no such checkpoint: {', '.join(unknown)}")
    start = time.perf_counter()
    __import__("transformers")
    print(f"{'(imports)':16} {time.perf_counter() - start:6.2f} s")
    for name in arguments.names or tiny.ALL:
        start = time.perf_counter()
        folder = tiny.checkpoint(name, arguments.root)
        seconds = time.perf_counter() - start
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        print(f"{name:16} {seconds:6.2f} s {size / 1024:8.0f} KiB")


if __name__ == "__main__":
    main()
