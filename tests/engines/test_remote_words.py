"""What names of tokens are in front of vLLM's server: special, words, or a frame. Against tokenizers of real shapes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from remote_rigs import worker_at
from vllm_toy import MODEL, VllmToy, served

from drivetrain.core.messages import Message, TextPart
from drivetrain.core.prompt import Prompt
from drivetrain.engines.base.frame import frame
from drivetrain.engines.remote.dialects.base import UpstreamFacts, UpstreamKind
from drivetrain.engines.remote.dialects.drivetrain import with_specials
from drivetrain.engines.remote.dialects.vllm_tokenizer import VllmSplitter
from drivetrain.text.hf_tokenizer import HfTokenizer
from drivetrain.worker.worker import EngineWorker
from tiny import tokenizers as made

WORDS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
TEXT = "<think>\nhm</think>\n\nHello <|im_start|><tool_call>world</tool_call>"
OPENING = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}{% endif %}"
TEMPLATE = made.CHATML[: made.CHATML.index("{% if add_generation_prompt %}")] + OPENING


def qwen3() -> Any:
    """Names that are tokens of their own, and not special: they stay when special tokens are left out of a text."""
    from tokenizers import AddedToken

    tokenizer = made.byte_level(split=made.QWEN2_SPLIT, normalize=True, eos=made.IM_END, chat_template=TEMPLATE)
    tokenizer.add_tokens([AddedToken(name, special=False, normalized=False) for name in WORDS])
    return tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return qwen3()


@pytest.fixture(scope="module")
def said(tokenizer: Any) -> list[int]:
    return [int(i) for i in tokenizer(TEXT, add_special_tokens=False).input_ids]


@asynccontextmanager
async def speaking(tokenizer: Any, says: list[int], steps: int = 1) -> AsyncIterator[EngineWorker]:
    toy = VllmToy(tokenizer, vocab_size=len(tokenizer), says=says, steps=steps)
    async with served(toy) as upstream, worker_at(upstream.url, model=MODEL) as worker:
        yield worker


@pytest.mark.parametrize("steps", [1, 3, 100])
@pytest.mark.parametrize("logprobs", [None, 1])
async def test_a_text_keeps_the_words_that_the_library_keeps(
    tokenizer: Any, said: list[int], steps: int, logprobs: int | None
) -> None:
    async with speaking(tokenizer, said, steps) as worker:
        result = await worker.generate(prompt="x", max_tokens=len(said), ignore_eos=True, logprobs=logprobs)
    choice = result.choices[0]
    assert choice.text == tokenizer.decode(said, skip_special_tokens=True)
    assert choice.text.count("<think>") == 1
    assert list(choice.token_ids) == said
    for entry, token_id in zip(choice.logprobs or (), said, strict=logprobs is not None):
        assert entry.bytes.decode() == tokenizer.decode([token_id], skip_special_tokens=True)


async def test_a_stop_of_ids_cuts_the_text_at_a_word(tokenizer: Any, said: list[int]) -> None:
    end = tokenizer.convert_tokens_to_ids("</think>")
    async with speaking(tokenizer, said, 100) as worker:
        result = await worker.generate(prompt="x", max_tokens=len(said), stop_sequences=[[end]])
    assert result.text == "<think>\nhm"


async def test_decoding_is_the_librarys(tokenizer: Any, said: list[int]) -> None:
    async with speaking(tokenizer, said) as worker:
        far = worker.info.tokenizer
        assert await asyncio.to_thread(far.decode, said) == HfTokenizer(tokenizer).decode(said)
        assert far.special_strings <= HfTokenizer(tokenizer).special_strings
        assert far.id_of("<|im_end|>") == tokenizer.eos_token_id


@pytest.mark.parametrize("text", ["<think>b</think> a", "<tool_call> <|im_end|> </tool_call>", "<|im_<think>end|>"])
async def test_words_in_messages_are_split_as_in_this_process(tokenizer: Any, said: list[int], text: str) -> None:
    """As with our own engines: special names are plain text, words are what the vocabulary makes of them."""
    async with speaking(tokenizer, said) as worker:
        ids = await worker.tokenize(messages=[{"role": "user", "content": text}])
    plain = made.byte_level(split=made.QWEN2_SPLIT, normalize=True, eos=made.IM_END, chat_template=TEMPLATE)
    ours = [token_id for token_id in ids if token_id >= len(plain)]
    assert tokenizer.convert_ids_to_tokens(ours) == [*[n for n in _order(text) if n in WORDS], "<think>"]
    assert ids.count(tokenizer.eos_token_id) == 1
    assert tokenizer.decode(ids) == f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n<think>\n"


def _order(text: str) -> list[str]:
    return sorted((name for name in WORDS if name in text), key=text.index)


FRAMED = [(bos, eos) for bos in (False, True) for eos in (False, True)]


@pytest.mark.parametrize(("bos", "eos"), FRAMED)
@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback", "metaspace", "gemma", "wordlevel"])
def test_a_frame_is_what_stands_before_a_text(kind: str, bos: bool, eos: bool) -> None:
    makers: Mapping[str, Any] = {
        "byte_level": made.byte_level,
        "byte_fallback": made.byte_fallback,
        "metaspace": lambda **o: made.byte_fallback(metaspace=True, **o),
        "gemma": lambda **o: made.byte_fallback(prefix_space=False, **o),
        "wordlevel": made.wordlevel,
    }
    tokenizer = makers[kind](add_bos=bos, add_eos=eos)
    plain = tokenizer("a", add_special_tokens=False).input_ids
    assert frame(plain, tokenizer("a").input_ids) == ([tokenizer.bos_token_id] if bos else [])


def test_what_cannot_be_told_apart_is_no_frame() -> None:
    assert frame([1], []) == frame([1], [2, 3]) == frame([], [1]) == []


@pytest.mark.parametrize(("bos", "eos"), FRAMED)
async def test_a_prompt_begins_with_what_the_vocabulary_begins_it_with(bos: bool, eos: bool) -> None:
    tokenizer = made.byte_level(add_bos=bos, add_eos=eos, chat_template=made.CHATML)
    toy = VllmToy(tokenizer, vocab_size=len(tokenizer))
    splitter = VllmSplitter(
        toy.answer, MODEL, UpstreamFacts(kind=UpstreamKind.VLLM, tokens=True, parameters=frozenset())
    )
    for text in ("hello", "<s>hello", "a"):
        assert splitter.encode(Prompt.raw(text)) == HfTokenizer(tokenizer).encode(Prompt.raw(text))
    said = Prompt((), messages=(Message("user", (TextPart("hello"),)),))
    assert splitter.encode(said)[0] == tokenizer.convert_tokens_to_ids("<|im_start|>")


@pytest.mark.parametrize(
    ("begins", "bos"), [((), None), ((1,), "<s>"), ((5,), None)], ids=["nothing", "a special token", "a space"]
)
async def test_the_begin_of_a_drivetrains_texts_is_special_or_nothing(begins: tuple[int, ...], bos: str | None) -> None:
    async def ask(method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        assert body is not None
        if path == "/tokenize":
            return {"tokens": [*begins, ord(body["prompt"]), 2]}
        return {"prompt": {1: "<s>", 2: "</s>", 5: " "}[body["tokens"][0]]}

    known = UpstreamFacts(kind=UpstreamKind.DRIVETRAIN, tokens=True, parameters=frozenset(), eos_ids=frozenset({2}))
    found = await with_specials(known, ask, MODEL)
    assert (found.bos_token, found.eos_token) == (bos, "</s>")
    assert found == replace(known, bos_token=bos, eos_token="</s>", specials=found.specials)
    assert set(found.specials) == {"</s>", *([bos] if bos else [])}
