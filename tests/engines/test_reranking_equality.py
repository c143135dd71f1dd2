"""Scores and their order, equal to what the transformers library computes by hand."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import drivetrain
from drivetrain.core.capabilities import RerankWay
from drivetrain.core.errors import ContextOverflow, LoadFailed, Unsupported
from drivetrain.core.prompt import Prompt
from drivetrain.families.judging import QWEN3_RERANKER, answer_ids
from drivetrain.text.hf_tokenizer import HfTokenizer

QUERY = "Which river flows through Paris?"
DOCUMENTS = [
    "The Seine flows through Paris.",
    "Berlin is the capital of Germany.",
    "",
    "A cat sat on the mat, and then on the dog.",
    "The Seine flows through Paris.",
    "Über den Fluß führen 37 Brücken — naïve 🌉 日本語.",
    "Paris",
]


def library(folder: Path, auto_class: str) -> tuple[Any, Any]:
    import transformers as hf

    from drivetrain.engines.checkpoint.quiet import quiet_library

    with quiet_library():
        model = getattr(hf, auto_class).from_pretrained(folder, dtype="float32").eval()
        return model, hf.AutoTokenizer.from_pretrained(folder)


def in_order(scores: list[float]) -> list[int]:
    return sorted(range(len(scores)), key=lambda i: (-scores[i], i))


def pair(tokenizer: Any, text: str, **options: Any) -> Any:
    """As cross-encoders do it, in a batch: alone, the library takes an empty second text for none."""
    return tokenizer([QUERY], [text], **options)


def by_head(folder: Path) -> list[float]:
    import torch

    model, tokenizer = library(folder, "AutoModelForSequenceClassification")
    with torch.no_grad():
        logits = [float(model(**pair(tokenizer, text, return_tensors="pt")).logits[0, 0]) for text in DOCUMENTS]
    return [1 / (1 + math.exp(-logit)) for logit in logits]


@pytest.mark.parametrize("name", ["bert_scorer", "xlm_roberta_scorer", "qwen3_scorer"])
async def test_a_score_head(name: str, checkpoint: Callable[[str], Path]) -> None:
    folder = checkpoint(name)
    expected = by_head(folder)
    async with drivetrain.Worker.open(folder) as worker:
        assert (worker.metadata.engine, worker.capabilities.rerank) == ("transformers", RerankWay.HEAD)
        assert not worker.capabilities.generation
        assert not worker.capabilities.embeddings
        found = await worker.rerank(QUERY, DOCUMENTS)
        assert found.scores == pytest.approx(expected, abs=1e-6)
        assert list(found.order) == in_order(list(found.scores)) == in_order(expected)
        assert len(set(found.scores)) == len(set(DOCUMENTS))
        assert found.usage.completion_tokens == 0
        for refused in (worker.generate(prompt="x"), worker.embed("x")):
            with pytest.raises(Unsupported):
                await refused


async def test_a_pair_is_encoded_as_by_the_library_unless_it_spells_special_tokens(
    checkpoint: Callable[[str], Path],
) -> None:
    for name in ("bert_scorer", "xlm_roberta_scorer", "qwen3_scorer"):
        _, theirs = library(checkpoint(name), "AutoModelForSequenceClassification")
        ours = HfTokenizer(theirs)
        for text in DOCUMENTS:
            expected = pair(theirs, text, return_token_type_ids=True)
            assert ours.encode_pair(QUERY, text) == (expected["input_ids"][0], expected["token_type_ids"][0])
        forging = " ".join(sorted(ours.special_strings))
        framing = [i for i in ours.encode_pair("a", "b")[0] if ours.is_special(i) and i != theirs.unk_token_id]
        ids, types = ours.encode_pair(forging, forging)
        assert [i for i in ids if ours.is_special(i) and i != theirs.unk_token_id] == framing
        assert len(types) == len(ids)


async def test_no_position_is_out_of_bounds(checkpoint: Callable[[str], Path]) -> None:
    """Two of the positions of an XLM-R are the padding's."""
    async with drivetrain.Worker.open(checkpoint("xlm_roberta_scorer")) as worker:
        limit = worker.capabilities.context_length
        assert limit == 128
        longest, lengths = 0, []
        for words in range(1, limit + 1):
            try:
                lengths.append((await worker.rerank("a", ["a " * words])).usage.prompt_tokens)
                longest = words
            except ContextOverflow:
                break
        assert max(lengths) == limit
        cut = await worker.rerank("a", ["a " * 1000, "a " * longest], max_tokens_per_doc=longest)
        assert cut.scores[0] == pytest.approx(cut.scores[1], abs=1e-6)


