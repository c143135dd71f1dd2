"""Fitting prompt and answer into a context."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.core.errors import ContextOverflow
from drivetrain.core.request import GenerateRequest, Overflow
from drivetrain.families import registry
from drivetrain.worker.settle import Defaults, fit

BOS = 9999


@given(
    prompt=st.integers(1, 60),
    limit=st.integers(1, 50),
    max_tokens=st.one_of(st.none(), st.integers(0, 60)),
    default=st.one_of(st.none(), st.integers(1, 60)),
    min_tokens=st.integers(0, 60),
    policy=st.sampled_from(Overflow),
    with_bos=st.booleans(),
)
def test_it_fits_or_says_why(
    prompt: int,
    limit: int,
    max_tokens: int | None,
    default: int | None,
    min_tokens: int,
    policy: Overflow,
    with_bos: bool,
) -> None:
    """A `min_tokens` above `max_tokens` has been refused before."""
    min_tokens = min_tokens if max_tokens is None else min(min_tokens, max_tokens)
    ids = ([BOS] if with_bos else []) + list(range(prompt))
    try:
        fitted = fit(
            ids, limit=limit, max_tokens=max_tokens, default_max_tokens=default, min_tokens=min_tokens,
            policy=policy, bos_id=BOS,
        )  # fmt: skip
    except ContextOverflow:
        stated = 0 if policy is Overflow.SHORTEN_ANSWER else max_tokens or 0
        assert not policy.cuts or max(stated, min_tokens) >= limit or limit == 1
        assert policy is not Overflow.SHORTEN_ANSWER or len(ids) + max(min_tokens, max_tokens != 0) > limit
        return
    assert fitted.max_tokens >= min_tokens
    assert len(fitted.ids) >= 1
    assert len(fitted.ids) + fitted.max_tokens <= limit
    assert fitted.truncated == len(ids) - len(fitted.ids)
    if policy is Overflow.SHORTEN_ANSWER and max_tokens is not None:
        assert fitted.max_tokens == min(max_tokens, limit - len(ids))
    elif max_tokens is not None:
        assert fitted.max_tokens == max_tokens
    if not fitted.truncated:
        assert list(fitted.ids) == ids
    elif with_bos and len(fitted.ids) > 1:
        assert fitted.ids[0] == BOS


def test_middle_keeps_both_ends() -> None:
    fitted = fit(
        list(range(100)), limit=20, max_tokens=10, default_max_tokens=None,
        policy=Overflow.TRUNCATE_MIDDLE, bos_id=None,
    )  # fmt: skip
    assert fitted.ids == (*range(5), *range(95, 100))


def test_a_prompt_that_fills_the_context() -> None:
    """It can be echoed, and leaves no room for an answer."""

    def filled(max_tokens: int) -> int:
        return fit(
            list(range(20)), limit=20, max_tokens=max_tokens, default_max_tokens=None,
            policy=Overflow.SHORTEN_ANSWER, bos_id=None,
        ).max_tokens  # fmt: skip

    assert filled(0) == 0
    with pytest.raises(ContextOverflow, match="prompt is too long: 20 tokens > 19"):
        filled(9)


def test_encoder_and_decoder_have_a_context_each() -> None:
    fitted = fit(
        list(range(20)), limit=20, max_tokens=20, default_max_tokens=None,
        policy=Overflow.ERROR, bos_id=None, separate=True,
    )  # fmt: skip
    assert (len(fitted.ids), fitted.max_tokens) == (20, 20)
    with pytest.raises(ContextOverflow):
        fit(
            list(range(21)), limit=20, max_tokens=1, default_max_tokens=None,
            policy=Overflow.ERROR, bos_id=None, separate=True,
        )  # fmt: skip


def test_who_decides_a_sampling_value() -> None:
    """The request, the settings, the weights, the catalogue, the prompt form: the first that says something."""
    defaults = Defaults(
        settings={"top_p": 0.5},
        weights={"top_p": 0.6, "min_p": 0.1},
        catalogue={"top_p": 0.7, "min_p": 0.2, "temperature": 0.2},
        family=registry.get("guanaco"),
        honoured=frozenset({"top_p", "min_p", "temperature", "repetition_penalty", "typical_p"}),
    )
    assert defaults.origins == {
        "top_p": ("settings", 0.5),
        "min_p": ("generation_config", 0.1),
        "temperature": ("catalogue", 0.2),
        "repetition_penalty": ("family", 1.7),
        "typical_p": ("neutral", 1.0),
    }
    assert defaults.max_tokens() == 512
    settled = defaults.resolve(GenerateRequest(prompt="x", temperature=0.9))
    assert (settled.temperature, settled.top_p, settled.min_p) == (0.9, 0.5, 0.1)
