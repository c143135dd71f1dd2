"""`compile`: the forward pass as compiled programs, where the model's class would call some two thousand operations.

There is one program for a single id and one for any number of them. A process of its own makes them (`compiler.py`) and
keeps them in a folder; here they are found, checked and loaded, which takes no compiler and no time.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import platform
import shutil
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from drivetrain.core.errors import InvalidSetting
from drivetrain.core.user_cache import user_cache
from drivetrain.engines.base.error_text import clean
from drivetrain.engines.checkpoint import errors
from drivetrain.engines.native.attention import cpu
from drivetrain.engines.native.attention.choosing import attention_for
from drivetrain.engines.native.attention.layers import AttentionStage
from drivetrain.engines.native.attention.operators import Operands
from drivetrain.engines.native.cpu.weight_layout import lay_out_for_torch, lay_out_in_panels, takes_panels
from drivetrain.engines.native.model import compiler
from drivetrain.engines.native.model.compiler import ATTENTION, MADE, library_of
from drivetrain.engines.native.model.recipe import Recipe
from drivetrain.engines.native.model.runner import Pass
from drivetrain.engines.native.model.tracing import name_operands, tensors_of

_log = logging.getLogger(__name__)

FEWEST = 2
"""The fewest ids and logits in the program for any number: torch takes 0 and 1 for constants."""

KEPT = 20
"""Folders of programs that are kept. The one longest unused goes first."""

_PACKAGES = ("attention", "cpu", "kv", "model")
"""Their code ends up in the programs."""

UNFINISHED_S = 24 * 3600
"""After this, what was begun and not finished is nobody's work."""


class CannotCompile(Exception):
    """The message says why."""


def obstacle(device: Any) -> str:
    """Why nothing can be compiled here, and what helps. Empty if it can."""
    if device.type != "cpu":
        return f"compile is for CPUs so far, and the device is {device}"
    if sys.platform == "win32":
        return "compile is for Linux and macOS"
    name = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(name) is None:
        return f"compile needs a C++ compiler, and there is no {name} (on Debian: apt-get install g++ python3-dev)"
    try:
        folder = root()
        found = folder.lstat()
    except FileNotFoundError:
        return ""
    except (OSError, RuntimeError) as exc:
        return f"there is no place to keep what is compiled ({exc}); set XDG_CACHE_HOME"
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        return f"{folder} is not a folder of this user that nobody else can write to, and libraries are loaded from it"
    return ""


def root() -> Path:
    """In the user's own folder. Raises `RuntimeError` if there is none."""
    return user_cache(os.environ) / "compiled"


def refused(why: str) -> InvalidSetting:
    return InvalidSetting(f"{why}; leave compile out", param="compile")


class Program:
    """One compiled pass, with the tensors of the model that it takes."""

    def __init__(self, library: Path, tensors: list[Any]) -> None:
        self._run = torch._C._aoti.AOTIModelContainerRunnerCpu(str(library), 1).run
        self._tensors = tensors

    def __call__(self, *inputs: Any) -> Any:
        return self._run([*inputs, *self._tensors])[0]


class Compiled:
    """A `Forward` of two programs for tensors of any length, so nothing is compiled later."""

    def __init__(self, operands: Operands, one: Callable[..., Any], several: Callable[..., Any]) -> None:
        self._operands = operands
        self._one = one
        self._several = several

    def __call__(self, input_ids: Any, position_ids: Any, keep: Any) -> Any:
        wanted = len(keep)
        alone = input_ids.shape[1] == 1
        missing = (1 if alone else FEWEST) - wanted
        if missing > 0:
            keep = torch.cat([keep, keep.new_zeros(missing)])
        logits = self._computed(self._one if alone else self._several, input_ids, position_ids, keep)
        return logits[:wanted] if missing > 0 else logits

    def _computed(self, program: Callable[..., Any], *inputs: Any) -> Any:
        try:
            return program(*inputs)
        except RuntimeError:
            failure, self._operands.failure = self._operands.failure, None
            if failure is not None:
                raise failure from None
            raise


