"""Which headers are a place in a trace. What is none must not reach another server's request."""

from __future__ import annotations

import pytest

from drivetrain.telemetry.w3c import MAX_STATE_CHARS, MAX_STATE_MEMBERS, trace_context

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize(
    "parent", [PARENT, f"00-{TRACE}-{SPAN}-00", f"01-{TRACE}-{SPAN}-01", f"cc-{TRACE}-{SPAN}-01-more"]
)
def test_a_good_parent_is_kept_as_it_is(parent: str) -> None:
    assert trace_context({"TraceParent": f" {parent}\t", "cookie": "a=b"}) == {"traceparent": parent}


@pytest.mark.parametrize(
    "parent",
    ["", "nonsense", "00-0-0-01", PARENT.upper(), "ff" + PARENT[2:], PARENT + "-more", PARENT + "\n",
     PARENT + "\r\nx: 1", f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01", f"00-{TRACE}-{SPAN}-0１",
     f"01-{TRACE}-{SPAN}-01-\r\nx: 1", f"01-{TRACE}-{SPAN}-01-{'x' * 999}"],
)  # fmt: skip
def test_a_bad_parent_is_none(parent: str) -> None:
    assert trace_context({"traceparent": parent, "tracestate": "vendor=x"}) is None


@pytest.mark.parametrize("headers", [None, {}, {"tracestate": "vendor=x"}, {"baggage": "user=me"}])
def test_without_a_parent_there_is_nothing(headers: dict[str, str] | None) -> None:
    assert trace_context(headers) is None


@pytest.mark.parametrize(
    "state", ["vendor=x", "a@b=1, c=2", "a=b,,c=d", "a=" + "x" * 256, ",".join(f"a{i}=b" for i in range(32))]
)
def test_a_good_state_goes_along(state: str) -> None:
    assert trace_context({"traceparent": PARENT, "tracestate": state}) == {"traceparent": PARENT, "tracestate": state}


@pytest.mark.parametrize(
    "state",
    ["", "no equals", "UPPER=x", "a=\x7f", "=x", "a=b\r\nx: 1", "a=b\n", "a=ä", "a=" + "x" * 257,
     ",".join(f"a{i}=b" for i in range(MAX_STATE_MEMBERS + 1)), "a=b," + " " * MAX_STATE_CHARS + "c=d"],
)  # fmt: skip
def test_a_bad_state_is_left_out(state: str) -> None:
    assert trace_context({"traceparent": PARENT, "tracestate": state}) == {"traceparent": PARENT}
