"""Fields of a `response_template` that are read as a whole: their text is kept until they close."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drivetrain.core.answer import ExtraField, Flaw
from drivetrain.text.answers.forms import Field, Part, Region
from drivetrain.text.answers.schemas import ToolSchemas, cast
from drivetrain.text.answers.strings import is_utf8, json_text
from drivetrain.text.answers.writers import CallWriter, Emit, TextWriter


class WholeFields:
    """Gives out the values of fields, as the parts of the message that they are."""

    def __init__(self, emit: Emit, texts: Mapping[Part, TextWriter], calls: CallWriter, tools: ToolSchemas) -> None:
        self._emit = emit
        self._texts = texts
        self._calls = calls
        self._tools = tools
        self._extra: dict[str, Any] = {}

    def open(self, region: Region, groups: dict[str, str]) -> WholeBody:
        assert region.field is not None
        return WholeBody(self, region, region.field, groups)

    def close(self, region: Region, value: Any, flaw: Flaw, raw: str) -> None:
        if region.part is Part.CALLS:
            for call in value if isinstance(value, list) else [value]:
                self._call(call, flaw, raw)
        elif region.part is Part.EXTRA:
            self._extra_field(region, value)
        elif value not in (None, [], {}):
            text = self._texts[region.part]
            text.segment(strips=False, join=region.join)
            is_plain = isinstance(value, str) and is_utf8(value)
            text.write(value if is_plain else json_text(value) or "")

    def _call(self, call: Any, flaw: Flaw, raw: str) -> None:
        function = call.get("function") if isinstance(call, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(name, str) or not is_utf8(name):
            self._calls.spoil(flaw, raw)
            return
        arguments = self._arguments(name, function.get("arguments"))
        self._calls.begin(name)
        if arguments is None:
            self._calls.spoil(flaw, raw)
        else:
            self._calls.arguments(arguments)
            self._calls.end()

    def _arguments(self, name: str, arguments: Any) -> str | None:
        """As the text of a JSON object, cast as the tool's schema says."""
        if not isinstance(arguments, Mapping):
            return None
        values = dict(arguments)
        for key, value in values.items():
            types = self._tools.types(name, key)
            if isinstance(value, str):
                values[key] = cast(value, types)
            elif isinstance(value, list) and types and "array" not in types:
                values[key] = [cast(item, types) if isinstance(item, str) else item for item in value]
        return json_text(values)

    def _extra_field(self, region: Region, value: Any) -> None:
        before = self._extra.get(region.name)
        if region.join is not None:
            joins = isinstance(before, str) and isinstance(value, str)
            value = f"{before}{region.join}{value}" if joins else value
        elif region.repeats:
            value = [*(before or ()), value]
        self._extra[region.name] = value
        if before is not None or value not in (None, "", [], {}):
            self._emit(ExtraField(region.name, value))


class WholeBody:
    """The text of one field, until it closes."""

    def __init__(self, fields: WholeFields, region: Region, field: Field, groups: dict[str, str]) -> None:
        self._fields = fields
        self._region = region
        self._field = field
        self._groups = groups
        self._parts: list[str] = []

    def write(self, text: str) -> None:
        self._parts.append(text)

    def close(self, flaw: Flaw, raw: str) -> None:
        body = "".join(self._parts)
        try:
            value = self._field.read(body, self._groups)
        except ValueError:
            value = None if self._region.part is Part.CALLS else body
        self._fields.close(self._region, value, flaw, raw)
