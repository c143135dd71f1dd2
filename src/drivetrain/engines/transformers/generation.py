"""One request on the engine's thread: inputs in, `model.generate()` once, steps out while it runs."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Any

import torch

from drivetrain.core.engine import EngineRequest, IdLogprobs, Media, PromptStep, TokenStep
from drivetrain.core.errors import InvalidRequest, Unsupported
from drivetrain.core.results import FinishReason
from drivetrain.engines.base.error_text import one_line
from drivetrain.engines.base.generation import Emit
from drivetrain.engines.base.room import room, room_after
from drivetrain.engines.checkpoint.kinds import ModelKind
from drivetrain.engines.sample.sampler import Sampled, logprobs_of
from drivetrain.engines.transformers.loading import TransformersModel
from drivetrain.engines.transformers.sampler import RowSampler

PROMPT_ROWS = 256
"""Positions of a prompt whose logprobs are taken at once."""

IMAGE_INPUTS = frozenset({"pixel_values", "image_grid_thw", "image_sizes", "pixel_attention_mask"})


class TransformersGeneration:
    """`run` is called on the engine's thread, `abort` and `finish` from anywhere. `count_step` is told how much of the
    processor's time the masks of the step took.

    `generate()` calls the sampler and then the stopping criterion once a step; both are ours. The criterion is
    where steps leave and where an abort, an ended choice or a limit is noticed: at most one step late.
    """

    def __init__(
        self, request: EngineRequest, loaded: TransformersModel, emit: Emit, count_step: Callable[[float], None]
    ) -> None:
        self.request = request
        self._loaded = loaded
        self._emit = emit
        self._count_step = count_step
        self._aborted = threading.Event()
        self._ended = set[int]()
        self._sampled = 0
        self._limit = 0
        self._sampler: RowSampler | None = None

    def abort(self) -> None:
        self._aborted.set()

    def finish(self, index: int) -> None:
        self._ended.add(index)

    def run(self) -> None:
        if self._aborted.is_set():
            return
        inputs = self._inputs()
        if self.request.prompt_logprobs is not None:
            self._emit(PromptStep(logprobs=self._prompt_logprobs(inputs)))
        if self._limit <= 0 or self._aborted.is_set():
            self._end_all()
            return
        self._generate(inputs)

    def _inputs(self) -> dict[str, Any]:
        request, device = self.request, self._loaded.model.device
        if request.media is not None:
            if request.sampling.guidance_scale != 1.0:
                raise Unsupported("guidance_scale does not go with images", param="guidance_scale")
            inputs = media_inputs(self._loaded, request.media)
            prompt_ids = tuple(int(i) for i in inputs["input_ids"][0])
            self._limit = room_after(len(prompt_ids), request)
            self._emit(PromptStep(prompt_ids))
            return inputs
        encoded = self._loaded.kind is ModelKind.SEQ2SEQ  # then the prompt takes no room from the answer
        self._limit = room(request, 0 if encoded else None)
        ids = torch.tensor([request.prompt_ids], device=device)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    def _generate(self, inputs: dict[str, Any]) -> None:
        from transformers import GenerationConfig

        loaded, n = self._loaded, len(self.request.seeds)
        prompt_ids = tuple(inputs["input_ids"][0].tolist())
        self._sampler = RowSampler(self.request, loaded.model, loaded.structure, prompt_ids, self._ended)
        loaded.model.generate(
            **inputs,
            generation_config=GenerationConfig(
                max_new_tokens=self._limit, num_return_sequences=n, num_beams=1, use_cache=True, **_drawing(n)
            ),
            logits_processor=[self._sampler],
            stopping_criteria=_criteria(self._after_step),
        )

    def _after_step(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        """The stopping criterion: send out each row's newest id, then name the rows that are done."""
        assert self._sampler is not None
        self._count_step(self._sampler.mask_s)
        self._sampled += 1
        if not self._aborted.is_set():
            for index, sampled in self._sampler.sampled.items():
                if index not in self._ended:
                    self._step(index, sampled)
        rows = range(input_ids.shape[0])
        done = [self._aborted.is_set() or index in self._ended for index in rows]
        return torch.tensor(done, device=input_ids.device)

    def _step(self, index: int, sampled: Sampled) -> None:
        reason = None
        if sampled.token_id in self.request.stop_ids:
            reason = FinishReason.STOP
        elif self._sampled >= self._limit:
            reason = FinishReason.LENGTH
        if reason is not None:
            self._ended.add(index)
        logprobs = None if sampled.logprobs is None else (sampled.logprobs,)
        self._emit(TokenStep(index, (sampled.token_id,), logprobs, reason))

    def _end_all(self) -> None:
        for index in range(len(self.request.seeds)):
            self._emit(TokenStep(index, (), None, FinishReason.LENGTH))

    def _prompt_logprobs(self, inputs: dict[str, Any]) -> tuple[IdLogprobs, ...]:
        assert self.request.prompt_logprobs is not None
        with torch.no_grad():
            logits = self._loaded.model(**inputs).logits[0, :-1]
        logprobs, ids = [IdLogprobs(None)], self.request.prompt_ids[1:]
        for start in range(0, len(ids), PROMPT_ROWS):  # so that no second copy of all logits is made
            rows = slice(start, start + PROMPT_ROWS)
            logprobs += logprobs_of(logits[rows], ids[rows], self.request.prompt_logprobs)
        return tuple(logprobs)


def _drawing(n: int) -> dict[str, Any]:
    """The sampler leaves one id to draw, so greedy search would do, but it refuses several rows."""
    return {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0} if n > 1 else {"do_sample": False}


def media_inputs(loaded: TransformersModel, media: Media) -> dict[str, Any]:
    """Everything the model's own processor makes of text and images, on the model's device and in its dtype."""
    text = media.prompt.text
    bos = loaded.tokenizer.bos_token
    try:
        made = loaded.processor(
            text=[text],
            images=list(media.images),
            return_tensors="pt",
            add_special_tokens=not (bos and text.startswith(bos)),
        )
    except (ValueError, IndexError, TypeError, KeyError) as exc:
        raise InvalidRequest(
            "the model's processor cannot fit these images to this prompt, which needs a place for each"
            f" ({one_line(exc)})",
            param="images",
        ) from exc
    inputs = dict(made.to(loaded.model.device, dtype=loaded.model.dtype))
    return _accepted(loaded.model, inputs)


def _accepted(model: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    """Drop bookkeeping that the model does not take, but never an input that carries the images."""
    parameters = inspect.signature(model.forward).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()) and "pixel_values" in parameters:
        return {k: v for k, v in inputs.items() if k in parameters or k != "token_type_ids"}
    if not IMAGE_INPUTS & set(inputs) & set(parameters):
        raise Unsupported("this model's forward pass takes no images", param="images")
    return {name: value for name, value in inputs.items() if name in parameters}


def _criteria(criterion: Callable[..., Any]) -> Any:
    from transformers import StoppingCriteriaList

    return StoppingCriteriaList([criterion])
