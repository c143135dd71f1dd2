"""Hostile templates end in bounded time and memory, and the object still works; nothing of Python can be reached."""

from __future__ import annotations

import itertools
import resource
import time

import pytest

from drivetrain.core.errors import InvalidRequest, LoadFailed
from drivetrain.core.messages import Message, TextPart
from drivetrain.text.templates import MAX_SOURCE_CHARS, ChatTemplate

CALM = (Message("user", (TextPart("calm"),)),)
HOSTILE = (Message("user", (TextPart("hostile"),)),)


def template(source: str, **options: object) -> ChatTemplate:
    return ChatTemplate(source, special_tokens={}, special_strings=frozenset(), **options)  # type: ignore[arg-type]


def armed(attack: str, head: str = "") -> str:
    """A template that attacks when it is told to, so that its next rendering can be an ordinary one."""
    return (
        head + "{% if messages[0].content == 'hostile' %}" + attack + "{% else %}{{ messages[0].content }}{% endif %}"
    )


DOUBLE = "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = STEP %}{% endfor %}{{ ns.x }}"
NEST = "{% set ns = namespace(x=['a'], y=['a']) %}{% for i in range(60) %}{% set ns.x = STEP %}{% endfor %}USE"
DAG = NEST.replace("STEP", "[ns.x, ns.x, ns.x]").replace(
    "{% endfor %}", "{% set ns.y = [ns.y, ns.y, ns.y] %}{% endfor %}"
)
TUPLES = NEST.replace("STEP", "(ns.x, ns.x)").replace("x=['a']", "x=('a',)")
BIG = "{% set big = 'x' * 4000000 %}"
LOOP = "{% for i in range(100000) %}BODY{% endfor %}"

