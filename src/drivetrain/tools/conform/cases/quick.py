"""The cases of `conform --quick`: of each area one or a few that cost little and find the most.

Long answers, large bodies, waiting, and most of the refusals, which are alike, are left to the whole run.
"""

from __future__ import annotations

from collections.abc import Sequence

from drivetrain.tools.conform.case import Area, Case

_CHEAP = (
    "models.list", "models.retrieve_unknown",
    "chat.unknown_model", "chat.messages_empty",
    "stops.refuse_empty",
    "parameters.unknown",
    "refusals.temperature_above_2", "refusals.max_tokens_string", "refusals.top_k_negative",
    "refusals.messages_missing",
    "errors.shape", "errors.status", "errors.param", "errors.no_leak", "errors.body_broken", "errors.over_context",
    "errors.unknown_path",
    "structured.bad_schema",
    "tools.refuse_unknown",
    "responses.refuse_no_input",
    "messages.error",
    "embeddings.shape", "embeddings.refuse_input_missing",
    "rerank.shape", "rerank.refuse_documents_missing",
    "tokens.ids", "tokens.back",
    "images.png", "images.corrupt",
    "auth.missing", "auth.wrong", "auth.right",
    "robustness.zero_bytes", "robustness.surrogate", "robustness.null_everywhere",
)  # fmt: skip

_OF_ANSWERS = (
    "chat.shape", "completions.shape", "responses.shape", "messages.shape",
    "streaming.shape", "streaming.done", "streaming.usage",
    "logprobs.shape", "usage.adds_up", "ids.unique", "receipts.shape", "reasoning.apart",
    "chat.length", "parameters.logit_bias_forces", "logprobs.streamed", "usage.streamed",
    "structured.schema_flat", "structured.json_schema", "tools.required", "tools.shape", "tools.streamed",
    "responses.streamed_text", "messages.streamed_text",
    "stops.string", "completions.list", "streaming.text", "parameters.seed_repeats", "cancel.streamed",
)  # fmt: skip

QUICK = (*_CHEAP, *_OF_ANSWERS)


def quick_of(cases: Sequence[Case]) -> list[Case]:
    """The quick ones of these, cheap ones first, so that a slow server is asked about most areas before time is over.

    An area of which none is listed here has its first case.
    """
    listed = {name.partition(".")[0] for name in QUICK}
    found = {case.id: case for case in cases if case.id in QUICK}
    others = [next((case for case in cases if case.area is area), None) for area in Area if area not in listed]
    return [*(found[name] for name in QUICK if name in found), *(case for case in others if case is not None)]
