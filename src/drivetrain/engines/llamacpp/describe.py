"""What a GGUF file tells before its weights are loaded; only splitting text needs llama.cpp, with no weight read."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from importlib.util import find_spec

from drivetrain.core.engine import Description, ModelSpec, Progress
from drivetrain.core.errors import MissingExtra
from drivetrain.core.extras import install_command
from drivetrain.engines.llamacpp import errors
from drivetrain.engines.llamacpp.child.process import ServerProcess
from drivetrain.engines.llamacpp.loading import GgufModel, open_model
from drivetrain.engines.llamacpp.options import architecture, stated_sampling
from drivetrain.engines.llamacpp.tokenizer import ServerSplit


def of_file(spec: ModelSpec, progress: Progress) -> Description:
    """Raises what loading would raise for the same file and settings, as far as they tell."""
    progress("reading the model's metadata", None)
    model = open_model(spec)
    installed = find_spec("xllamacpp") is not None
    return Description(
        tokenizer=model.tokenizer(_SplitOnDemand(model, installed)),
        architecture=architecture(model.metadata),
        capabilities=model.capabilities,
        context_length=model.options.context_length,
        eos_ids=model.vocabulary.eos_ids,
        default_sampling=stated_sampling(model.metadata),
        missing=() if installed else (f"token ids need llama.cpp: {install_command('llamacpp')}",),
    )


class _SplitOnDemand:
    """Starts its process when it is first called. The process ends with this object, or with ours."""

    def __init__(self, model: GgufModel, installed: bool) -> None:
        self._model = model
        self._installed = installed
        self._split: ServerSplit | None = None

    def __call__(self, content: str | Sequence[str | int], *, specials: bool, add_special: bool = False) -> list[int]:
        if not self._installed:
            raise MissingExtra("the tokenizer", extra="llamacpp")
        if self._split is None:
            self._split = self._start()
        return self._split(content, specials=specials, add_special=add_special)

    def _start(self) -> ServerSplit:
        process = ServerProcess(self._model.splitting_launch)
        weakref.finalize(self, process.stop)
        try:
            process.start()
        except Exception as exc:
            raise errors.while_loading(exc) from exc
        return ServerSplit(process.host, process.port, process.key)
