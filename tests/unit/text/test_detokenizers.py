"""Incremental UTF-8 against decoding the whole."""

from hypothesis import example, given
from hypothesis import strategies as st

from drivetrain.text.detokenizers import Utf8Stream, incomplete_tail

# Mostly bytes that begin or continue something, so that broken characters are the rule.
TRICKY = st.lists(
    st.sampled_from([0x41, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC2, 0xDF, 0xE0, 0xE2, 0xED, 0xF0, 0xF4, 0xF5]),
    max_size=12,
).map(bytes)


def in_pieces(data: bytes, cuts: list[int]) -> str:
    stream, at, out = Utf8Stream(), 0, []
    for cut in [*sorted(c % (len(data) + 1) for c in cuts), len(data)]:
        out.append(stream.feed(data[at:cut]))
        at = cut
    return "".join(out)


@given(st.one_of(TRICKY, st.binary(max_size=12), st.text(max_size=8).map(str.encode)), st.lists(st.integers(0, 99)))
@example(b"\xed\xa0\x80", [1, 2])
@example(b"\xf0\x80", [1])
def test_any_split_gives_the_whole_decode_less_an_unfinished_end(data: bytes, cuts: list[int]) -> None:
    whole = data[: len(data) - incomplete_tail(data)].decode("utf-8", "replace")
    assert in_pieces(data, cuts) == whole
    assert data.decode("utf-8", "replace").startswith(whole)


@given(st.text(st.characters(blacklist_categories=["Cs"]), max_size=20))
def test_text_survives_byte_by_byte(text: str) -> None:
    assert in_pieces(text.encode(), list(range(100))) == text
