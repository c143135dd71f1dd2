"""How a model is asked whether a document fits, and which ids its two answers begin with."""

from __future__ import annotations

import pytest

from drivetrain.core.prompt import Prompt
from drivetrain.families.judging import QWEN3_RERANKER, GeneralQuestion, answer_ids, question_for
from drivetrain.families.registry import get
from drivetrain.text.byte_tokenizer import ByteTokenizer


@pytest.mark.parametrize(
    ("architecture", "names", "trained"),
    [
        ("qwen3", ("Qwen/Qwen3-Reranker-0.6B", "snapshot"), True),
        ("qwen3", ("ranker", "Qwen3-Reranker-4B-Q4_K_M.gguf"), True),
        ("qwen3", ("Qwen3-0.6B", "Qwen3-0.6B"), False),
        ("llama", ("Qwen3-Reranker-0.6B", "x"), False),
    ],
)
def test_a_reranker_is_known_by_architecture_and_name(architecture: str, names: tuple[str, ...], trained: bool) -> None:
    found = question_for(get("plain"), architecture=architecture, names=names)
    assert (found is QWEN3_RERANKER) == trained
    assert found.name == ("qwen3-reranker" if trained else "general")


@pytest.mark.parametrize("family", ["plain", "chatml", "llama2", "gemma"])
def test_the_query_comes_first_and_both_texts_are_literal(family: str) -> None:
    for question in (GeneralQuestion(get(family)), QWEN3_RERANKER):
        prompt = question.render("a q-u-e-r-y", "a d-o-c")
        assert prompt.text.index("q-u-e-r-y") < prompt.text.index("d-o-c")
        literal = "".join(segment.text for segment in prompt.segments if segment.literal)
        assert "q-u-e-r-y" in literal
        assert "d-o-c" in literal


class Wordy(ByteTokenizer):
    """With a token for each answer behind a space."""

    def encode(self, prompt: Prompt) -> list[int]:
        ids = super().encode(Prompt.raw(prompt.text.replace(" yes", "\x01").replace(" no", "\x02"), add_bos=False))
        return list(ids)


@pytest.mark.parametrize("tail", ["Assistant:", "assistant\n", "x "])
def test_the_answers_have_a_space_in_front_where_a_word_would(tail: str) -> None:
    """A tokenizer of bytes has the space as a token of its own."""
    for tokenizer, expected in ((ByteTokenizer(), b"yn"), (Wordy(), b"\x01\x02" if tail[-1] == ":" else b"yn")):
        found = answer_ids(tokenizer, Prompt.raw(tail))
        assert b"".join(map(tokenizer.token_bytes, found)) == expected