BLOWUPS = {
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "loops that pass nothing": "{% for a in range(99999) %}{% for b in range(99999) if false %}{% endfor %}"
    "{% endfor %}",
    "output": LOOP.replace("BODY", "{{ 'x' * 100000 }}"),
    "captured output": "{% set out %}" + BIG + LOOP.replace("BODY", "{{ big }}") + "{% endset %}",
    "captured literal text": "{% set out %}" + LOOP.replace("BODY", "y" * 20_000) + "{% endset %}",
    "filter block": BIG + "{% filter upper %}" + LOOP.replace("BODY", "{{ big }}") + "{% endfilter %}",
    "call block": "{% macro m() %}"
    + LOOP.replace("BODY", "{{ caller() }}")
    + "{% endmacro %}{% call m() %}"
    + "z" * 20_000
    + "{% endcall %}",
    "kept slices": BIG + "{% set ns = namespace(x=[]) %}" + LOOP.replace("BODY", "{% set ns.x = ns.x + [big[i:]] %}"),
    "kept copies": BIG + "{% set ns = namespace(x=[]) %}" + LOOP.replace("BODY", "{% set ns.x = [ns.x, big ~ i] %}"),
    "tilde": DOUBLE.replace("STEP", "ns.x ~ ns.x"),
    "plus": DOUBLE.replace("STEP", "ns.x + ns.x"),
    "plus on lists": DOUBLE.replace("STEP", "ns.x + ns.x").replace("'ab'", "[1]"),
    "times": "{{ 'a' * 10 ** 9 }}",
    "times a list": "{{ ([0] * 10 ** 9) | length }}",
    "times in turn": "{{ (10 ** 9) * 'a' }}",
    "numbers": DOUBLE.replace("STEP", "ns.x * ns.x").replace("'ab'", "99"),
    "powers": "{{ 10 ** 10 ** 9 }}",
    "powers of powers": DOUBLE.replace("STEP", "ns.x ** 9").replace("'ab'", "9"),
    "rounding": "{{ 1.5 | round(10 ** 9, 'ceil') }}",
    "bytes of numbers": "{{ (1).to_bytes(10 ** 9, 'big') }}",
    "ljust": "{{ 'a'.ljust(10 ** 9) }}",
    "center": "{{ 'a'.center(10 ** 9) }}",
    "zfill": "{{ 'a'.zfill(10 ** 9) }}",
    "expandtabs": "{{ '\\t'.expandtabs(tabsize=10 ** 9) }}",
    "method replace": DOUBLE.replace("STEP", "ns.x.replace('a', ns.x)"),
    "replace nothing": BIG + "{{ big.replace('', big) }}",
    "filter replace": DOUBLE.replace("STEP", "ns.x | replace('a', ns.x)"),
    "method join": BIG + "{{ big.join(['a', 'b', 'c', 'd']) }}",
    "method join of a filter": BIG + "{{ ''.join([big, big, big] | map('string')) }}",
    "filter join": BIG + "{{ [big, big, big] | join }}",
    "format": "{{ '{:>1000000000}'.format('a') }}",
    "format by item": "{{ '{:>1000000000}'['format']('a') }}",
    "format_map": "{{ '{a:>1000000000}'.format_map({'a': 1}) }}",
    "percent": "{{ '%1000000000d' % 1 }}",
    "format filter": "{{ '%1000000000d' | format(1) }}",
    "center filter": "{{ 'a' | center(10 ** 9) }}",
    "indent filter": "{{ ('a\\n' * 1000) | indent(10 ** 9) }}",
    "indent by text": BIG + "{{ 'a\\nb\\nc\\n' | indent(big) }}",
    "tojson indent": "{{ [[[1]]] | tojson(indent=10 ** 9) }}",
    "tojson separators": BIG + "{{ [1, 2, 3, 4] | tojson(separators=(big, big)) }}",
    "tojson of shared lists": DAG.replace("USE", "{{ ns.x | tojson }}"),
    "printing shared lists": DAG.replace("USE", "{{ ns.x }}"),
    "joining shared lists": DAG.replace("USE", "{{ '' ~ ns.x }}"),
    "comparing shared lists": DAG.replace("USE", "{{ ns.x == ns.y }}"),
    "testing shared lists": DAG.replace("USE", "{{ ns.x is eq ns.y }}"),
    "selecting shared lists": DAG.replace("USE", "{{ [ns.x] | select('eq', ns.y) | list | length }}"),
    "selecting what a list holds": "{{ ([1] * 60000) | select('in', [2] * 60000) | list | length }}",
    "rejecting, selecting": "{{ ([1] * 60000) | map('abs') | reject('ne', 1) | select('in', [2] * 60000) | first }}",
    "finding shared lists": DAG.replace("USE", "{{ [ns.x].index(ns.y) }}"),
    "counting lists": DAG.replace("range(60)", "range(12)").replace("USE", "{{ ([ns.x] * 20000).count(ns.y) }}"),
    "searching shared lists": DAG.replace("USE", "{{ ns.x in [ns.y] }}"),
    "shared lists in upper case": DAG.replace("USE", "{{ ns.x | upper }}"),
    "shared lists in views": DAG.replace("USE", "{{ {'a': ns.x}.items() }}"),
    "hashing shared tuples": TUPLES.replace("USE", "{{ {ns.x: 1} }}"),
    "keyed by shared tuples": TUPLES.replace("USE", "{{ {}[ns.x] }}{{ {}.get(ns.x) }}"),
    "unique shared tuples": TUPLES.replace("USE", "{{ [ns.x] | unique | list }}"),
    "batch": "{{ [1] | batch(10 ** 9, 0) | list | length }}",
    "slice": "{{ [1] | slice(10 ** 9) | list | length }}",
    "map": BIG + "{{ range(100000) | map('replace', '0', big) | list | length }}",
    "lowercase while sorting": BIG + "{{ ([''] * 100000) | map('default', big, true) | sort }}",
    "chains": LOOP.replace("BODY", "{{ range(100000) | map('string') | select | list | length }}"),
    "shadowed guards": "{% set _tick = range %}{% set _joined = range %}" + DOUBLE.replace("STEP", "ns.x ~ ns.x"),
    "strftime": LOOP.replace("BODY", "{{ strftime_now('%c' * 100) }}"),
    "macro recursion": "{% macro m(x) %}{{ m(x) }}{{ m(x) }}{% endmacro %}{{ m(1) }}",
    "wide macro recursion": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}"
    "{{ m(60) }}",
    "recursive loop": "{% for a in [[1]] recursive %}{{ loop([a, a]) }}{% endfor %}",
    "block recursion": "{% block b %}{{ self.b() }}{{ self.b() }}{% endblock %}",
    "range": "{{ range(10 ** 12) | list | length }}",
    "lists of characters": BIG + "{{ big | list | length }}",
    "splitting": BIG + "{{ big.split('x') | length }}",
    "nested filters": "{% set ns = namespace(x=['a']) %}"
    + LOOP.replace("BODY", "{% set ns.x = ns.x | map('string') %}")
    + LOOP.replace("BODY", "{% set ns.x = ns.x | map('string') %}")
    + "{% set ns.x = 1 %}"
    + LOOP.replace("BODY", LOOP),
    "deep lists": NEST.replace("range(60)", "range(90000)").replace("STEP", "[ns.x]").replace("USE", "{{ ns.x }}"),
    "stripping by a text": BIG + "{{ big.strip('y' * 4000000 ~ 'x') }}",
    "trimming by a text": BIG + "{{ big | trim('y' * 4000000 ~ 'x') }}",
    "formatting by a test": "{{ '%1000000000d' is odd }}",
    "formatting by another test": "{{ '%1000000000s' is divisibleby('a') }}",
    "rounding a text": "{{ 'abcdefgh' | round(8, 'floor') }}",
    "dividing numbers": "{% set a = ('f' * 7000000) | int(0, 16) %}{{ a // ('f' * 3500000) | int(0, 16) }}",
    "dividing by a test": "{{ 0x" + "f" * 200_000 + " is divisibleby(0x" + "f" * 40_000 + ") }}",
    "dividing long literals": "{{ 0x" + "f" * 200_000 + " // 0x" + "f" * 40_000 + " }}",
    "a long path": "{{ ([1] * 1000) | map(attribute='a.' * 2000000 ~ 'a', default='') | list | length }}",
    "sorting a loop": BIG
    + "{% for x in [big ~ 'a', big ~ 'b'] * 50000 %}{{ loop | sort(case_sensitive=true) | length }}{% endfor %}",
    "searching a loop": BIG + "{% for x in [big ~ 'a'] * 100000 %}{{ (big ~ 'b', loop) in loop }}{% endfor %}",
    "searching a loop by a test": BIG
    + "{% for x in [big ~ 'a'] * 100000 %}{{ (big ~ 'b', loop) is in(loop) }}{% endfor %}",
    "words of a title": "{{ 'a ' * 3900000 | title }}{{ ('a ' * 3900000) | title }}",
    "nothing but time": LOOP.replace("BODY", "{% for j in range(99999) %}{% set x = messages %}{% endfor %}"),
}

