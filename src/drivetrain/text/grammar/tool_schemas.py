"""Judges the schema of each tool alone, so that a fault names the tool that has it."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from drivetrain.core.errors import InvalidRequest
from drivetrain.core.tokenizer import check_wanted
from drivetrain.core.tools import Tool
from drivetrain.text.answers.schemas import types_of
from drivetrain.text.grammar.calls import arguments_lark, callable_tools
from drivetrain.text.grammar.objects import CannotWrite
from drivetrain.text.grammar.room import Room, fit_schema
from drivetrain.text.grammar.rules import AnswerRules
from drivetrain.text.grammar.trial import MAX_REQUEST_CPU_S, Budget, Trial

KEPT = 5000
"""Verdicts: callers send the same tools again and again."""

TOGETHER = f"tools take more than {MAX_REQUEST_CPU_S:g} s to compile together; send fewer of them, or smaller ones"

ANY_ARGUMENTS = json.dumps({"type": "object"})


class ToolSchemaTrial:
    """`usable` blocks, and may be called from any thread."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._lock = threading.Lock()
        self._verdicts: OrderedDict[bytes, str] = OrderedDict()

    def usable(self, rules: AnswerRules, budget: Budget, room: Room) -> AnswerRules:
        """With only the tools that may be called. One whose schema cannot be honoured takes any object as arguments.

        Counts in the schemas that no answer in this `room` reaches are left out. Raises `InvalidRequest` for a strict
        one, by its name, and `Cancelled` if nobody waits any more.
        """
        tools: list[Tool] = []
        for tool in callable_tools(rules):
            check_wanted()
            fitting, fault = _fit(tool, room)
            fault = fault or self._verdict(rules, fitting, budget)
            if fault and budget.is_spent and not rules.is_free:
                raise InvalidRequest(TOGETHER, param="tools")
            if fault and tool.strict:
                what = f"the parameters of the tool {tool.name} cannot be honoured: {fault}"
                raise InvalidRequest(what, param="tools")
            tools.append(with_any_arguments(tool) if fault else fitting)
        return replace(rules, tools=tuple(tools))

    def _verdict(self, rules: AnswerRules, tool: Tool, budget: Budget) -> str:
        key = hashlib.sha256(f"{rules.form}\n{tool.parameters}".encode()).digest()
        with self._lock:
            if key in self._verdicts:
                self._verdicts.move_to_end(key)
                return self._verdicts[key]
        fault = self._try(rules, tool, budget)
        if budget.is_spent:
            return fault  # it may have had less time than it has alone
        with self._lock:
            self._verdicts[key] = fault
            if len(self._verdicts) > KEPT:
                self._verdicts.popitem(last=False)
        return fault

    def _try(self, rules: AnswerRules, tool: Tool, budget: Budget) -> str:
        try:
            return self._trial.run(arguments_lark(rules, tool), budget)
        except CannotWrite as exc:
            return str(exc)
        except RecursionError:
            return "it is nested too deeply"
        except (TypeError, ValueError, LookupError, AttributeError):
            return "it is no valid JSON schema"  # a keyword has a value that nothing can be made of


def _fit(tool: Tool, room: Room) -> tuple[Tool, str]:
    schema = json.loads(tool.parameters)
    fitting, fault = fit_schema(schema, room)
    if fault:
        return tool, f"it has {fault}"
    if any(types_of(value) != types_of(fitting.get("properties", {}).get(key)) for key, value in _properties(schema)):
        return tool, "it has a property whose types cannot be told from its schema as it stands"
    return (tool if fitting is schema else replace(tool, parameters=json.dumps(fitting))), ""


def _properties(schema: Any) -> Iterable[tuple[str, Any]]:
    """How the arguments are read depends on their types, as the caller's own schema tells them."""
    declared = schema.get("properties")
    return declared.items() if isinstance(declared, Mapping) else ()


def with_any_arguments(tool: Tool) -> Tool:
    return replace(tool, parameters=ANY_ARGUMENTS)
