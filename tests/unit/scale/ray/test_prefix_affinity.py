"""Which replica has seen the beginning of a prompt."""

from __future__ import annotations

from drivetrain.core.parameters import build_request
from drivetrain.scale.ray.prefix_affinity import BLOCK_CHARS, MAX_LEAD, MAX_PREFIX_BLOCKS, PrefixAffinity, prefix_of

LONG = "All happy families are alike. " * 100


def prefix(**request: object) -> tuple[int, ...]:
    return prefix_of(build_request(request))


def test_what_begins_alike_has_the_same_first_blocks() -> None:
    one, other = prefix(prompt=LONG + "one"), prefix(prompt=LONG[: 4 * BLOCK_CHARS] + "other " * 100)
    assert one[:4] == other[:4]
    assert not set(one[4:]) & set(other[4:])
    assert prefix(prompt="short") == ()
    assert len(prefix(prompt=LONG * 100)) == MAX_PREFIX_BLOCKS


def test_a_salt_and_a_role_are_part_of_it() -> None:
    assert not set(prefix(prompt=LONG)) & set(prefix(prompt=LONG, cache_salt="a tenant"))
    user, system = ([{"role": role, "content": LONG}] for role in ("user", "system"))
    assert prefix(messages=user) != prefix(messages=system)
    assert len(prefix(prompt_token_ids=list(range(1000)))) > 4


def test_tools_are_part_of_it_but_take_no_blocks() -> None:
    """Those that the model is told of. However many an agent has, its conversations are told apart."""

    def agent(said: str, about: str = LONG, **fields: object) -> tuple[int, ...]:
        tools = [{"type": "function", "function": {"name": f"f{i}", "description": about}} for i in range(20)]
        return prefix(messages=[{"role": "user", "content": said}], tools=tools, **fields)

    one, other = agent(LONG), agent("A house divided against itself. " * 100)
    assert len(one) == len(LONG) // BLOCK_CHARS
    assert not set(one) & set(other)
    assert not set(one) & set(agent(LONG, about="Other. " * 400))
    assert agent(LONG + "and so on" * 100)[: len(one)] == one
    assert agent(LONG, tool_choice="none") == prefix(messages=[{"role": "user", "content": LONG}])


def test_calls_are_part_of_a_message() -> None:
    def after_call(name: str, arguments: str) -> tuple[int, ...]:
        call = {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}
        asked = {"role": "assistant", "content": None, "tool_calls": [call]}
        return prefix(messages=[asked, {"role": "tool", "tool_call_id": "c", "content": LONG}])

    assert after_call("f", '{"a": 1}') == after_call("f", '{"a": 1}')
    assert not set(after_call("f", '{"a": 1}')) & set(after_call("f", '{"a": 2}'))
    assert not set(after_call("f", '{"a": 1}')) & set(after_call("g", '{"a": 1}'))


def test_the_longest_beginning_wins_while_the_load_allows() -> None:
    seen = PrefixAffinity()
    seen.note((1, 2), "a")
    seen.note((1, 2, 3), "b")
    seen.note((1,), "a")
    assert seen.choose((1, 2, 3, 4), {"a": 0, "b": 0}) == "b"
    assert seen.choose((1, 9), {"a": 0, "b": 0}) == "a"
    assert seen.choose((7, 8), {"a": 0, "b": 0}) is None
    assert seen.choose((1, 2, 3), {"a": 0, "b": MAX_LEAD - 1}) == "b"
    assert seen.choose((1, 2, 3), {"a": 0, "b": MAX_LEAD}) is None
    assert seen.choose((1, 2, 3), {"a": 0}) == "a"


def test_the_oldest_are_forgotten() -> None:
    seen = PrefixAffinity(max_blocks=3)
    seen.note((1, 2, 3), "a")
    seen.note((4,), "b")
    assert seen.choose((1,), {"a": 0, "b": 0}) is None
    assert seen.choose((2,), {"a": 0, "b": 0}) == "a"
