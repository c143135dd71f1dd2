"""The parts of the llamacpp engine that need no model: recovery of lost ids, slots, metadata."""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.core.errors import LoadFailed
from drivetrain.core.prompt import Prompt, Segment
from drivetrain.engines.llamacpp.gguf import read_metadata
from drivetrain.engines.llamacpp.recovery import lost_ids
from drivetrain.engines.llamacpp.slots import UNKNOWN, SlotPool, common_prefix
from drivetrain.engines.llamacpp.tokenizer import LlamaCppTokenizer
from drivetrain.engines.llamacpp.vocabulary import Vocabulary

SPM = {
    "tokenizer.ggml.model": b"llama",
    "tokenizer.ggml.tokens": [b"<unk>", b"<s>", b"</s>"]
    + [f"<0x{byte:02X}>".encode() for byte in range(256)]
    + ["▁Hello".encode(), "▁".encode(), b"world", "▁world".encode(), "é".encode(), b"<tool>", b"Hello"],
    "tokenizer.ggml.token_type": (2, 3, 3, *[6] * 256, 1, 1, 1, 1, 1, 4, 1),
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
}
BYTE = 3
HELLO, SPACE, WORLD, SPACE_WORLD, E_ACUTE, TOOL, BARE_HELLO = range(259, 266)


@pytest.fixture
def spm() -> Vocabulary:
    return Vocabulary(SPM)


def test_a_sentencepiece_vocabulary(spm: Vocabulary) -> None:
    assert spm.adds_space
    assert spm.bytes_in_text(HELLO) == b" Hello"
    assert spm.bytes_in_text(BYTE + 0xF0) == b"\xf0"
    assert spm.bytes_in_text(1) == spm.bytes_in_text(0) == spm.bytes_in_text(10**6) == spm.bytes_in_text(-1) == b""
    assert spm.bytes_in_text(TOOL) == b"<tool>"
    assert spm.eos_ids == {2}
    assert spm.special_ids == {0, 1, 2}


@given(st.lists(st.integers(BYTE, BARE_HELLO), min_size=1, max_size=6))
def test_whatever_was_lost_is_spelled_with_as_many_ids(ids: list[int]) -> None:
    vocabulary = Vocabulary(SPM)
    data = b"".join(map(vocabulary.bytes_in_text, ids))
    found = lost_ids(vocabulary, data, ids[-1], len(ids) - 1)
    assert found is not None
    assert len(found) == len(ids) - 1
    assert b"".join(map(vocabulary.bytes_in_text, (*found, ids[-1]))) == data


def test_lost_ids_from_text(spm: Vocabulary) -> None:
    emoji = "🌍".encode()
    assert lost_ids(spm, "🌍", BYTE + emoji[3], 3) == tuple(BYTE + byte for byte in emoji[:3])
    assert lost_ids(spm, "🌍", BYTE + emoji[3], 2) is None
    assert lost_ids(spm, "🌍", BYTE + 0x41, 3) is None


def test_lost_ids_from_text_with_a_broken_character(spm: Vocabulary) -> None:
    """A lead byte that nothing completed shows as U+FFFD: some lead byte is found for it."""
    found = lost_ids(spm, "�world", WORLD, 1)
    assert found is not None
    assert (spm.bytes_in_text(found[0]) + b"world").decode("utf-8", "replace") == "�world"


def test_merging_decides_between_spellings() -> None:
    metadata = {
        "tokenizer.ggml.model": b"gpt2",
        "tokenizer.ggml.tokens": [c.encode() for c in ("ð", "Ł", "Į", "į", "ŁĮ", "ðŁ")],
        "tokenizer.ggml.token_type": (1,) * 6,
    }
    vocabulary = Vocabulary(metadata)
    data = b"\xf0\x9f\x8c\x8d"
    assert b"".join(map(vocabulary.bytes_in_text, (0, 1, 2, 3))) == data
    assert lost_ids(vocabulary, data, 3, 3) == (0, 1, 2)
    assert lost_ids(vocabulary, data, 3, 2) == (0, 4)  # 4 was merged before 5