class ProgramFolder:
    """The programs of one model on this machine, whether they are there or not."""

    def __init__(self, model: Any, stage: AttentionStage, path: Path, *, trust_remote_code: bool) -> None:
        self._model = model
        self._layers = stage.layers
        self._operands = name_operands(model, stage)
        self._recipe = Recipe(
            path=str(path),
            trust_remote_code=trust_remote_code,
            dtype=str(model.dtype).removeprefix("torch."),
            num_threads=torch.get_num_threads(),
            with_attention=not cpu.unfit(stage.layers, model.device, model.dtype),
            with_products=takes_panels(model),
        )
        self._folder = root() / _key(model, self._recipe)

    def load(self) -> Pass | None:
        """None if they were not made, or not for exactly this, or are damaged; then they are removed."""
        try:
            programs = self._loaded()
        except FileNotFoundError:
            return None  # perhaps another process is about to put them there
        except Exception:  # noqa: BLE001 - whatever is wrong with them, they are made anew
            self.remove()
            return None
        with contextlib.suppress(OSError):
            os.utime(self._folder)
        return programs

    def lay_out(self) -> Iterator[None]:
        """Layer by layer, the weights for our own products, once the programs are loaded; where those are not right,
        for torch's, with which the programs work as well.
        """
        if self._recipe.with_products:
            try:
                yield from lay_out_in_panels(self._model, self._library)
            except Exception as exc:
                if errors.is_out_of_memory(exc):
                    raise
                _log.warning("%s; torch's are used", exc)
                self.lay_back()

    def lay_back(self) -> None:
        """The weights for the products that any machine has."""
        lay_out_for_torch(self._model)

    def _library(self, source: Path) -> Path:
        return self._folder / library_of(source)

    def remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    async def make(self, *, beside: bool) -> None:
        """Half a minute and more. Cancelling ends the process. `beside` leaves the cores to others that want them.

        Raises `CannotCompile`.
        """
        try:
            self._folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _forget_oldest(self._folder.parent)
        except OSError as exc:
            raise CannotCompile(f"there is no place to keep what is compiled ({exc.strerror})") from exc
        told = {"recipe": asdict(self._recipe), "folder": str(self._folder), "beside": beside}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            compiler.__name__,
            json.dumps(told),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the worker alone; and what it starts ends with it
        )
        assert process.stderr is not None
        try:
            last_words = (await process.stderr.read()).decode("utf-8", "replace").strip()
            status = await process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process._transport.close()  # type: ignore[attr-defined]  # else its pipes wait for the collector
        if status:
            lines = last_words.splitlines() or [f"its process ended with status {status}"]
            why = next((line for line in lines if " error: " in line), lines[-1])
            raise CannotCompile(f"this model cannot be compiled ({clean(why)})")

    def _loaded(self) -> Pass:
        made = json.loads((self._folder / MADE).read_text("utf-8"))
        for name, digest in made["files"].items():
            if compiler.digest(self._folder / name) != digest:
                raise CannotCompile(f"{name} is damaged")
        tensors = tensors_of(self._model, self._operands)
        programs = []
        for name in compiler.SHAPES:
            for one, form in made["inputs"][name]:
                if compiler.form_of(tensors[one]) != form:
                    raise CannotCompile(f"{one} is not {form}")
            inputs = [tensors[one] for one, _ in made["inputs"][name]]
            programs.append(Program(self._folder / f"{name}.so", inputs))
        kernel = self._folder / ATTENTION if self._recipe.with_attention else None
        attention = attention_for(self._layers, self._model.device, self._model.dtype, kernel)
        return Pass(Compiled(self._operands, *programs), attention)


def _forget_oldest(root: Path) -> None:
    folders = sorted((made.parent for made in root.glob(f"*/{MADE}")), key=_last_used)
    begun = [part for part in root.glob("*.part") if _last_used(part) < time.time() - UNFINISHED_S]
    for folder in (*folders[: -(KEPT - 1)], *begun):
        shutil.rmtree(folder, ignore_errors=True)


def _last_used(folder: Path) -> float:
    """Now, if another process has just moved or removed it."""
    try:
        return folder.stat().st_mtime
    except FileNotFoundError:
        return time.time()


def _key(model: Any, recipe: Recipe) -> str:
    """Of everything that the programs depend on, but for the weights, which are their inputs."""
    import transformers

    config = {name: value for name, value in model.config.to_dict().items() if name != "_name_or_path"}
    about = asdict(recipe) | {
        "path": "",
        "config": config,
        "class": type(model).__qualname__,
        "versions": [torch.__version__, transformers.__version__, platform.python_version()],
        "machine": [platform.machine(), platform.system(), _processor()],
        "compiler": os.environ.get("CXX", ""),
    }
    digest = hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode())
    ours = [source for package in _PACKAGES for source in (Path(__file__).parents[1] / package).glob("*.*")]
    for source in [sys.modules[type(model).__module__].__file__, *sorted(ours)]:
        digest.update(Path(str(source)).read_bytes())
    return digest.hexdigest()[:32]


def _processor() -> str:
    """Its instructions: programs are for this processor."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text("utf-8").split("\n\n")[0].splitlines()
        return "\n".join(line for line in lines if line.startswith(("flags", "Features", "model name")))
    return platform.processor()
