"""A setting says what it takes, names itself where it is stated wrongly, and is declared once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from drivetrain.core.errors import InvalidSetting
from drivetrain.core.kinds import Boolean, Integer, Kind, ListOf, Matching, Number, String, Table
from drivetrain.core.settings import Setting, declarations, setting
from drivetrain.worker.settings import Group, SettingsTable

SIZE = Setting(Integer(1, 8), "how many", default=4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    size: int = setting(SIZE)
    told: str = "no setting"


def test_a_class_of_settings_is_its_declaration() -> None:
    assert declarations(Sized) == {"size": SIZE}
    assert Sized().size == 4


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (Integer(1, 8), 9, "is 9; it must be from 1 to 8"),
        (Integer(1, 8), True, "must be an integer, not True"),
        (Number(0, 1), float("nan"), "is nan; it must be from 0 to 1"),
        (
            Matching("auto|cuda(:[0-9]+)?", "auto, cuda or cuda:N"),
            "cuda:x",
            "must be auto, cuda or cuda:N, not 'cuda:x'",
        ),
        (Matching("auto", "auto"), "auto\n", "must be auto, not 'auto\\n'"),
        (Matching("auto", "auto"), 1, "must be auto, not 1"),
        (Table(), [1], "must be a table, or as text a JSON object, not a list of 1"),
        (Table(), {1: 2}, "must be a table, or as text a JSON object, not an object of 1 entries"),
    ],
)
def test_a_wrong_value_is_told_with_where_it_was_stated(kind: Kind, value: Any, words: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        Setting(kind, "").judge("size", value, "SIZE in the file")
    assert (caught.value.message, caught.value.param) == (f"SIZE in the file {words}", "size")


def test_an_integer_does_for_a_number() -> None:
    judged = Setting(Number(0, 9), "").judge("size", 5)
    assert (judged, type(judged)) == (5.0, float)


@pytest.mark.parametrize(
    ("one", "text"),
    [
        (Setting(Boolean(), "", default=True), "true"),
        (Setting(Number(0, 9), "", default=5.0), "5"),
        (Setting(Integer(), "", default=0), "0"),
        (Setting(ListOf(String()), "", default=()), ""),
        (Setting(String(), "", otherwise="the first one"), "the first one"),
    ],
)
def test_the_default_in_words(one: Setting, text: str) -> None:
    assert one.default_text == text


def test_engines_share_a_declaration_and_none_is_made_twice() -> None:
    table = SettingsTable({"a": {"size": SIZE}, "b": {"size": SIZE}})
    assert table.groups[Group.ENGINE] == {"size": SIZE}
    assert table.find("engine").meaning == "auto, a or b"
    for name, other in (("size", Setting(Integer(1, 9), "how many")), ("max_waiting", SIZE)):
        with pytest.raises(ValueError, match=f"{name} is declared twice"):
            SettingsTable({"a": {"size": SIZE}, "b": {name: other}})