ESCAPES = [
    "{{ ''.__class__ }}",
    "{{ ''['__class__'] }}",
    "{{ ('' | attr('__class__')).mro() }}",
    "{{ [''] | map(attribute='__class__') | list }}",
    "{{ messages.__class__.__mro__ }}",
    "{{ raise_exception.__globals__ }}",
    "{{ strftime_now.__globals__ }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ range.__self__ }}",
    "{{ self._TemplateReference__context.environment }}",
    "{{ loop.__init__ }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ messages.append(1) }}",
    "{{ messages.clear() }}",
    "{{ messages[0].update({'a': 1}) }}",
    "{{ messages[0].pop('content') }}",
    "{{ messages.sort() }}",
    "{{ lipsum() }}",
    "{{ 'a'.encode() }}",
    "{{ messages[0]['nothing'].more }}",
]


def loaded(source: str, **options: object) -> ChatTemplate | None:
    """The template, or nothing where a filter that does not exist failed the load already."""
    try:
        return template(source, **options)
    except LoadFailed:
        return None


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


ENDED_BY_TIME = {
    "chains", "loops that pass nothing", "nested filters", "nested loops", "rejecting, selecting",
    "selecting what a list holds", "wide macro recursion",
}  # fmt: skip
"""They would take all the time there is, so they get less than a server's two seconds."""


