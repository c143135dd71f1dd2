"""A dry run: everything that can be known about a model before its weights are loaded."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from drivetrain import assembly
from drivetrain.cli.inspect import config_files
from drivetrain.core.capabilities import Capabilities
from drivetrain.core.engine import Description, Engine, ModelSpec, Progress, WeightsFormat
from drivetrain.core.errors import InvalidRequest, MissingExtra, UnfitEngine, Unsupported
from drivetrain.core.kinds import MAX_INT
from drivetrain.core.messages import Message, TextPart
from drivetrain.core.prompt import Prompt
from drivetrain.core.sampling import Sampling
from drivetrain.engines.checkpoint import quantized
from drivetrain.engines.checkpoint.quantized import Quantization
from drivetrain.engines.remote.tokenizer import NEUTRAL_TEMPLATE
from drivetrain.families.registry import FamilyChoice, choose
from drivetrain.families.registry import names as family_names
from drivetrain.safetensors_header import stored_types
from drivetrain.store.models import LocalModel
from drivetrain.store.store import Store
from drivetrain.text.answers.detect import FormChoice, form_of
from drivetrain.text.infill import infill_of
from drivetrain.worker.chats import form_with_tools
from drivetrain.worker.model import declared
from drivetrain.worker.settings import Settings
from drivetrain.worker.settle import Defaults

SAMPLE = (
    Message("user", (TextPart("Hello"),)),
    Message("assistant", (TextPart("Hello. How can I help?"),)),
    Message("user", (TextPart("What is the capital of France?"),)),
)
FALLBACK = "plain"
UNREAD = "the file's own template, which comes first, could not be read"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """A prompt as the engine gets it. In a literal segment, text that spells a special token stays text."""

    text: str
    segments: tuple[Mapping[str, Any], ...]
    token_ids: tuple[int, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """`missing` says what could not be found out, and what to do about it. None: not known before loading."""

    model: str
    name: str
    format: str
    source: str
    digest: str | None
    engine: str
    engine_why: str
    engine_ready: bool
    install: str | None
    stored_types: tuple[str, ...]
    """Of the tensors in a folder, in safetensors' own names."""
    quantization: Quantization | None
    """What the folder's configuration says, which `stored_types` may contradict."""
    architecture: str
    family: str
    family_why: str
    family_is_fallback: bool
    answer_form: str
    answer_form_why: str
    tool_form: str
    """That of the answers to a chat with tools."""
    tool_form_why: str
    roles: Mapping[str, str]
    stop: tuple[str, ...]
    stop_tokens: Mapping[int, str]
    context_length: int | None
    max_tokens: int | None
    sampling: Mapping[str, Mapping[str, Any]]
    capabilities: Capabilities | None
    prompt: Rendered | None
    missing: tuple[str, ...]


def inspect_model(model: str, settings: Settings, *, given: Mapping[str, Any], progress: Progress) -> Inspection:
    """`given` has the messages or the prompt to render; by default, a sample chat. Nothing is downloaded or converted.

    Raises what opening the model would raise, as far as its files show it.
    """
    assembly.check_engine(settings)
    if assembly.is_remote(model, settings):
        return _inspect_remote(model, settings, given, progress)
    store = Store()
    found = None if assembly.is_fake(model, settings) else store.resolve(model)
    spec = assembly.spec_of(found, settings, store)
    choice, described = _first_fit(assembly.choose_engine(settings, found), spec, settings, progress)
    chosen = choose(
        explicit=settings.family, tokenizer=described.tokenizer, architecture=described.architecture, name=spec.name
    )
    return _put_together(model, spec, found, choice, described, chosen, settings, given)


