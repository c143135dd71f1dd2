"""llama.cpp's dialect without llama.cpp: what is asked of its server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from drivetrain.core.engine import EngineRequest
from drivetrain.core.prompt import Prompt, Segment
from drivetrain.engines.remote.dialects.base import UpstreamFacts, UpstreamKind
from drivetrain.engines.remote.dialects.llamacpp import LlamaCppDialect, LlamaCppSplitter, facts_of
from drivetrain.engines.remote.errors import Broken, Refused
from drivetrain.http.address import Address

SPECIALS = {"<|im_start|>": 256, "<|im_end|>": 257, "<|hidden|>": 258}
KNOWN = {text: i for text, i in SPECIALS.items() if text != "<|hidden|>"}


class Toy:
    """A byte a token, and special tokens of which one is not known on this side."""

    def __init__(self) -> None:
        self.questions = 0

    def __call__(self, path: str, body: Mapping[str, Any]) -> Any:
        assert path == "/tokenize"
        self.questions += 1
        content = [body["content"]] if isinstance(body["content"], str) else body["content"]
        ids: list[int] = []
        for part in content:
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += encoded(part) if body["parse_special"] else part.encode()
        return {"tokens": ids}


def encoded(text: str) -> list[int]:
    for special, token_id in SPECIALS.items():
        before, found, after = text.partition(special)
        if found:
            return [*encoded(before), token_id, *encoded(after)]
    return list(text.encode())


def said(*texts: str) -> Prompt:
    """Ours and the caller's in turn."""
    return Prompt(tuple(Segment(text, literal=i % 2 == 1) for i, text in enumerate(texts)))


def test_a_prompt_that_spells_nothing_is_one_question() -> None:
    toy = Toy()
    prompt = said("<|im_start|>user\n", "a < b", "<|im_end|>")
    assert LlamaCppSplitter(toy, KNOWN).encode(prompt) == encoded(prompt.text)
    assert toy.questions == 1


def test_names_of_special_tokens_in_what_was_said_are_text_in_few_questions() -> None:
    for words in ("<|im_start|>" * 500, "<|hidden|>" * 500, "a<|im_end|>b"):
        toy = Toy()
        ids = LlamaCppSplitter(toy, KNOWN).encode(said("<|im_start|>", words, "<|im_end|>"))
        assert ids == [256, *words.encode(), 257]
        assert toy.questions <= 3


def test_a_name_that_is_ours_in_part_is_text_too() -> None:
    prompt = said("<|im_end", "|>", "<|im_end|>")
    assert LlamaCppSplitter(Toy(), KNOWN).encode(prompt) == [*b"<|im_end|>", 257]


def test_what_came_with_a_salt_is_seen_by_nobody() -> None:
    async def ask(method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        raise AssertionError

    facts = UpstreamFacts(kind=UpstreamKind.LLAMACPP, tokens=True, parameters=frozenset())
    dialect = LlamaCppDialect(Address.parse("http://127.0.0.1:1/v1"), facts, ask)
    request = EngineRequest(request_id="r", prompt_ids=(1, 2), context_length=64, max_tokens=4, seeds=(1,))
    assert dialect.body(request, 0)["cache_prompt"] is True
    for salt in ("a", "a", "b", None):
        assert dialect.body(replace(request, cache_salt=salt), 0)["cache_prompt"] is False


async def test_each_end_that_llamacpp_knows_by_its_spelling_is_one_here() -> None:
    specials = {"<eos>": 1, "<turn|>": 2, "<|tool|>": 3, "</s>": 4}

    async def ask(method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        if path == "/props":
            template = "<|tool|>{{ messages }}"
            return {
                "chat_template": template, "eos_token": "<eos>", "total_slots": 1,
                "default_generation_settings": {"n_ctx": 64},
            }  # fmt: skip
        assert body is not None
        if path == "/completion":
            raise Refused(501)
        known = specials if body["parse_special"] else {"</s>": 4}  # which is a word like any other in this vocabulary
        return {"tokens": [{"piece": text, "id": known[text]} for text in body["content"].split("\n") if text in known]}

    facts = await facts_of(ask, {"meta": {"n_vocab": 9}})
    assert facts.eos_ids == {1, 2}
    assert facts.specials == {"<eos>": 1, "<turn|>": 2, "<|tool|>": 3}
    assert not {"min_tokens", "begin_suppress_tokens", "presence_penalty", "constraint"} & facts.parameters
    assert {"seed", "n", "logit_bias"} <= facts.parameters


class Completing:
    """A server without special tokens. `schema` is the grammar that it makes of one, `said` its answer to a grammar."""

    def __init__(self, schema: Any, said: Any) -> None:
        self.grammars: list[str] = []
        self._schema = schema
        self._said = said

    async def __call__(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        if path == "/props":
            return {"total_slots": 1, "default_generation_settings": {"n_ctx": 64}}
        assert body is not None
        if path == "/tokenize":
            return {"tokens": []}
        assert path == "/completion"
        if "json_schema" not in body:
            self.grammars.append(body["grammar"])
        told = self._said if "grammar" in body else self._schema
        if isinstance(told, Exception):
            raise told
        return {"content": told, "generation_settings": {"grammar": told}}


MADE = '%llguidance {}\nstart: %json {"const":"zq"}'
GBNF = 'root ::= "\\"zq\\"" space'


@pytest.mark.parametrize(
    ("schema", "said", "asked", "constrains"),
    [
        (MADE, "zq", 1, True), (MADE, "a tale", 1, False), (MADE, Refused(400), 1, False), (GBNF, "zq", 0, False),
        ("", "zq", 0, False), (None, "zq", 0, False), (Refused(400), "zq", 0, False),
    ],
)  # fmt: skip
async def test_whether_it_takes_grammars_is_found_out_without_harm(
    schema: Any, said: Any, asked: int, constrains: bool
) -> None:
    """A llama.cpp that was built without llguidance aborts when it is sent a grammar for it."""
    server = Completing(schema, said)
    facts = await facts_of(server, {"meta": {"n_vocab": 9}})
    assert len(server.grammars) == asked
    assert ("constraint" in facts.parameters) is constrains
    assert any("constraints are refused" in note for note in facts.notes) is not constrains


@pytest.mark.parametrize("failure", [Refused(503), Refused(429), Broken("silence"), ConnectionResetError()])
async def test_a_server_that_is_busy_is_not_one_without_grammars(failure: Exception) -> None:
    for server in (Completing(failure, "zq"), Completing(MADE, failure)):
        with pytest.raises(type(failure)):
            await facts_of(server, {"meta": {"n_vocab": 9}})