@pytest.mark.parametrize("name", BLOWUPS)
def test_an_attack_ends_soon_and_the_next_rendering_works(name: str) -> None:
    attack = BLOWUPS[name]
    whole = "{% block" in attack
    hostile = loaded(attack if whole else armed(attack), **{"max_seconds": 0.3} if name in ENDED_BY_TIME else {})
    if hostile is None:
        return
    before, began = peak_mb(), time.thread_time()
    with pytest.raises(InvalidRequest) as caught:
        hostile.render(HOSTILE)
    assert time.thread_time() - began < 5
    assert peak_mb() - before < 700
    assert caught.value.param == "messages"
    assert len(caught.value.message) < 600
    assert "\n" not in caught.value.message
    assert whole or hostile.render(CALM).text == "calm"


@pytest.mark.parametrize("attack", ESCAPES)
def test_nothing_of_python_can_be_reached_or_changed(attack: str) -> None:
    hostile = loaded(armed(attack))
    if hostile is None:
        return
    try:
        shown = hostile.render(HOSTILE).text
    except InvalidRequest as exc:
        shown = exc.message.partition("fails on these messages")[0]
    assert shown in {"", "[Undefined]", "the model's chat template "}
    assert hostile.render(CALM).text == "calm"


def test_reaching_for_internals_prints_nothing() -> None:
    for source in ("{{ ''.format is defined }}", "{{ messages.append is defined }}", "{{ ''.__class__ is defined }}"):
        assert template(source).render(CALM).text == "False"


@pytest.mark.parametrize(
    "source",
    [
        "{% include 'other' %}",
        "{% import 'other' as other %}",
        "{% from 'other' import a %}",
        "{% extends 'other' %}",
        "{{ 'x' | no_such_filter }}",
        "{{ 'x' is no_such_test }}",
        "{% for %}",
        "{{",
        "{% no_such_tag %}",
        "{% if true %}",
        "{{ " + "(" * 50_000,
        "{{ " + "[" * 50_000,
        "{{ " + "not " * 50_000 + "a }}",
        "{{ a" + ".b" * 100_000 + " }}",
        "{{ a" + " + a" * 50_000 + " }}",
        "{{ a" + " | e" * 5_000 + " }}",
        "{% for a in b %}" * 200 + "{% endfor %}" * 200,
        "{% if a %}" + "{% elif a %}" * 20_000 + "{% endif %}",
        "{{ 9" + "9" * 100_000 + " }}",
        "x" * (MAX_SOURCE_CHARS + 1),
        "{{ a\x00 }}",
    ],
    ids=lambda source: source[:24].replace("\x00", "0"),
)
def test_a_template_that_cannot_be_compiled_fails_the_load(source: str) -> None:
    began = time.thread_time()
    with pytest.raises(LoadFailed) as caught:
        template(source)
    assert time.thread_time() - began < 5
    assert len(caught.value.message) < 600
    assert "\n" not in caught.value.message
    assert "family" in caught.value.message


def test_the_longest_template_compiles_soon() -> None:
    began = time.thread_time()
    template("{{ a }}" * (MAX_SOURCE_CHARS // 7))
    assert time.thread_time() - began < 15


def test_time_is_read_from_the_clock() -> None:
    ticks = itertools.count()
    slow = template("{% for i in range(1000) %}{% endfor %}x", clock=lambda: next(ticks) * 0.1)
    with pytest.raises(InvalidRequest, match="limit of time"):
        slow.render(CALM)


def test_a_long_conversation_stays_within_the_bounds() -> None:
    source = (
        "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('no') }}{% endif %}"
        "{% if loop.index0 == messages | length - 1 and m in messages %}!{% endif %}"
        "{{ '<' + m['role'] + '>' + m['content'] | trim }}{% endfor %}"
    )
    chat = [Message(("user", "assistant")[i % 2], (TextPart("word " * 780),)) for i in range(1024)]
    text = template(source).render(chat).text
    assert text.count("<user>") == 512
    assert len(text) > 3_900_000
