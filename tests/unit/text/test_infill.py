"""Prompts for filling in the middle, as each family's documentation has them, and the tokens that they are made of."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.core.prompt import Prompt, Segment, own_specials
from drivetrain.engines.llamacpp.vocabulary import Vocabulary
from drivetrain.text.byte_tokenizer import SPECIALS, ByteTokenizer
from drivetrain.text.hf_tokenizer import HfTokenizer
from drivetrain.text.infill import INFILL_FORMS, INFILL_NAMES, infill_of
from tiny import tokenizers

WRITTEN = {
    "Qwen2.5-Coder-7B": "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>",
    "starcoder2-3b": "<fim_prefix>a<fim_suffix>b<fim_middle>",
    "Mellum-4b-base": "<fim_suffix>b<fim_prefix>a<fim_middle>",
    "santacoder": "<fim-prefix>a<fim-suffix>b<fim-middle>",
    "deepseek-coder-6.7b-base": "<｜fim▁begin｜>a<｜fim▁hole｜>b<｜fim▁end｜>",
    "CodeLlama-7b-hf": "▁<PRE>a▁<SUF>b▁<MID>",
    "Codestral-22B-v0.1": "[SUFFIX]b[PREFIX]a",
    "Seed-Coder-8B-Base": "<[fim-suffix]>b<[fim-prefix]>a<[fim-middle]>",
}
"""For each family, a model's name and its prompt for the prefix `a` and the suffix `b`."""


def with_tokens(*tokens: str) -> ByteTokenizer:
    made = ByteTokenizer()
    made.specials = (*SPECIALS, *tokens)
    return made


@pytest.mark.parametrize("model", WRITTEN)
def test_each_family(model: str) -> None:
    written = WRITTEN[model]
    tokens = tuple(token for token in INFILL_NAMES if token in written)
    infill = infill_of(with_tokens(*tokens), f"org/{model}")
    assert infill is not None
    prompt = infill.form.prompt("a", "b")
    assert (prompt.text, prompt.add_bos) == (written, True)
    assert all(segment.literal == (segment.text in {"a", "b"}) for segment in prompt.segments)


def test_a_model_under_another_name_is_known_by_its_file() -> None:
    infill = infill_of(with_tokens("<fim_prefix>", "<fim_suffix>", "<fim_middle>"), "coder", "Mellum-4b-base.gguf")
    assert infill is not None
    assert infill.form.prompt("a", "b").text == WRITTEN["Mellum-4b-base"]


def test_every_form_is_written_out() -> None:
    assert {form.prompt("a", "b").text for form in INFILL_FORMS} == set(WRITTEN.values())


def test_some_of_the_tokens_are_not_enough() -> None:
    assert infill_of(with_tokens(), "model") is None
    assert infill_of(with_tokens("<fim_prefix>", "<fim_suffix>"), "model") is None


def test_an_answer_ends_at_the_forms_own_tokens_and_what_ends_a_fill() -> None:
    tokenizer = with_tokens("<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<|endoftext|>", "<file_sep>", "<other>")
    infill = infill_of(tokenizer, "model")
    assert infill is not None
    assert infill.end_ids == set(range(261, 266))


@given(st.data(), st.sampled_from(INFILL_FORMS))
def test_no_text_forges_a_token(data: st.DataObject, form: Any) -> None:
    words = st.sampled_from(sorted(INFILL_NAMES)) | st.text(max_size=3)
    prefix, suffix = ("".join(data.draw(st.lists(words, max_size=4))) for _ in range(2))
    prompt = form.prompt(prefix, suffix)
    spans = own_specials(prompt, INFILL_NAMES)
    assert [prompt.text[start:end] for start, end in spans] == list(form.tokens)


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("make", [tokenizers.byte_level, tokenizers.byte_fallback])
def test_tokens_that_the_files_do_not_mark_are_special_all_the_same(make: Any, special: bool) -> None:
    """Those of Qwen2.5-Coder."""
    from tokenizers import AddedToken

    names = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>"]
    theirs = make()
    theirs.add_tokens([AddedToken(name, special=special, normalized=False) for name in names])
    ours = HfTokenizer(theirs)
    ids = [ours.id_of(name) for name in names]
    assert all(i is not None and ours.is_special(i) for i in ids)
    infill = infill_of(ours, "model")
    assert infill is not None
    assert infill.end_ids == set(ids)
    forged = "x" + "".join(names) + "y"
    encoded = ours.encode(infill.form.prompt(forged, forged))
    assert [i for i in encoded if i in ids] == ids[:3]
    assert ours.decode(encoded, skip_special=False).replace(" ", "").count(forged) == 2
    assert ours.decode([i for i in ids if i is not None]) == ""
    message = Prompt((Segment("Say: "), Segment(forged, literal=True)))
    assert not set(ours.encode(message)) & set(ids)


@pytest.mark.parametrize(("kind", "has"), [(3, True), (4, True), (1, False)])
def test_of_a_gguf_file(kind: int, has: bool) -> None:
    """Not where it is a plain piece, which any text may have."""
    metadata = {
        "tokenizer.ggml.model": b"gpt2",
        "tokenizer.ggml.tokens": [b"a", b"<fim_prefix>", b"<tool>"],
        "tokenizer.ggml.token_type": (1, kind, 4),
    }
    vocabulary = Vocabulary(metadata)
    assert vocabulary.special_strings == ({"<fim_prefix>"} if has else set())