def test_common_prefix() -> None:
    assert common_prefix((1, 2, 3), (1, 2, 4, 5)) == 2
    assert common_prefix((), (1,)) == 0
    assert common_prefix((1, 2), (1, 2)) == 2


@given(st.lists(st.integers(0, 2), max_size=12), st.lists(st.integers(0, 2), max_size=12))
def test_common_prefix_is_the_longest(a: list[int], b: list[int]) -> None:
    n = common_prefix(a, b)
    assert a[:n] == b[:n]
    assert n in (len(a), len(b)) or a[n] != b[n]


async def test_a_prompt_goes_where_its_beginning_is_else_to_the_oldest() -> None:
    pool = SlotPool(3)
    async with pool.taken((1,)) as first:
        first.cached = (1, 2, 3, 4)
    async with pool.taken((9,)) as second:
        assert second is not first
        second.cached = (9, 9)
    async with pool.taken((1, 2, 3, 4, 5)) as again:
        assert again is first
    async with pool.taken((7, 7)) as third:
        assert third not in (first, second)
    async with pool.taken((9, 1, 1, 1, 1)) as oldest:
        assert oldest is second


async def test_a_slot_shares_its_beginning_with_an_equal_salt_only() -> None:
    pool = SlotPool(2)
    async with pool.taken((1,), "a") as first:
        first.cached, first.salt = (1, 2, 3, 4), "a"
        assert first.shared((1, 2, 3, 9), "a") == 3
        assert first.shared((1, 2, 3, 9), "b") == first.shared((1, 2, 3, 9), None) == 0
    async with pool.taken((1, 2, 3, 4), "b") as second:
        assert second is not first
    async with pool.taken((1, 2, 3, 4), "a") as again:
        assert again is first
        again.salt = UNKNOWN
        assert again.shared((1, 2), None) == again.shared((1, 2), "a") == 0


async def test_slots_are_given_in_order_and_cancelling_a_waiter_loses_none() -> None:
    pool = SlotPool(1)
    order: list[int] = []

    async def use(i: int) -> None:
        async with pool.taken((i,)):
            order.append(i)
            await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(use(i)) for i in range(5)]
        await asyncio.sleep(0)
        tasks[2].cancel()
    assert order == [0, 1, 3, 4]
    async with pool.taken((0,)):
        pass


def test_metadata_of_every_type_and_none_that_is_cut_short(tmp_path: Path) -> None:
    def string(text: str) -> bytes:
        return struct.pack("<Q", len(text.encode())) + text.encode()

    pairs = {
        "u8": (0, struct.pack("<B", 7)),
        "f32": (6, struct.pack("<f", 0.5)),
        "yes": (7, b"\x01"),
        "name": (8, string("ünïcode")),
        "list": (9, struct.pack("<IQ", 4, 3) + struct.pack("<3I", 1, 2, 3)),
        "words": (9, struct.pack("<IQ", 8, 2) + string("a") + string("b")),
        "tokenizer.ggml.merges": (9, struct.pack("<IQ", 8, 1) + string("a b")),
        "nested": (9, struct.pack("<IQ", 9, 1) + struct.pack("<IQ", 1, 1) + b"\xff"),
        "i64": (11, struct.pack("<q", -5)),
    }
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, len(pairs))
    for key, (kind, value) in pairs.items():
        data += string(key) + struct.pack("<I", kind) + value
    (tmp_path / "x.gguf").write_bytes(data)
    assert read_metadata(tmp_path / "x.gguf") == {
        "u8": 7, "f32": 0.5, "yes": True, "name": "ünïcode".encode(), "list": (1, 2, 3), "words": [b"a", b"b"],
        "tokenizer.ggml.merges": None, "nested": [(-1,)], "i64": -5,
    }  # fmt: skip
    for length in range(len(data)):
        (tmp_path / "x.gguf").write_bytes(data[:length])
        with pytest.raises(LoadFailed, match="not a usable GGUF file"):
            read_metadata(tmp_path / "x.gguf")


