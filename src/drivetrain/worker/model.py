"""A model that an engine has loaded: what its requests need, and what a worker says about it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from drivetrain.core.capabilities import Capabilities, RerankWay
from drivetrain.core.engine import EngineInfo, ModelSpec
from drivetrain.core.request import Overflow
from drivetrain.core.stats import Stats
from drivetrain.core.status import Metadata
from drivetrain.core.tokenizer import Tokenizer
from drivetrain.families.base import Family
from drivetrain.families.judging import Question, question_for
from drivetrain.families.registry import FamilyChoice, TemplateFamily, choose
from drivetrain.text.answers.detect import FormChoice, form_of
from drivetrain.text.infill import Infill, infill_of
from drivetrain.worker.chats import Chats, form_with_tools
from drivetrain.worker.media.loader import MediaLoader
from drivetrain.worker.prepare import Preparer
from drivetrain.worker.rankers import Ranker, ranker_for
from drivetrain.worker.receipts import ReceiptMaker, receipt_key
from drivetrain.worker.settings import Settings
from drivetrain.worker.settle import Defaults
from drivetrain.worker.text_threads import TextThreads
from drivetrain.worker.tokenizing import Tokenizing


def concurrency(engine: Capabilities, settings: Settings) -> int:
    """How many requests an engine that can do this may run at once."""
    most = engine.max_concurrency
    return max(1, most if settings.max_running is None else min(settings.max_running, most))


def declared(engine: Capabilities, family: Family, infill: Infill | None, settings: Settings) -> Capabilities:
    """What engine, prompt form and vocabulary can do, within what the settings allow."""
    parameters = engine.parameters - {"max_reasoning_tokens"}
    if "constraint" in parameters:  # it is closed by a grammar
        parameters |= {"max_reasoning_tokens"}
    if infill is not None and engine.generation and engine.tokens:
        parameters |= {"suffix"}
    return replace(
        engine,
        parameters=parameters,
        template_variables=family.variables,
        rerank=_rerank_way(engine),
        max_concurrency=concurrency(engine, settings),
        limits=settings.limits,
    )


def _rerank_way(engine: Capabilities) -> RerankWay | None:
    """Whoever can be held to two words, and says how likely each was, can be asked."""
    if engine.rerank is not None:
        return engine.rerank
    can_be_asked = engine.generation and engine.tokens and {"logit_bias", "logprobs"} <= engine.parameters
    return RerankWay.LOGITS if can_be_asked else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """Belongs to one engine: a new engine gets a new one."""

    info: EngineInfo
    capabilities: Capabilities
    metadata: Metadata
    preparer: Preparer
    tokenizing: Tokenizing
    receipts: ReceiptMaker
    ranker: Ranker | None

    @classmethod
    def of(
        cls,
        spec: ModelSpec,
        info: EngineInfo,
        settings: Settings,
        *,
        threads: TextThreads,
        media: MediaLoader,
        stats: Stats,
    ) -> Self:
        name = spec.name
        chosen = _choose(name, info, settings)
        infill = infill_of(info.tokenizer, name, spec.path.name)
        capabilities = declared(info.capabilities, chosen.family, infill, settings)
        form = form_of(info.tokenizer)
        ranker = ranker_for(capabilities.rerank, info, _question(spec, info, settings))
        eos_ids = info.eos_ids | _end_ids(chosen, info.tokenizer)
        defaults = Defaults(
            settings=settings.sampling,
            weights=info.default_sampling,
            catalogue=spec.catalogue_sampling,
            family=chosen.family,
            honoured=capabilities.parameters,
        )
        metadata = replace(
            _describe(name, info, chosen, form, eos_ids, defaults),
            rerank_form=ranker.form if ranker is not None else None,
            infill_tokens=infill.tokens if infill is not None else {},
        )
        return cls(
            info=info,
            capabilities=capabilities,
            metadata=metadata,
            preparer=Preparer(
                info=info,
                capabilities=capabilities,
                family=chosen.family,
                form=form,
                infill=infill,
                eos_ids=eos_ids,
                defaults=defaults,
                overflow=Overflow(settings.overflow),
                media=media,
                threads=threads,
                stats=stats,
            ),
            tokenizing=Tokenizing(
                info=info,
                capabilities=capabilities,
                chats=Chats(_choose(name, info, settings).family, form, info.tokenizer, enforces=False),
                infill=infill,
                threads=threads,
                timeout_s=settings.default_timeout_s,
            ),
            receipts=ReceiptMaker(
                spec=spec,
                metadata=metadata,
                template=info.tokenizer.chat_template if isinstance(chosen.family, TemplateFamily) else None,
                defaults=defaults,
                capabilities=capabilities,
                overflow=Overflow(settings.overflow),
                key=receipt_key(settings.receipt_key_file),
            ),
            ranker=ranker,
        )


def _end_ids(chosen: FamilyChoice, tokenizer: Tokenizer) -> frozenset[int]:
    return frozenset(i for token in chosen.end_of_turn if (i := tokenizer.id_of(token)) is not None)


def _choose(name: str, info: EngineInfo, settings: Settings) -> FamilyChoice:
    """A new one for each use: a template renders one chat at a time, and answers must not wait for other uses."""
    return choose(explicit=settings.family, tokenizer=info.tokenizer, architecture=info.architecture, name=name)


def _question(spec: ModelSpec, info: EngineInfo, settings: Settings) -> Question:
    family = _choose(spec.name, info, settings).family
    return question_for(family, architecture=info.architecture, names=(spec.name, spec.path.name))


def _describe(
    name: str, info: EngineInfo, chosen: FamilyChoice, form: FormChoice, eos_ids: frozenset[int], defaults: Defaults
) -> Metadata:
    roles, with_tools = chosen.family.roles, form_with_tools(chosen.family, form)
    return Metadata(
        name=name,
        engine=info.engine,
        architecture=info.architecture,
        device=info.device,
        dtype=info.dtype,
        context_length=info.capabilities.context_length,
        vocab_size=info.vocab_size,
        family=chosen.family.name,
        family_why=chosen.why,
        answer_form=form.name,
        answer_form_why=form.why,
        reasons=form.reasons,
        tool_form=with_tools.name,
        tool_form_why=with_tools.why,
        roles={"system": roles.system, "user": roles.user, "assistant": roles.assistant},
        separator=chosen.family.separator,
        stop=chosen.family.stop,
        eos_ids=tuple(sorted(eos_ids)),
        chat_template=info.tokenizer.chat_template,
        named_tokens={
            "bos_token": info.tokenizer.bos_token,
            "eos_token": info.tokenizer.eos_token,
            "pad_token": info.tokenizer.pad_token,
        },
        embedding_size=info.embedding_size,
        pooling=info.pooling,
        sampling=defaults.origins,
        notes=info.notes,
        versions=dict(info.versions),
    )
