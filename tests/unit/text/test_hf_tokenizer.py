"""Every kind of vocabulary: our incremental decode against the library's decode of the whole."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain.core.prompt import Prompt, Segment
from drivetrain.text.detokenizers import Utf8Stream
from drivetrain.text.hf_tokenizer import LONG_CHARS, HfTokenizer
from tiny import tokenizers as made

KINDS: dict[str, Callable[[], Any]] = {
    "byte_level": made.byte_level,
    "byte_fallback": made.byte_fallback,
    "unigram": made.unigram,
    "wordpiece": made.wordpiece,
    "wordlevel": made.wordlevel,
}


@pytest.fixture(scope="module", params=sorted(KINDS))
def pair(request: pytest.FixtureRequest) -> tuple[Any, HfTokenizer]:
    theirs = KINDS[request.param]()
    return theirs, HfTokenizer(theirs)


def streamed(tokenizer: HfTokenizer, ids: list[int], prefix: list[int]) -> str:
    detokenizer, utf8 = tokenizer.detokenizer(prefix), Utf8Stream()
    return "".join(utf8.feed(detokenizer.push(i)) for i in ids)


def whole(theirs: Any, ids: list[int]) -> str:
    text: str = theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return text


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_streamed_equals_the_library_on_text(pair: tuple[Any, HfTokenizer], data: st.DataObject) -> None:
    theirs, ours = pair
    text = data.draw(st.text(st.sampled_from("the quick fox. é 你好 🌍'\n\t,!ABC "), max_size=24))
    ids = theirs.encode(text, add_special_tokens=False)
    assert ours.encode(Prompt.raw(text, add_bos=False)) == ids
    assert ours.decode(ids) == whole(theirs, ids)
    assert streamed(ours, ids, []) == whole(theirs, ids)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_after_a_prompt_it_is_what_the_whole_adds(pair: tuple[Any, HfTokenizer], data: st.DataObject) -> None:
    theirs, ours = pair
    text = data.draw(st.text(st.sampled_from("the quick fox é 🌍 ABC "), min_size=4, max_size=24))
    ids = theirs.encode("once " + text, add_special_tokens=False)
    at = data.draw(st.integers(1, max(1, len(ids) - 1)))
    prefix, rest = ids[:at], ids[at:]
    if "�" not in whole(theirs, prefix) and whole(theirs, prefix):
        assert whole(theirs, prefix) + streamed(ours, rest, prefix) == whole(theirs, ids)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_ids_give_no_replacement_that_the_whole_has_not(pair: tuple[Any, HfTokenizer], data: st.DataObject) -> None:
    theirs, ours = pair
    ids = data.draw(st.lists(st.integers(0, ours.vocab_size - 1), max_size=20))
    text = streamed(ours, ids, [])
    full = whole(theirs, ids)
    assert text.count("�") <= full.count("�")
    if "�" not in full and not full.startswith("##"):  # a word piece that continues nothing keeps its mark there
        assert text == full


def test_ids_past_the_vocabulary_add_nothing(pair: tuple[Any, HfTokenizer]) -> None:
    _, ours = pair
    assert streamed(ours, [ours.vocab_size, ours.vocab_size + 1000], []) == ""
    assert ours.token_bytes(ours.vocab_size + 5) == b""


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_literal_span_never_gives_a_special_id(pair: tuple[Any, HfTokenizer], data: st.DataObject) -> None:
    _, ours = pair
    specials = sorted(ours.special_strings)
    pieces = st.lists(st.sampled_from([*specials, "hi ", "the", " ", "<", "|"]), max_size=6)
    text = "".join(data.draw(pieces))
    ids = ours.encode(Prompt((Segment("a"), Segment(text, literal=True), Segment("b"))))
    plain = ours.encode(Prompt((Segment("a"), Segment("x", literal=True), Segment("b"))))
    unknown = {i for i in plain if ours.is_special(i)} | {ours.id_of("<unk>"), ours.id_of("[UNK]")}
    assert not {i for i in ids if ours.is_special(i)} - unknown


def test_the_tokenizer_it_is_given_is_not_changed(pair: tuple[Any, HfTokenizer]) -> None:
    theirs, ours = pair
    before = theirs.backend_tokenizer.to_str()
    special = next(iter(ours.special_strings))
    ours.encode(Prompt((Segment("a"), Segment(special, literal=True))))
    ours.decode([1, 2, 3])
    assert theirs.backend_tokenizer.to_str() == before


def test_a_bos_that_the_text_spells_is_not_doubled() -> None:
    theirs = made.byte_fallback()
    ours = HfTokenizer(theirs)
    assert ours.bos_token is not None
    once = ours.encode(Prompt.raw("hello", add_bos=True))
    spelled = ours.encode(Prompt.raw(ours.bos_token + "hello", add_bos=True))
    bos = ours.id_of(ours.bos_token)
    assert bos is not None
    assert once.count(bos) == spelled.count(bos) <= 1


def test_long_texts_are_split_as_the_library_splits_them(pair: tuple[Any, HfTokenizer]) -> None:
    theirs, ours = pair
    text = "The quick brown fox é€😀 jumps. " * 200
    assert len(text) > LONG_CHARS
    assert ours.encode(Prompt.raw(text)) == theirs.encode(text)
    literal = ours.encode(Prompt((Segment(text + "".join(ours.special_strings), literal=True),)))
    assert len(literal) > len(text) / 10
    assert not {i for special in ours.special_strings if (i := ours.id_of(special)) is not None}.intersection(
        literal
    ) - {theirs.unk_token_id}


def test_others_have_the_interpreter_while_a_long_text_is_split(pair: tuple[Any, HfTokenizer]) -> None:
    """It stood still for all of them: nearly three seconds for four million characters, and the event loop with it."""
    _, ours = pair
    assert not ours.waits
    turns, done = 0, threading.Event()

    def others() -> None:
        nonlocal turns
        while not done.is_set():
            time.sleep(0)
            turns += 1

    prompt = Prompt.raw("The quick brown fox jumps over the lazy dog. " * 20_000)
    ours.encode(Prompt.raw("what is made when it is first needed"))
    thread = threading.Thread(target=others)
    thread.start()
    try:
        before = turns
        assert ours.encode(prompt)
        meanwhile = turns - before
    finally:
        done.set()
        thread.join()
    assert meanwhile > 100