async def test_a_classifier_is_no_reranker(checkpoint: Callable[[str], Path]) -> None:
    with pytest.raises(LoadFailed, match="3 classes"):
        async with drivetrain.Worker.open(checkpoint("bert_classes")):
            pass


def by_yes_and_no(folder: Path, render: Callable[[str, str], Prompt]) -> list[float]:
    """The softmax over the logits of the two words behind the prompt."""
    import torch

    model, tokenizer = library(folder, "AutoModelForCausalLM")
    prompts = [render(QUERY, text) for text in DOCUMENTS]
    words = answer_ids(HfTokenizer(tokenizer), prompts[0])
    scores = []
    for prompt in prompts:
        ids = tokenizer(prompt.text, add_special_tokens=prompt.add_bos, return_tensors="pt").input_ids
        with torch.no_grad():
            logits = model(ids).logits[0, -1, list(words)]
        scores.append(float(torch.softmax(logits.double(), dim=0)[0]))
    return scores


def chatml(query: str, document: str) -> Prompt:
    return Prompt.raw(
        "<|im_start|>user\nHere are a query and a document. Say whether the document answers the query, with yes or no"
        f" alone.\n\nQuery: {query}\n\nDocument: {document}\n\nDoes the document answer the query? Answer yes or no."
        "<|im_end|>\n<|im_start|>assistant\n",
        add_bos=False,
    )


def qwen3_reranker(query: str, document: str) -> Prompt:
    """As its model card has it."""
    start = (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    )
    instruct = "Given a web search query, retrieve relevant passages that answer the query"
    body = f"<Instruct>: {instruct}\n<Query>: {query}\n<Document>: {document}"
    end = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    return Prompt.raw(start + body + end, add_bos=False)


@pytest.mark.parametrize("engine", ["native", "transformers"])
@pytest.mark.parametrize(
    ("name", "family", "render"),
    [("qwen3", "qwen3", chatml), ("gpt_neox", "gpt_neox", chatml), ("qwen3", "Qwen3-Reranker-tiny", qwen3_reranker)],
)
async def test_yes_and_no(
    engine: str,
    name: str,
    family: str,
    render: Callable[[str, str], Prompt],
    checkpoint: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    folder = tmp_path / family
    shutil.copytree(checkpoint(name), folder)
    expected = by_yes_and_no(folder, render)
    async with drivetrain.Worker.open(folder, engine=engine, dtype="float32") as worker:
        assert worker.capabilities.rerank is RerankWay.LOGITS
        assert worker.metadata.rerank_form == ("general" if render is chatml else "qwen3-reranker")
        found = await worker.rerank(QUERY, DOCUMENTS)
        assert found.scores == pytest.approx(expected, abs=1e-5)
        assert list(found.order) == in_order(list(found.scores)) == in_order([round(score, 9) for score in expected])
        assert found.usage.completion_tokens >= len(DOCUMENTS)
        assert worker.status.running == 0


def test_the_trained_question_is_the_one_of_the_model_card() -> None:
    assert QWEN3_RERANKER.render("q", "d").text == qwen3_reranker("q", "d").text
    assert [segment.text for segment in QWEN3_RERANKER.render("q", "d").segments if segment.literal] == ["q", "d"]