@given(st.binary(max_size=60))
def test_no_metadata_can_break_the_reader(tail: bytes) -> None:
    path = Path(tempfile.gettempdir(), f"drivetrain-metadata-{os.getpid()}.gguf")
    strings = b"GGUF" + struct.pack("<IQQQcI", 3, 0, 1, 1, b"k", 9) + struct.pack("<I", 8)
    try:
        for start in (b"GGUF" + struct.pack("<IQQ", 3, 0, 2), strings, strings + struct.pack("<QQ", 2, 2**64 - 1)):
            path.write_bytes(start + tail)
            with contextlib.suppress(LoadFailed):
                assert isinstance(read_metadata(path), dict)
    finally:
        path.unlink()


class FakeSplit:
    """Splits as a SentencePiece server would: a space in front of every text, specials only when asked."""

    def __call__(self, content: str | Sequence[str | int], *, specials: bool, add_special: bool = False) -> list[int]:
        ids = [1] if add_special else []
        if not isinstance(content, str):
            parts = ([part] if isinstance(part, int) else self(part, specials=specials) for part in content)
            return [*ids, *(i for part in parts for i in part)]
        text = content
        if specials and "</s>" in text:
            before, _, after = text.partition("</s>")
            return [*ids, *self(before, specials=True), 2, *self(after, specials=True)]
        words = {" Hello": [HELLO], " world": [SPACE_WORLD], " put </s> together": [HELLO, 2, HELLO]}
        spaced = " " + text if text else ""
        return ids + words.get(spaced, [BYTE + byte if byte != 32 else SPACE for byte in spaced.encode()])


def test_literal_spans_are_split_as_plain_text_without_stray_spaces(spm: Vocabulary) -> None:
    tokenizer = LlamaCppTokenizer(spm, FakeSplit(), chat_template=None)
    assert tokenizer.bos_token == "<s>"
    assert tokenizer.encode(Prompt((Segment("</s>"),), add_bos=True)) == [1, 2]
    prompt = Prompt((Segment("Hello"), Segment("a</s>b", literal=True), Segment("</s>")), add_bos=True)
    ids = tokenizer.encode(prompt)
    assert ids.count(2) == 1
    assert ids[-1] == 2
    assert tokenizer.decode(ids, skip_special=False).replace("<s>", "").strip() == "Helloa</s>b</s>"


def test_a_server_that_ends_each_text_and_begins_none_has_no_bos(spm: Vocabulary) -> None:
    def split(content: str | Sequence[str | int], *, specials: bool, add_special: bool = False) -> list[int]:
        ids = [WORLD] if "world" in content else [HELLO]
        return [*ids, 2] if add_special else ids

    tokenizer = LlamaCppTokenizer(spm, split, chat_template=None)
    assert tokenizer.encode(Prompt((Segment("world"),), add_bos=True)) == [WORLD]


def test_a_special_token_spelled_across_ours_and_the_callers_text_stays_text(spm: Vocabulary) -> None:
    tokenizer = LlamaCppTokenizer(spm, FakeSplit(), chat_template=None)
    assert 2 not in tokenizer.encode(Prompt((Segment("</"), Segment("s>", literal=True))))


def test_a_special_token_that_the_vocabulary_puts_together_from_plain_text_is_taken_apart(spm: Vocabulary) -> None:
    tokenizer = LlamaCppTokenizer(spm, FakeSplit(), chat_template=None)
    prompt = Prompt((Segment("put </s> together", literal=True), Segment("</s>")))
    assert tokenizer.encode(prompt) == [HELLO, *(BYTE + byte for byte in b"</s>"), HELLO, 2]
