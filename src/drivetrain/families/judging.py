"""How a model is asked whether a document fits a query, so that its first token is yes or no."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from drivetrain.core.messages import Message, TextPart
from drivetrain.core.prompt import Prompt, Segment
from drivetrain.core.tokenizer import Tokenizer
from drivetrain.families.base import Family
from drivetrain.families.template_variables import template_variables

WORDS = ("yes", "no")


class Question(ABC):
    """The query comes before the document: what is asked of many documents begins alike, and is computed once."""

    @property
    @abstractmethod
    def name(self) -> str: ...

    @abstractmethod
    def render(self, query: str, document: str) -> Prompt:
        """Up to where the answer begins. Neither text can forge a special token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedQuestion(Question):
    """One that a family of rerankers was trained on. It is found by the architecture and the name together."""

    name: str
    architectures: tuple[str, ...]
    name_pattern: str
    before_query: str
    before_document: str
    after_document: str

    def render(self, query: str, document: str) -> Prompt:
        parts = (
            Segment(self.before_query),
            Segment(query, literal=True),
            Segment(self.before_document),
            Segment(document, literal=True),
            Segment(self.after_document),
        )
        return Prompt.join(parts, add_bos=False)


# As the model card of Qwen/Qwen3-Reranker-0.6B has it, with the instruction that the card gives for a search.
QWEN3_RERANKER = TrainedQuestion(
    name="qwen3-reranker",
    architectures=("qwen3",),
    name_pattern=r"qwen3[-_.]?reranker",
    before_query=(
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct"
        ' provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
        "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n<Query>: "
    ),
    before_document="\n<Document>: ",
    after_document="<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
)

TRAINED: tuple[TrainedQuestion, ...] = (QWEN3_RERANKER,)


@dataclass(frozen=True, slots=True)
class GeneralQuestion(Question):
    """For any other model, as one message in its own prompt form. A model that can be told not to reason is told so."""

    family: Family

    name = "general"

    def render(self, query: str, document: str) -> Prompt:
        text = (
            "Here are a query and a document. Say whether the document answers the query, with yes or no alone.\n\n"
            f"Query: {query}\n\nDocument: {document}\n\nDoes the document answer the query? Answer yes or no."
        )
        variables = template_variables(None, "none", known=self.family.variables, reasons=False)
        return self.family.render((Message("user", (TextPart(text),)),), variables=variables)


def question_for(family: Family, *, architecture: str, names: Sequence[str]) -> Question:
    """`names` are what the model is called here, and what its folder or file is."""
    for trained in TRAINED:
        if architecture in trained.architectures and any(re.search(trained.name_pattern, n.lower()) for n in names):
            return trained
    return GeneralQuestion(family)


def answer_ids(tokenizer: Tokenizer, prompt: Prompt) -> tuple[int, int]:
    """The first id of «yes» and of «no» where they follow this prompt: with a space in front, unless the prompt ends
    with one, with a line or with a special token, or the space is a token of its own."""
    tail = prompt.segments[-1].text
    ends = tail[-1:].isspace() or any(tail.endswith(special) for special in tokenizer.special_strings)
    before = tokenizer.encode(Prompt.raw(tail, add_bos=False))
    for space in ("",) if ends else (" ", ""):
        yes, no = (_first(tokenizer, tail, before, space + word) for word in WORDS)
        if yes != no:
            break
    return yes, no


def _first(tokenizer: Tokenizer, tail: str, before: Sequence[int], word: str) -> int:
    ids = tokenizer.encode(Prompt.raw(tail + word, add_bos=False))
    if len(ids) > len(before) and ids[: len(before)] == list(before):
        return ids[len(before)]
    return tokenizer.encode(Prompt.raw(word, add_bos=False))[0]
