"""The running vLLM: started, watched, and shut down."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import logging
import os
import signal
import warnings
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from typing import Any, Protocol

from drivetrain.core.errors import EngineFailed
from drivetrain.engines.vllm import errors
from drivetrain.engines.vllm.gauges import Gauges, listener
from drivetrain.engines.vllm.guard import ProcessGuard
from drivetrain.engines.vllm.image_places import refuse_empty_places
from drivetrain.engines.vllm.options import refuse_unknown
from drivetrain.engines.vllm.sampling import built
from drivetrain.engines.vllm.threads import usable_cores_only

WATCH_S = 0.2
FIRST_ANSWER_S = 300.0
SHUTDOWN_S = 5.0
"""For which vLLM may take to end its processes; then they are killed, as one that is stopped or hangs must be."""

_ENVIRONMENT = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # stdout belongs to the application
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # a fork would hold our clients' sockets open
    "VLLM_NO_USAGE_STATS": "1",
}
"""Set before vLLM is imported, unless the caller has set them."""

_log = logging.getLogger(__name__)


class Running(Protocol):
    """What the engine needs of vLLM. `on_death` is called on the event loop, once for each death."""

    on_death: Callable[[], None]
    seen: Gauges

    @property
    def alive(self) -> bool: ...

    async def start(self) -> VllmModel: ...

    async def widen(self, prompt: tuple[int, ...], images: tuple[Any, ...], cache_salt: str | None) -> Widened:
        """A prompt with one place for each image, made ready. What vLLM raises of unfit ones comes as it is."""
        ...

    def outputs(
        self, prompt: tuple[int, ...] | Widened, cache_salt: str | None, parameters: Mapping[str, Any], request_id: str
    ) -> AsyncGenerator[Any, None]:
        """vLLM's own outputs. Closing it early aborts the request."""
        ...

    async def let_go(self, request_ids: Iterable[str]) -> None:
        """Abort these requests and return once vLLM holds nothing of them."""
        ...

    async def close(self) -> None: ...


@dataclasses.dataclass(frozen=True, slots=True)
class Widened:
    """A prompt in which each image has all its tokens: the ids, and vLLM's own form of it with the images."""

    token_ids: tuple[int, ...]
    given: Any


@dataclasses.dataclass(frozen=True, slots=True)
class VllmModel:
    """What vLLM says of the model and of itself. `parameters` are the sampling parameters that it has."""

    context_length: int
    vocab_size: int
    device: str
    dtype: str
    parameters: frozenset[str]
    version: str
    images: bool = False