def _inspect_remote(model: str, settings: Settings, given: Mapping[str, Any], progress: Progress) -> Inspection:
    """The upstream is asked about the model, but gets no request."""
    spec = assembly.remote_spec(model, settings)
    choice, described = _first_fit(assembly.EngineChoice.remote(), spec, settings, progress)
    chosen = choose(explicit=None, tokenizer=described.tokenizer, architecture=described.architecture, name=spec.name)
    found = _put_together(model, spec, None, choice, described, chosen, settings, given)
    return found if described.tokenizer.chat_template != NEUTRAL_TEMPLATE else _as_they_render(found, described)


def _as_they_render(found: Inspection, described: Description) -> Inspection:
    """Without a template, only the token ids can show how the upstream renders a chat."""
    prompt = None
    if found.prompt is not None and found.prompt.token_ids is not None:
        text = described.tokenizer.decode(found.prompt.token_ids, skip_special=False)
        prompt = replace(found.prompt, text=text, segments=({"text": text, "literal": False},))
    why = "the upstream renders chats itself"
    told = "the upstream's template is not known, so tools are described in plain turns"
    return replace(found, family_why=why, answer_form_why=why, tool_form_why=told, prompt=prompt)


def _first_fit(
    choice: assembly.EngineChoice, spec: ModelSpec, settings: Settings, progress: Progress
) -> tuple[assembly.EngineChoice, Description]:
    """The first engine that the model's files do not rule out, and its description of the model."""
    while True:
        assembly.refuse_unused(settings, choice.kind)
        try:
            return choice, _describe(choice.kind, spec, settings, progress)
        except UnfitEngine as exc:
            if len(choice.kinds) == 1:
                raise
            choice = choice.without_first(exc.why, settings)


def _describe(kind: assembly.EngineKind, spec: ModelSpec, settings: Settings, progress: Progress) -> Description:
    ways = kind.enter()
    if ways.describe is None:
        return asyncio.run(_load_weightless(ways.make(), spec, progress))
    if kind.installed or ways.stated_capabilities is None:
        return ways.describe(spec, progress)
    folder = _folder(spec)
    if folder is None:
        return config_files.nothing_stated(kind)
    return config_files.by_files(folder, kind, ways.stated_capabilities, settings.engine_options)


async def _load_weightless(engine: Engine, spec: ModelSpec, progress: Progress) -> Description:
    """An engine without weights is simply loaded: that costs nothing and shows everything."""
    try:
        info = await engine.load(spec, progress)
        length = info.capabilities.context_length
        return Description(
            tokenizer=info.tokenizer,
            architecture=info.architecture,
            capabilities=info.capabilities,
            context_length=None if length == MAX_INT else length,
            eos_ids=info.eos_ids,
            default_sampling=info.default_sampling,
            missing=info.notes,
        )
    finally:
        await engine.close()


def _folder(spec: ModelSpec) -> Path | None:
    """Where the configuration is JSON: beside the weights, or in what was once made of a GGUF file."""
    if spec.format is WeightsFormat.SAFETENSORS:
        return spec.path
    return spec.derived.find("safetensors") if spec.derived is not None else None


def _put_together(
    model: str,
    spec: ModelSpec,
    found: LocalModel | None,
    choice: assembly.EngineChoice,
    described: Description,
    chosen: FamilyChoice,
    settings: Settings,
    given: Mapping[str, Any],
) -> Inspection:
    folder = spec.path if spec.format is WeightsFormat.SAFETENSORS else None
    known, defaults = described.capabilities, _defaults(described, found, chosen, settings)
    ready = choice.kind.installed
    prompt, why_not = _rendered(described, chosen, given)
    form = _form(described)
    with_tools = _form_with_tools(chosen, form, described, settings)
    return Inspection(
        model=model,
        name=spec.name,
        format=found.format.value if found else WeightsFormat.NONE.value,
        source=found.source if found else "an upstream" if choice.kind.name == "remote" else "built in",
        digest=found.digest if found else None,
        engine=choice.kind.name,
        engine_why=choice.why,
        engine_ready=ready,
        install=None if ready else choice.kind.install,
        stored_types=() if folder is None else tuple(sorted(stored_types(folder))),
        quantization=None if folder is None else quantized.of_folder(folder),
        architecture=described.architecture,
        family=chosen.family.name,
        family_why=_family_why(chosen, described, settings),
        family_is_fallback=_is_fallback(chosen, settings),
        answer_form=form.name,
        answer_form_why=form.why,
        tool_form=with_tools.name,
        tool_form_why=with_tools.why,
        roles={role: chosen.family.roles.name_of(role) for role in ("system", "user", "assistant")},
        stop=chosen.family.stop,
        stop_tokens=_stop_tokens(described, chosen),
        context_length=described.context_length,
        max_tokens=defaults.max_tokens(),
        sampling={key: {"value": value, "origin": origin} for key, (origin, value) in defaults.origins.items()},
        capabilities=known
        if known is None
        else declared(known, chosen.family, infill_of(described.tokenizer, spec.name, spec.path.name), settings),
        prompt=prompt,
        missing=(*described.missing, *why_not),
    )


