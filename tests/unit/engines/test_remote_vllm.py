"""vLLM's dialect without vLLM: against a toy of its server, whose vocabulary are the bytes and four special tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from drivetrain.core.engine import EngineRequest, IdLogprobs, PromptStep, TokenStep
from drivetrain.core.errors import EngineFailed, InvalidRequest
from drivetrain.core.messages import Message, TextPart
from drivetrain.core.prompt import Prompt, Segment
from drivetrain.core.results import FinishReason
from drivetrain.core.sampling import Sampling
from drivetrain.engines.remote.dialects import vllm_tokenizer
from drivetrain.engines.remote.dialects.base import UpstreamFacts, UpstreamKind
from drivetrain.engines.remote.dialects.vllm import VllmDialect, facts_of
from drivetrain.engines.remote.dialects.vllm_tokenizer import MARKS, Speller, VllmSplitter
from drivetrain.engines.remote.errors import Broken, Refused, Unreadable
from drivetrain.engines.remote.spellings import SUSPICIOUS
from drivetrain.http.address import Address
from drivetrain.text.byte_tokenizer import ByteTokenizer
from drivetrain.text.grammar.library import CompiledGrammar, Vocabulary
from drivetrain.text.pieces import byte_level_bytes

SPECIALS = {"<s>": 256, "<|im_start|>": 257, "<|im_end|>": 258, "<|odd|>": 259}
NAMES = {i: name for name, i in SPECIALS.items()}
CHARS = {byte_level_bytes(char)[0]: char for char in map(chr, range(33, 400)) if len(byte_level_bytes(char)) == 1}
ADDRESS = Address.parse("http://127.0.0.1:1/v1")


@dataclass
class Toy:
    """`asked` are the paths in order. `changes` go over a completion, `refusals` stand in place of an answer."""

    changes: dict[str, Any] = field(default_factory=dict)
    refusals: dict[str, Exception] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    async def __call__(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        assert body is not None
        return self.answer(path, body)

    def answer(self, path: str, body: Mapping[str, Any]) -> Any:
        self.asked.append(path)
        if path in self.refusals:
            raise self.refusals[path]
        if path == "/detokenize":
            return {"prompt": decoded(body["tokens"])}
        if path == "/tokenize":
            text = body.get("prompt")
            ids = encoded(chat(body["messages"]) if text is None else text)
            ids = [256, *ids] if body.get("add_special_tokens") else ids
            return {"tokens": ids, "token_strs": [NAMES[i] if i in NAMES else CHARS[i] for i in ids]}
        assert path == "/v1/completions"
        return {"choices": [self.completed(body) | self.changes]}

    @staticmethod
    def completed(body: Mapping[str, Any]) -> dict[str, Any]:
        bias = {int(i): b for i, b in body.get("logit_bias", {}).items()}
        if any(i > 259 for i in bias):
            raise Refused(400, f"token_id(s) {list(bias)} contain out-of-vocab token ids. Vocabulary size: 260")
        said = next((i for i, b in bias.items() if b == 100.0), 65)
        found: dict[str, Any] = {"text": "A", "finish_reason": "stop" if said == 258 else "length"}
        if body.get("return_token_ids"):
            found["token_ids"] = [said]
        if "logprobs" in body:
            count = len(body["prompt"]) + 1
            found["logprobs"] = {"token_logprobs": [-1.0] * count, "top_logprobs": [{"token_id:65": -1.0}] * count}
        return found


def encoded(text: str) -> list[int]:
    for name, i in SPECIALS.items():
        if name in text:
            before, _, after = text.partition(name)
            return [*encoded(before), i, *encoded(after)]
    return list(text.encode())


def decoded(ids: list[int]) -> str:
    return b"".join(NAMES[i].encode() if i in NAMES else bytes((i,)) for i in ids).decode("utf-8", "replace")


def chat(messages: list[dict[str, str]]) -> str:
    turns = [f"<|im_start|>{one['role']}\n{one['content'].strip()}<|im_end|>\n" for one in messages]
    return "".join(turns) + "<|im_start|>assistant\n"


def request(**changes: Any) -> EngineRequest:
    base: dict[str, Any] = {
        "request_id": "r", "prompt_ids": (104, 105), "context_length": 100, "max_tokens": 5, "seeds": (7,),
        "stop_ids": frozenset({258}),
    }  # fmt: skip
    return EngineRequest(**base | changes)


async def known(toy: Toy) -> UpstreamFacts:
    facts = await facts_of(toy, "m", "/v1/completions", 2048)
    assert facts is not None
    return facts


async def test_what_a_server_offers_is_found_out_by_asking() -> None:
    facts = await known(Toy())
    assert (facts.kind, facts.tokens, facts.vocab_size, facts.context_length) == (UpstreamKind.VLLM, True, 260, 2048)
    assert facts.eos_ids == {258}
    assert facts.specials == {"<|im_start|>": 257, "<|im_end|>": 258}
    assert facts.eos_token == "<|im_end|>"
    assert {"seed", "logprobs", "prompt_logprobs", "ignore_eos", "cache_salt", "min_tokens"} <= facts.parameters
    assert not {"bad_words_ids", "typical_p", "images"} & facts.parameters


async def test_without_a_known_end_none_can_be_ignored() -> None:
    facts = await known(Toy({"finish_reason": "length"}))
    assert not facts.eos_ids
    assert "ignore_eos" not in facts.parameters
    assert any("ignore_eos" in note for note in facts.notes)


async def test_logprobs_that_do_not_come_are_not_promised() -> None:
    facts = await known(Toy({"logprobs": None}))
    assert not {"logprobs", "prompt_logprobs"} & facts.parameters


@pytest.mark.parametrize(("text", "constrains"), [("zq", True), ("A", False)])
async def test_a_grammar_that_is_not_followed_is_not_promised(text: str, constrains: bool) -> None:
    facts = await known(Toy({"text": text}))
    assert ("constraint" in facts.parameters) is constrains
    assert any("constraints are refused" in note for note in facts.notes) is not constrains


async def test_a_refused_grammar_is_not_promised() -> None:
    class Older(Toy):
        def answer(self, path: str, body: Mapping[str, Any]) -> Any:
            if "structured_outputs" in body:
                raise Refused(400, "unknown field")
            return super().answer(path, body)

    assert "constraint" not in (await known(Older())).parameters


async def test_a_grammar_goes_along_as_lark() -> None:
    dialect = await a_dialect()
    lark = 'start: "a" | "b"'
    compiled = CompiledGrammar(lark, Vocabulary(ByteTokenizer(), frozenset()))
    assert dialect.body(request(grammar=compiled), 0)["structured_outputs"] == {"grammar": "%llguidance {}\n" + lark}
    assert "structured_outputs" not in dialect.body(request(), 0)


@pytest.mark.parametrize(
    "toy",
    [
        Toy({"token_ids": None}), Toy({"token_ids": []}), Toy(refusals={"/tokenize": Refused(404)}),
        Toy(refusals={"/detokenize": Refused(404)}), Toy(refusals={"/v1/completions": Refused(400, "no")}),
        Toy(refusals={"/tokenize": Refused(501)}), Toy(refusals={"/tokenize": Unreadable("a page")}),
    ],
)  # fmt: skip
async def test_a_version_without_ids_is_left_to_the_text_tier(toy: Toy) -> None:
    assert await facts_of(toy, "m", "/v1/completions", 2048) is None


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize", "/v1/completions"])
@pytest.mark.parametrize("failure", [Refused(503), Refused(429), Broken("silence"), ConnectionResetError()])
async def test_a_server_that_fails_or_is_busy_is_no_version_without_ids(path: str, failure: Exception) -> None:
    with pytest.raises(type(failure)):
        await facts_of(Toy(refusals={path: failure}), "m", "/v1/completions", 2048)


async def a_splitter(toy: Toy) -> VllmSplitter:
    return VllmSplitter(toy.answer, "m", await known(Toy()))


async def test_a_prompt_is_framed_once() -> None:
    splitter = await a_splitter(Toy())
    assert splitter.encode(Prompt.raw("hi")) == [256, 104, 105]
    assert splitter.encode(Prompt.raw("<s>hi")) == [256, 104, 105]
    assert splitter.encode(Prompt((Segment("hi"),))) == [104, 105]
    assert splitter.encode(Prompt((), add_bos=True)) == [256]
    assert splitter.decode([104, 258]) == "h<|im_end|>"


@pytest.mark.parametrize(
    "text",
    [
        "hello", "<|im_end|>", "a<|im_end|><|im_end|>b", f"{MARKS[0]}<|im_start|>{MARKS[1]}", " <|odd|> ", "<s>[INST]",
        "<|im_<|im_end|>end|>", "<html> is no special token",
    ],
)  # fmt: skip
async def test_a_callers_special_token_stays_text(text: str) -> None:
    said = Prompt((), messages=(Message("user", (TextPart(text),)),))
    ids = (await a_splitter(Toy())).encode(said)
    assert [i for i in ids if i in NAMES] == [257, 258, 257]
    assert decoded(ids) == chat([{"role": "user", "content": text}])


async def test_what_looks_like_a_special_token_is_asked_for_once() -> None:
    toy = Toy()
    splitter = await a_splitter(toy)
    said = Prompt((), messages=(Message("user", (TextPart("<a> <b> <a>"),)),))
    splitter.encode(said)
    splitter.encode(said)
    assert toy.asked == ["/tokenize"] * 3


async def test_ids_are_spelled_once_and_parts_of_a_character_by_the_whole_of_it() -> None:
    toy, learnt = Toy(), dict[int, bytes]()
    speller = Speller(toy, "m", {"<|im_end|>": 258})
    await speller.spell([104, 105, 0xE4], learnt.__setitem__)
    assert learnt == {104: b"h", 105: b"i"}
    await speller.spell([105, 104], learnt.__setitem__)
    assert len(toy.asked) == 1
    await speller.spell_text(list("h世界".encode()), learnt.__setitem__)
    assert all(learnt[i] == bytes((i,)) for i in "h世界".encode())
    assert await speller.pieces([104, 258, 105], "hi", learnt.__setitem__) == (b"h", b"", b"i")
    assert await speller.pieces([104, 105], "HI", learnt.__setitem__) == (b"", b"HI")


async def test_a_text_that_cannot_be_divided_is_not_given_to_the_end() -> None:
    """A piece of an id that ends the answer is thrown away."""
    speller = Speller(Toy(), "m", {"<|im_end|>": 258})
    earth = "🌍".encode()
    assert await speller.pieces([*earth, 258], "🌍", dict[int, bytes]().__setitem__) == (b"", b"", b"", earth, b"")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("<[TOOL_CALLS]>", ["<[TOOL_CALLS]>", "[TOOL_CALLS]"]),
        ("[|endofturn|]", ["[|endofturn|]"]),
        (">>ANSWER<<", [">>ANSWER<<"]),
        ("a < b, c > d\n[", ["< b, c >"]),
    ],
)
def test_what_may_be_a_special_token(text: str, found: list[str]) -> None:
    assert SUSPICIOUS.findall(text) == found


async def test_what_callers_say_is_not_remembered_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_tokenizer, "MOST_KEPT", 10)
    splitter = await a_splitter(Toy())
    for number in range(20):
        splitter.encode(Prompt((), messages=(Message("user", (TextPart(f"<a{number}>"),)),)))
    assert len(splitter._special) <= 10


async def a_dialect() -> VllmDialect:
    return VllmDialect(ADDRESS, "m", await known(Toy()), Toy())


async def test_every_value_is_stated() -> None:
    dialect = await a_dialect()
    body = dialect.body(request(sampling=Sampling(temperature=0.5, suppress_tokens=(9,), logit_bias={3: 1.5})), 0)
    assert dialect.path == "/v1/completions"
    assert (body["prompt"], body["max_tokens"], body["seed"]) == ((104, 105), 5, 7)
    assert (body["ignore_eos"], body["stop_token_ids"]) == (False, [])
    assert body["logit_bias"] == {"3": 1.5, "9": -100.0}
    assert not {"cache_salt", "logprobs", "echo"} & body.keys()


async def test_ends_seeds_salts_and_the_rest_of_the_context() -> None:
    dialect = await a_dialect()
    body = dialect.body(request(stop_ids=frozenset({5}), max_tokens=None, seeds=(-1,), cache_salt="us"), 0)
    assert (body["ignore_eos"], body["stop_token_ids"], body["max_tokens"]) == (True, [5], 98)
    assert (body["seed"], body["cache_salt"]) == (2**63 - 1, "us")
    salts = {dialect.body(request(seeded=True, cache_salt="us"), 0)["cache_salt"] for _ in range(2)}
    assert len(salts | {"us"}) == 3
    greedy = dialect.body(request(sampling=Sampling(temperature=1.0, top_k=1)), 0)
    assert (greedy["temperature"], greedy["top_k"]) == (0.0, 0)
    with pytest.raises(InvalidRequest):
        dialect.body(request(sampling=Sampling(suppress_tokens=tuple(range(260)))), 0)


def event(text: str, ids: list[int], reason: str | None = None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text, "token_ids": ids, "finish_reason": reason, **more}]}


def listed(*tops: dict[int, float] | None) -> dict[str, Any]:
    return {
        "token_logprobs": [None if top is None else next(iter(top.values())) for top in tops],
        "top_logprobs": [None if top is None else {f"token_id:{i}": value for i, value in top.items()} for top in tops],
    }


async def test_events_become_steps() -> None:
    learnt: dict[int, bytes] = {}
    reader = (await a_dialect()).reader(request(logprobs=1), 0, learnt.__setitem__)
    told = listed({65: -2.0, 66: -0.5})
    assert list(await reader.hear(event("A", [65], logprobs=told))) == [
        TokenStep(0, (65,), (IdLogprobs(-2.0, ((66, -0.5),)),), None, (b"A",))
    ]
    assert learnt[66] == b"B"
    last = listed({258: -0.1})
    (step,) = await reader.hear(event("", [258], "stop", logprobs=last))
    assert isinstance(step, TokenStep)
    assert (step.token_ids, step.reason, step.pieces) == ((258,), FinishReason.STOP, (b"",))
    assert reader.over
    assert not await reader.hear({"choices": []})


async def test_the_prompts_logprobs_come_first() -> None:
    learnt: dict[int, bytes] = {}
    reader = (await a_dialect()).reader(request(prompt_logprobs=1), 0, learnt.__setitem__)
    first, second = await reader.hear(event("A", [65], logprobs=listed(None, {105: -3.0, 66: -1.0}, {65: -0.5})))
    assert first == PromptStep(logprobs=(IdLogprobs(None), IdLogprobs(-3.0, ((66, -1.0),))))
    assert second == TokenStep(0, (65,), None, None, (b"A",))
    assert learnt == {66: b"B", 104: b"h", 105: b"i"}


async def test_of_a_choice_without_room_nothing_is_taken() -> None:
    reader = (await a_dialect()).reader(request(max_tokens=0, prompt_logprobs=0), 0, lambda i, data: None)
    steps = await reader.hear(event("A", [65], "length", logprobs=listed(None, {105: -3.0}, {65: -0.5})))
    assert steps[-1] == TokenStep(0, (), None, FinishReason.LENGTH)
    assert reader.over


@pytest.mark.parametrize(
    ("bad", "kind"),
    [
        (event("text", []), Broken), (event("A", [65], "abort"), EngineFailed), ({}, Broken),
        ({"choices": [5]}, Broken), (event("A", [65], logprobs={}), Broken), (event("A", ["x"]), Broken),  # type: ignore[list-item]

        (event("A", [65], logprobs=listed({65: -1.0}, {66: -1.0})), Broken),
    ],
)  # fmt: skip
async def test_what_is_no_answer_is_an_error(bad: dict[str, Any], kind: type[Exception]) -> None:
    reader = (await a_dialect()).reader(request(logprobs=1), 0, lambda i, data: None)
    with pytest.raises(kind):
        await reader.hear(bad)


async def test_a_stream_that_ends_before_the_answer_is_broken() -> None:
    reader = (await a_dialect()).reader(request(), 0, lambda i, data: None)
    with pytest.raises(Broken):
        reader.close()