class Core:
    """All methods run on one event loop; starting and stopping block, so they happen on a thread of their own."""

    def __init__(self, path: str, arguments: Mapping[str, Any]) -> None:
        self.on_death: Callable[[], None] = lambda: None
        self.seen = Gauges()
        self._path = path
        self._arguments = arguments
        self._llm: Any = None
        self._dead = asyncio.Event()
        self._watcher: asyncio.Task[None] | None = None
        self._starting: asyncio.Future[None] | None = None
        self._made: list[Any] = []
        self._guard: ProcessGuard | None = None
        self._closed = False

    @property
    def alive(self) -> bool:
        return not self._closed and self._llm is not None and not self._llm.errored

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes of vLLM's engine."""
        manager = self._llm.engine_core.resources.engine_manager if self._llm is not None else None
        return tuple(process.pid for process in manager.processes) if manager is not None else ()

    async def start(self) -> VllmModel:
        self._starting = asyncio.ensure_future(
            asyncio.to_thread(_make, self._path, self._arguments, self.seen, self._made)
        )
        await asyncio.shield(self._starting)
        self._llm, self._starting = self._made.pop(), None
        self._guard = ProcessGuard(self.pids)
        async with asyncio.timeout(FIRST_ANSWER_S):  # one that dies now never answers
            await self._llm.get_supported_tasks()  # or the first request asks, and may be cancelled in the middle
        self._watcher = asyncio.create_task(self._watch(), name="vllm-watch")
        return _loaded(self._llm)

    async def widen(self, prompt: tuple[int, ...], images: tuple[Any, ...], cache_salt: str | None) -> Widened:
        """What is kept of an image, in the cache of prompts and in that of images, is named by its hash: salted too."""
        if not self.alive:
            raise EngineFailed(errors.DEAD)
        asked = {"prompt_token_ids": list(prompt), "multi_modal_data": {"image": list(images)}}
        (given,) = await self._llm.renderer.render_cmpl_async([asked])
        if cache_salt is not None:
            salted = {kind: [f"{cache_salt} {name}" for name in names] for kind, names in given["mm_hashes"].items()}
            given = {**given, "mm_hashes": salted, "cache_salt": cache_salt}
        ids = tuple(given["prompt_token_ids"])
        refuse_empty_places(ids, [place for found in given["mm_placeholders"].values() for place in found])
        return Widened(ids, given)

    def outputs(
        self, prompt: tuple[int, ...] | Widened, cache_salt: str | None, parameters: Mapping[str, Any], request_id: str
    ) -> AsyncGenerator[Any, None]:
        from vllm import SamplingParams
        from vllm.inputs import tokens_input
        from vllm.sampling_params import RequestOutputKind

        if not self.alive:
            raise EngineFailed(errors.DEAD)
        params = built(parameters, SamplingParams, RequestOutputKind.DELTA, _structured())
        given = prompt.given if isinstance(prompt, Widened) else tokens_input(list(prompt), cache_salt=cache_salt)
        outputs: AsyncGenerator[Any, None] = self._llm.generate(given, params, request_id)
        return outputs

    async def let_go(self, request_ids: Iterable[str]) -> None:
        """An abort has no answer. What is asked after it has, and vLLM takes its messages in order."""
        llm, dead = self._llm, self._dead
        if not self.alive:
            return
        asked = asyncio.ensure_future(_aborted(llm, list(request_ids)))
        died = asyncio.ensure_future(dead.wait())
        try:
            await asyncio.wait({asked, died}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            died.cancel()
            asked.cancel()
            await asyncio.gather(asked, died, return_exceptions=True)

    async def close(self) -> None:
        """Also while it starts: what has begun to start is let come up, and stopped then."""
        self._closed = True
        self._dead.set()
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
        if self._starting is not None:
            with contextlib.suppress(Exception):
                await self._starting
                self._llm = self._made.pop()
        await self._end()

    async def _end(self) -> None:
        """vLLM lies in cycles that hold sockets, and what is left of it when the interpreter ends fails aloud."""
        if self._llm is None:
            return
        pids, shutting = self.pids, asyncio.ensure_future(asyncio.to_thread(self._llm.shutdown))
        if not (await asyncio.wait({shutting}, timeout=SHUTDOWN_S))[0]:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        await shutting
        self._llm = None
        guard, self._guard = self._guard, None
        if guard is not None:
            await asyncio.to_thread(guard.dismiss)
        await asyncio.sleep(0)  # its sockets are closed on the loop
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gc.collect()

    async def _watch(self) -> None:
        while self.alive:  # noqa: ASYNC110 - vLLM tells nobody that it has died
            await asyncio.sleep(WATCH_S)
        self._dead.set()
        self.on_death()
        _log.error("vLLM's engine process has ended")


def _make(path: str, arguments: Mapping[str, Any], seen: Gauges, made: list[Any]) -> None:
    """Into a list, not as a result: vLLM keeps frames of its callers, and a future there would keep vLLM."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import vllm
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.platforms import current_platform
        from vllm.v1.engine.async_llm import AsyncLLM

        known = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
        given = refuse_unknown(arguments, known, vllm.__version__)
        args = AsyncEngineArgs(model=path, **given)
        with (
            usable_cores_only(os.environ, args.tensor_parallel_size)
            if current_platform.is_cpu()
            else contextlib.nullcontext()
        ):
            made.append(AsyncLLM.from_engine_args(args, stat_loggers=[listener(seen)]))


def _loaded(llm: Any) -> VllmModel:
    import vllm

    config = llm.vllm_config.model_config
    return VllmModel(
        context_length=int(config.max_model_len),
        vocab_size=int(config.get_vocab_size()),
        device=str(llm.vllm_config.device_config.device_type),
        dtype=str(config.dtype).removeprefix("torch."),
        parameters=present_parameters(),
        version=vllm.__version__,
        images=_sees_images(llm),
    )


def _sees_images(llm: Any) -> bool:
    processor = llm.renderer.mm_processor
    return processor is not None and processor.info.allowed_mm_limits.get("image", 0) > 0


def present_parameters() -> frozenset[str]:
    """The sampling parameters of the installed vLLM, and `cache_salt` if its prompts have one."""
    import inspect

    from vllm import SamplingParams
    from vllm.inputs import tokens_input

    return frozenset(SamplingParams.__struct_fields__) | (
        {"cache_salt"} & inspect.signature(tokens_input).parameters.keys()
    )


def _structured() -> Any:
    """vLLM's class for grammars; an older one has none, and `constraint` is not declared there."""
    from vllm import sampling_params

    return getattr(sampling_params, "StructuredOutputsParams", None)


async def _aborted(llm: Any, request_ids: list[str]) -> None:
    await llm.abort(request_ids)
    await llm.engine_core.is_sleeping_async()