def _form(described: Description) -> FormChoice:
    form = form_of(described.tokenizer)
    return replace(form, why=UNREAD) if described.capabilities is None else form


def _form_with_tools(chosen: FamilyChoice, own: FormChoice, described: Description, settings: Settings) -> FormChoice:
    form = form_with_tools(chosen.family, own)
    return replace(form, why=UNREAD) if described.capabilities is None and settings.family is None else form


def _is_fallback(chosen: FamilyChoice, settings: Settings) -> bool:
    return chosen.family.name == FALLBACK and settings.family is None


def _family_why(chosen: FamilyChoice, described: Description, settings: Settings) -> str:
    if _is_fallback(chosen, settings):
        return f"{chosen.why}; if that is wrong, set family to one of {', '.join(family_names())}"
    if described.capabilities is None and settings.family is None:
        return f"{chosen.why}; {UNREAD}"
    return chosen.why


def _defaults(described: Description, found: LocalModel | None, chosen: FamilyChoice, settings: Settings) -> Defaults:
    """Those of `Worker`, with every parameter if the engine's are not known."""
    every = frozenset(field.name for field in fields(Sampling))
    return Defaults(
        settings=settings.sampling,
        weights=described.default_sampling,
        catalogue=found.sampling if found else {},
        family=chosen.family,
        honoured=described.capabilities.parameters if described.capabilities else every,
    )


def _stop_tokens(described: Description, chosen: FamilyChoice) -> dict[int, str]:
    """Every id that ends an answer, with its spelling."""
    ends = {i for token in chosen.end_of_turn if (i := described.tokenizer.id_of(token)) is not None}
    return {i: described.tokenizer.token_text(i) for i in sorted(described.eos_ids | ends)}


def _rendered(
    described: Description, chosen: FamilyChoice, given: Mapping[str, Any]
) -> tuple[Rendered | None, tuple[str, ...]]:
    if described.capabilities is not None and not described.capabilities.generation:
        gives = "embeddings" if described.capabilities.embeddings else "scores"
        return None, (f"this model gives {gives}: it has no prompt",)
    prompt = _prompt(chosen, given)
    try:
        ids = tuple(described.tokenizer.encode(prompt))
    except (MissingExtra, Unsupported):
        ids = None
    segments = tuple({"text": segment.text, "literal": segment.literal} for segment in prompt.segments)
    return Rendered(text=prompt.text, segments=segments, token_ids=ids), ()


def _prompt(chosen: FamilyChoice, given: Mapping[str, Any]) -> Prompt:
    if "prompt" in given:
        return Prompt.raw(given["prompt"])
    messages: Sequence[Message] | None = given.get("messages")
    if messages is not None:
        return _chat(chosen, messages)
    try:
        return _chat(chosen, SAMPLE)
    except InvalidRequest:  # the form may only know questions
        return _chat(chosen, SAMPLE[-1:])


def _chat(chosen: FamilyChoice, messages: Sequence[Message]) -> Prompt:
    return replace(chosen.family.render(messages), messages=tuple(messages))
