"""The stop matcher against the plainest possible search."""

from hypothesis import given
from hypothesis import strategies as st

from drivetrain.text.stops import StopMatcher

ALPHABET = st.text("ab#", min_size=1, max_size=5)


def first_completed(text: str, stops: list[str]) -> tuple[int, str] | None:
    """The earliest end at which some stop is complete; of several that end there, the longest."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return end, max(ending, key=len)
    return None


@given(st.text("ab#", max_size=30), st.lists(ALPHABET, min_size=1, max_size=6))
def test_finds_what_a_plain_search_finds(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    state, found = matcher.ROOT, None
    for end, char in enumerate(text, 1):
        state = matcher.step(state, char)
        if (match := matcher.match(state)) is not None:
            found = (end, str(match))
            break
    assert found == first_completed(text, stops)


@given(st.text("ab#", max_size=20), st.lists(ALPHABET, min_size=1, max_size=6))
def test_depth_is_the_longest_suffix_that_may_still_become_a_stop(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    state = matcher.ROOT
    for char in text:
        state = matcher.step(state, char)
    suffixes = [n for n in range(len(text) + 1) if any(stop.startswith(text[len(text) - n :]) for stop in stops)]
    assert matcher.depth(state) == max(suffixes)


@given(st.text("ab#", max_size=20), st.lists(ALPHABET, min_size=1, max_size=6))
def test_growing_is_the_longest_suffix_that_is_not_yet_a_whole_stop(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    state = matcher.ROOT
    for char in text:
        state = matcher.step(state, char)
    ends = [text[len(text) - n :] for n in range(len(text) + 1)]
    growing = [len(end) for end in ends if any(stop.startswith(end) and stop != end for stop in stops)]
    assert matcher.growing(state) == max(growing, default=0)


def test_ten_thousand_stops_cost_one_pass() -> None:
    stops = [f"stop-{i:05d}!" for i in range(10_000)]
    matcher = StopMatcher(stops)
    state = matcher.ROOT
    for char in "stop-0999stop-09999!":
        state = matcher.step(state, char)
    assert matcher.match(state) == "stop-09999!"
