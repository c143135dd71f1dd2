"""Finds the form that a caller means, ready to read with. Forms are kept, so that an answer costs no compiling."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from drivetrain.core.errors import InvalidRequest
from drivetrain.core.tokenizer import Tokenizer
from drivetrain.text.answers.binding import BoundForm, special_tokens
from drivetrain.text.answers.forms import Form
from drivetrain.text.answers.response_template import ResponseTemplate
from drivetrain.text.answers.symbols import Symbols
from drivetrain.text.answers.table import FORMS

AnswerForm = str | Mapping[str, Any]
"""A name, or a `response_template`."""

KEPT_FORMS = 64


def look_up(form: AnswerForm, tokenizer: Tokenizer | None, prompt: str, *, calls: bool = True) -> tuple[BoundForm, str]:
    """The form, and what the prompt has already written of the answer. Without `calls`, they stay content."""
    if isinstance(form, Mapping):
        key = _key(form)
        template = _template(key)
        prompt = template.begun(prompt)
        known = template.form
    else:
        if form not in FORMS:
            raise InvalidRequest(f"the form {form!r} is not known; it must be one of {', '.join(FORMS)}", param="form")
        key, known = form, FORMS[form]
    prompt = _behind_reasoning(known, prompt)
    return _bound(key, () if tokenizer is None else special_tokens(known, tokenizer), calls), prompt


def _behind_reasoning(form: Form, prefix: str) -> str:
    """Without a marker that closes reasoning which the prefix does not open."""
    for region in form.reasoning_regions:
        for close in region.closes:
            before, found, behind = prefix.partition(close)
            if found and not any(marker in before for marker in region.opens):
                return behind
    return prefix


@lru_cache(maxsize=KEPT_FORMS)
def _bound(key: str, specials: tuple[str, ...], calls: bool) -> BoundForm:
    form: Form = FORMS[key] if key in FORMS else _template(key).form
    return BoundForm(form if calls else form.without_calls, Symbols(specials))


@lru_cache(maxsize=KEPT_FORMS)
def _template(key: str) -> ResponseTemplate:
    return ResponseTemplate(json.loads(key))


def _key(template: Mapping[str, Any]) -> str:
    try:
        return json.dumps(template, default=dict)
    except (TypeError, ValueError, RecursionError) as exc:
        raise InvalidRequest(f"the response_template cannot be used: it is not JSON ({exc})", param="form") from exc
