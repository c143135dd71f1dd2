"""Patterns find what Python's `re` finds, however the text is cut, and are refused where they would backtrack."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain.core.errors import InvalidRequest
from drivetrain.text.answers.patterns import Pattern, compiled
from drivetrain.text.answers.search import Found, Marker, Search, Watch

PATTERNS = [
    "ab", "a|ab", "ab|a", "a*", "a+b", "a+?b", "a*?b", "(?:a|b)*c", "[^a]*b", "[a-b]c", r"a\s*b", r"\w+", r"(?:^|b)a",
    "a.*?c", "a.*c", "a{2}", "a{1,3}b", "a{2,}", "(?:ab?){2}", "a?b?c", "(?P<x>a+)(?P<y>b*)c", "ba$", r"\Aab", "a(?=b)",
    "(?P<x>[ab])+c", "a(?=(?P<x>b+)c)", "|a", "a|", r"[\]a^-]+", r"\x61\u0062", "(?s)a.b", "(?:a*)*b", "a|(?=b)",
]  # fmt: skip


def find(pattern: str, text: str, cuts: list[int]) -> Found | None:
    search = Search(Watch([Marker(None, pattern=compiled(pattern))]), 0, at_start=True)
    for upto in [*cuts, len(text)]:
        found = search.feed(text[:upto], 0)
        if found is not None:
            return found
        assert 0 <= search.hold <= upto
    return search.finish()


@pytest.mark.parametrize("pattern", PATTERNS)
@given(text=st.text(alphabet="abc \n]", max_size=12), cut=st.lists(st.integers(0, 12), max_size=4))
@settings(max_examples=150, deadline=None)
def test_patterns_find_what_re_finds(pattern: str, text: str, cut: list[int]) -> None:
    expected = re.compile(pattern, re.DOTALL).search(text)
    if pattern == "ba$" and text.endswith("\n"):
        return  # `$` is the very end here
    found = find(pattern, text, sorted(at for at in cut if at <= len(text)))
    if expected is None:
        assert found is None
        return
    assert found is not None
    assert (found.start, found.end) == expected.span()
    assert found.groups == {
        name: expected.span(name) for name, value in expected.groupdict().items() if value is not None
    }


@given(
    literals=st.lists(st.text(alphabet="ab<", min_size=1, max_size=4), min_size=1, max_size=4, unique=True),
    text=st.text(alphabet="ab<", max_size=14),
)
@settings(max_examples=300, deadline=None)
def test_of_literals_the_first_and_then_the_longest_is_found(literals: list[str], text: str) -> None:
    expected = re.search("|".join(map(re.escape, sorted(literals, key=len, reverse=True))), text)
    for watch in (
        Watch([Marker(None, tuple(literals))]),
        Watch([Marker(None, (literal,)) for literal in literals]),
        Watch([Marker(None, pattern=compiled(re.escape(literal))) for literal in literals]),
    ):
        for size in (1, 3, 20):
            search = Search(watch, 0, at_start=True)
            found = None
            for upto in range(size, len(text) + size, size):
                found = found or search.feed(text[:upto], 0)
            found = found or search.finish()
            assert (found and (found.start, found.end)) == (expected and expected.span())


@pytest.mark.parametrize(
    "pattern",
    ["(a", "a)", "[a", "*a", "a**", "a++", r"(a)\1", "(?<=a)b", "(?<!a)b", "(?!a)b", "(?=a)b", "(?i)a", "(?>a)", r"\ba",
     "a{1001}", "a{3,2}", "(?:a{100}){100}", "(?:(?:(?:){999}){999}){999}", "(" * 3000, "((((" * 20 + "a", "a\\",
     r"\xzz", "[b-a]"],
)  # fmt: skip
def test_other_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot be used"):
        Pattern(pattern, {})


def test_a_class_takes_a_special_token_by_the_first_character_of_its_name() -> None:
    symbols = {"<|x|>": "\udc00"}
    for source, matches in ((r"[^<]*b", False), ("a.*b", True), (r"a<\|x\|>b", True), (r"a<\|y\|>b", False)):
        search = Search(Watch([Marker(None, pattern=Pattern(source, symbols))]), 0, at_start=True)
        found = search.feed("a\udc00b", 0) or search.finish()
        assert (found is not None and found.start == 0) == matches, source
