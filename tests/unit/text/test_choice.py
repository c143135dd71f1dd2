"""The text of one choice: the same for every split of the ids, and never taken back."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.core.engine import IdLogprobs
from drivetrain.core.events import ChoiceFinished, Delta
from drivetrain.core.results import FinishReason, TokenLogprob
from drivetrain.text.byte_tokenizer import ByteTokenizer
from drivetrain.text.choice import ChoiceText, StopRules
from drivetrain.text.detokenizers import incomplete_tail

TOKENIZER = ByteTokenizer()
EOS = 257

ids_strategy = st.lists(
    st.one_of(st.sampled_from([*b"ab#\n", *"é🌍".encode(), 256, 258, EOS]), st.integers(0, 260)), max_size=24
)
stops_strategy = st.lists(st.text("ab#é🌍", min_size=1, max_size=4), max_size=3)
sequences_strategy = st.lists(st.lists(st.sampled_from([*b"ab#", 258]), min_size=1, max_size=3).map(tuple), max_size=2)


class Outcome:
    """Everything that a choice gave out, and in how many pieces."""

    def __init__(self) -> None:
        self.deltas: list[Delta] = []

    def take(self, delta: Delta | None) -> None:
        if delta is not None:
            self.deltas.append(delta)

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(i for delta in self.deltas for i in delta.token_ids)

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...]:
        return tuple(entry for delta in self.deltas for entry in delta.logprobs or ())


def run(
    ids: Sequence[int], cuts: Sequence[int] = (), reason: FinishReason = FinishReason.LENGTH, **rules: object
) -> tuple[ChoiceText, Outcome]:
    made = StopRules(eos_ids=rules.pop("eos_ids", (EOS,)), tokenizer=TOKENIZER, **rules)  # type: ignore[arg-type]
    choice = ChoiceText(0, tokenizer=TOKENIZER, detokenizer=TOKENIZER.detokenizer(), rules=made, logprobs=True)
    outcome, at = Outcome(), 0
    for cut in [*sorted(c % (len(ids) + 1) for c in cuts), len(ids)]:
        step = ids[at:cut]
        outcome.take(choice.feed(step, [IdLogprobs(-float(i)) for i in step]))
        at = cut
    outcome.take(choice.finish(reason))
    return choice, outcome


@given(
    ids_strategy,
    st.lists(st.integers(0, 99), max_size=20),
    stops_strategy,
    sequences_strategy,
    st.integers(0, 4),
    st.booleans(),
    st.sampled_from([0, 2, 3]),
)
def test_any_split_gives_the_same(
    ids: list[int],
    cuts: list[int],
    stops: list[str],
    sequences: list[tuple[int, ...]],
    min_tokens: int,
    include: bool,
    most: int,
) -> None:
    rules = {"strings": stops, "sequences": sequences, "min_tokens": min_tokens, "include_in_text": include}
    rules["max_repetitions"] = most
    whole, expected = run(ids, (), **rules)  # type: ignore[arg-type]
    split, got = run(ids, cuts, **rules)  # type: ignore[arg-type]
    assert got.text == expected.text
    assert got.ids == expected.ids == tuple(ids[: whole.num_tokens])
    assert split.finished == whole.finished
    assert got.logprobs == expected.logprobs
    assert all(delta.text for delta in got.deltas[:-1])


PIECE = "".join(map(chr, range(32, 97)))
"""In which nothing is repeated."""


@pytest.mark.parametrize(
    ("said", "most", "end"),
    [
        ("aaaa", 3, 3),
        ("aaa", 4, None),
        ("xababab", 3, 7),
        ("xababa", 3, None),
        ("abcabcabc", 2, 6),
        ("aabaab", 2, 2),
        (PIECE[:64] * 3, 2, 128),
        (PIECE * 3, 2, None),
    ],
)
def test_a_piece_that_is_repeated_ends_it(said: str, most: int, end: int | None) -> None:
    """One of up to 64 tokens."""
    choice, outcome = run([*said.encode()], max_repetitions=most)
    ended = (FinishReason.LENGTH, None) if end is None else (FinishReason.STOP, "repetition")
    assert (outcome.text, choice.finished) == (said[:end], ChoiceFinished(0, *ended))


def test_a_loop_is_not_noticed_before_the_least_length() -> None:
    choice, outcome = run([*b"aaaaaaaa"], max_repetitions=2, min_tokens=6)
    assert (outcome.text, choice.finished) == ("aaaaaa", ChoiceFinished(0, FinishReason.STOP, "repetition"))


@given(ids_strategy, st.lists(st.integers(0, 99), max_size=9))
def test_without_stops_it_is_the_full_decode_less_an_unfinished_end(ids: list[int], cuts: list[int]) -> None:
    _, outcome = run(ids, cuts, eos_ids=())
    data = b"".join(bytes((i,)) for i in ids if i < 256)
    full = TOKENIZER.decode(ids)
    assert outcome.text == data[: len(data) - incomplete_tail(data)].decode("utf-8", "replace")
    assert full.startswith(outcome.text)
    assert outcome.text.count("�") <= full.count("�")


@given(st.text("ab#", max_size=20), stops_strategy.filter(bool))
def test_the_stop_completed_first_ends_it_and_is_not_in_the_text(text: str, stops: list[str]) -> None:
    choice, outcome = run(list(text.encode()), range(30), strings=stops)
    ends = [(text.find(s) + len(s), -len(s), s) for s in stops if s in text]
    if ends:
        end, negative, stop = min(ends)
        assert choice.finished is not None
        assert choice.finished.matched_stop == stop
        assert outcome.text == text[: end + negative]
    else:
        assert outcome.text == text


@given(ids_strategy, stops_strategy, st.lists(st.integers(0, 99), max_size=9))
def test_offsets_and_bytes_belong_to_the_text(ids: list[int], stops: list[str], cuts: list[int]) -> None:
    _, outcome = run(ids, cuts, strings=stops)
    text = outcome.text
    joined = b"".join(entry.bytes for entry in outcome.logprobs)
    assert joined.decode("utf-8", "replace").startswith(text)
    offsets = [entry.text_offset for entry in outcome.logprobs]
    assert offsets == sorted(offsets)
    for entry in outcome.logprobs:
        if entry.bytes.isascii() and entry.bytes and "�" not in text:
            assert text[entry.text_offset :].startswith(entry.token)


@pytest.mark.parametrize(
    ("said", "stops", "text", "matched"),
    [
        ("Hello###world", ["###"], "Hello", "###"),
        ("###", ["###"], "", "###"),
        ("a##b###", ["###"], "a##b", "###"),
        ("a####", ["###"], "a", "###"),
        ("one two", ["two", "one two three", "wo"], "one ", "two"),
        ("xabcd", ["bc", "abcd"], "xa", "bc"),
        ("no stop #", ["###"], "no stop #", None),
        ("né", ["é"], "n", "é"),
    ],
)
def test_stop_strings(said: str, stops: list[str], text: str, matched: str | None) -> None:
    choice, outcome = run(list(said.encode()), range(40), strings=stops)
    assert outcome.text == text
    assert choice.finished is not None
    assert choice.finished.matched_stop == matched
    assert choice.finished.reason == (FinishReason.STOP if matched else FinishReason.LENGTH)


def test_nothing_of_a_stop_is_streamed_before_it_is_refuted() -> None:
    rules = StopRules(strings=["###"], tokenizer=TOKENIZER)
    choice = ChoiceText(0, tokenizer=TOKENIZER, detokenizer=TOKENIZER.detokenizer(), rules=rules)
    seen = [choice.feed([byte]) for byte in b"a##b"]
    assert [delta and delta.text for delta in seen] == ["a", None, None, "##b"]
    assert seen[3] is not None
    assert seen[3].token_ids == tuple(b"##b")


def test_a_token_that_holds_the_stop_is_cut_inside_but_listed_whole() -> None:
    class TwoLetters(ByteTokenizer):
        def _bytes_in_text(self, token_id: int) -> bytes:
            return {1: b"ab#", 2: b"##c"}.get(token_id, b"")

    tokenizer = TwoLetters()
    rules = StopRules(strings=["###"], tokenizer=tokenizer)
    choice = ChoiceText(0, tokenizer=tokenizer, detokenizer=tokenizer.detokenizer(), rules=rules, logprobs=True)
    outcome = Outcome()
    for i in (1, 2):
        outcome.take(choice.feed([i], [IdLogprobs(-1.0)]))
    assert outcome.text == "ab"
    assert outcome.ids == (1, 2)
    assert [entry.bytes for entry in outcome.logprobs] == [b"ab#"]


def test_stop_ids_match_as_ids_only() -> None:
    choice, outcome = run([*b"ab", EOS, *b"c"], token_ids=[99])
    assert outcome.text == "ab"
    assert choice.num_tokens == 3
    assert choice.finished is not None
    assert choice.finished.matched_stop is None
    named, text = run(list(b"abc"), token_ids=[98])
    assert text.text == "a"
    assert named.finished is not None
    assert named.finished.matched_stop == 98


def test_ignore_eos_goes_on_and_min_tokens_puts_stops_off() -> None:
    _, outcome = run([97, EOS, 98], eos_ids=())
    assert outcome.text == "ab"
    choice, outcome = run(list(b"#a#b#"), strings=["#"], min_tokens=4)
    assert outcome.text == "#a#b"
    assert choice.num_tokens == 5


def test_stop_words_given_as_ids_match_as_ids_and_as_text() -> None:
    choice, outcome = run([*b"x", 258, *b"a"], sequences=[(258, 97)])
    assert outcome.text == "x"
    assert choice.finished is not None
    assert choice.finished.matched_stop == (258, 97)

    class Joined(ByteTokenizer):
        def _bytes_in_text(self, token_id: int) -> bytes:
            return {5: b"st", 6: b"op", 7: b"sto", 8: b"p", 9: b"say "}.get(token_id, b"")

    tokenizer = Joined()
    rules = StopRules(sequences=[(5, 6)], tokenizer=tokenizer)
    other = ChoiceText(0, tokenizer=tokenizer, detokenizer=tokenizer.detokenizer(), rules=rules)
    got = Outcome()
    for i in (9, 7, 8):
        got.take(other.feed([i]))
    assert got.text == "say "
    assert other.finished is not None
    assert other.finished.matched_stop == (5, 6)


def test_include_keeps_the_stop_in_the_text() -> None:
    _, outcome = run(list(b"Hi###x"), strings=["###"], include_in_text=True)
    assert outcome.text == "Hi###"
    _, outcome = run(list(b"Hi!"), token_ids=[ord("!")], include_in_text=True)
    assert outcome.text == "Hi!"


def test_half_a_character_never_leaves() -> None:
    globe = list("🌍".encode())
    _, outcome = run([*b"a", *globe[:3]])
    assert outcome.text == "a"
    assert outcome.ids == (97, *globe[:3])


def test_work_is_linear_in_the_output() -> None:
    """Counted, not timed: the text held and the tokens waiting stay small whatever was said before."""
    rules = StopRules(strings=["###", "END"], tokenizer=TOKENIZER)
    choice = ChoiceText(0, tokenizer=TOKENIZER, detokenizer=TOKENIZER.detokenizer(), rules=rules)
    for byte in b"some text #E" * 5000:
        choice.feed([byte])
        assert len(choice._held) <= 3
        assert len(choice._tokens) <= 3
