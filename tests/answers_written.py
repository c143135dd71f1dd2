"""Calls as each form writes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Arguments = Mapping[str, Any]
Calls = Sequence[tuple[str, Arguments]]


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def objects(calls: Calls, key: str = "arguments") -> list[str]:
    return [f'{{"name": {as_json(name)}, "{key}": {as_json(arguments)}}}' for name, arguments in calls]


def hermes(calls: Calls) -> str:
    return "\n".join(f"<tool_call>\n{one}\n</tool_call>" for one in objects(calls))


def qwen_xml(calls: Calls) -> str:
    return "\n".join(
        f"<tool_call>\n<function={name}>\n"
        + "".join(f"<parameter={key}>\n{plain(value)}\n</parameter>\n" for key, value in arguments.items())
        + "</function>\n</tool_call>"
        for name, arguments in calls
    )


def plain(value: Any) -> str:
    return value if isinstance(value, str) else as_json(value)


def glm(calls: Calls) -> str:
    return "\n".join(
        f"<tool_call>{name}\n"
        + "".join(
            f"<arg_key>{key}</arg_key>\n<arg_value>{plain(value)}</arg_value>\n" for key, value in arguments.items()
        )
        + "</tool_call>"
        for name, arguments in calls
    )


def llama_json(calls: Calls) -> str:
    return "; ".join(objects(calls, "parameters"))


def llama_pythonic(calls: Calls) -> str:
    listed = (f"{name}({', '.join(f'{k}={v!r}' for k, v in arguments.items())})" for name, arguments in calls)
    return f"[{', '.join(listed)}]"


def mistral(calls: Calls) -> str:
    return "".join(f"[TOOL_CALLS]{name}[ARGS]{as_json(arguments)}" for name, arguments in calls)


def mistral_list(calls: Calls) -> str:
    with_ids = [one[:-1] + ', "id": "Xy9012345"}' for one in objects(calls)]
    return f"[TOOL_CALLS] [{', '.join(with_ids)}]"


def deepseek_r1(calls: Calls) -> str:
    each = (
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{as_json(arguments)}\n```<｜tool▁call▁end｜>"
        for name, arguments in calls
    )
    return "<｜tool▁calls▁begin｜>" + "\n".join(each) + "<｜tool▁calls▁end｜>"


def deepseek_v31(calls: Calls) -> str:
    each = (f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{as_json(a)}<｜tool▁call▁end｜>" for name, a in calls)
    return "<｜tool▁calls▁begin｜>" + "".join(each) + "<｜tool▁calls▁end｜>"


def kimi(calls: Calls) -> str:
    each = (
        f"<|tool_call_begin|>functions.{name}:{i}<|tool_call_argument_begin|>{as_json(a)}<|tool_call_end|>"
        for i, (name, a) in enumerate(calls)
    )
    return "<|tool_calls_section_begin|>" + "".join(each) + "<|tool_calls_section_end|>"


def dsml(section: str, blank: str = "") -> Callable[[Calls], str]:
    def parameter(key: str, value: Any) -> str:
        is_text = as_json(isinstance(value, str))
        return f'<｜DSML｜{blank}parameter name="{key}" string="{is_text}">{plain(value)}</｜DSML｜{blank}parameter>\n'

    def write(calls: Calls) -> str:
        each = (
            f'<｜DSML｜{blank}invoke name="{name}">\n'
            + "".join(parameter(key, value) for key, value in arguments.items())
            + f"</｜DSML｜{blank}invoke>\n"
            for name, arguments in calls
        )
        return f"<｜DSML｜{blank}{section}>\n{''.join(each)}</｜DSML｜{blank}{section}>"

    return write


K3_TYPES = {str: "string", dict: "object", list: "array", int: "number", float: "number", bool: "boolean"}


def kimi_k3(calls: Calls) -> str:
    def argument(key: str, value: Any) -> str:
        kind = K3_TYPES.get(type(value), "null")
        return f'<|open|>argument key="{key}" type="{kind}"<|sep|>{plain(value)}<|close|>argument<|sep|>'

    each = (
        f'<|open|>call tool="{name}" index="{i}"<|sep|>'
        + "".join(argument(key, value) for key, value in arguments.items())
        + "<|close|>call<|sep|>"
        for i, (name, arguments) in enumerate(calls, 1)
    )
    return f"<|open|>tools<|sep|>{''.join(each)}<|close|>tools<|sep|>"


def harmony(calls: Calls) -> str:
    return "<|start|>assistant".join(
        f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{as_json(arguments)}<|call|>"
        for name, arguments in calls
    )


def harmony_recipient_first(calls: Calls) -> str:
    return "".join(
        f"<|start|>assistant to=functions.{name}<|channel|>commentary json<|message|>{as_json(arguments)}<|call|>"
        for name, arguments in calls
    )


def gemma(value: Any) -> str:
    if isinstance(value, str):
        return f'<|"|>{value}<|"|>'
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{gemma(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(gemma, value)) + "]"
    return as_json(value)


def gemma4(calls: Calls) -> str:
    return "".join(f"<|tool_call>call:{name}{gemma(arguments)}<tool_call|>" for name, arguments in calls)


def phi4(calls: Calls) -> str:
    return f"<|tool_call|>[{', '.join(objects(calls))}]<|/tool_call|>"


def phi4_functools(calls: Calls) -> str:
    return f"functools[{', '.join(objects(calls))}]"


def granite(calls: Calls) -> str:
    return f"<|tool_call|>[{', '.join(objects(calls))}]"


THINK = "<think>\n{}\n</think>\n\n"

WRITTEN: dict[str, tuple[str, Callable[[Calls], str], str]] = {
    "hermes": ("hermes", hermes, THINK),
    "qwen-xml": ("qwen-xml", qwen_xml, THINK),
    "llama-json": ("llama-json", llama_json, ""),
    "llama-pythonic": ("llama-pythonic", llama_pythonic, ""),
    "mistral": ("mistral", mistral, "[THINK]{}[/THINK]"),
    "mistral-list": ("mistral-list", mistral_list, "[THINK]{}[/THINK]"),
    "deepseek-r1": ("deepseek-r1", deepseek_r1, THINK),
    "deepseek-v3.1": ("deepseek-v3.1", deepseek_v31, THINK),
    "deepseek-v3.2": ("deepseek-v3.2", dsml("function_calls"), THINK),
    "deepseek-v4": ("deepseek-v4", dsml("tool_calls"), THINK),
    "deepseek-v4.1": ("deepseek-v4.1", dsml("calls", " "), THINK),
    "kimi-k3": ("kimi-k3", kimi_k3, "<|open|>think<|sep|>{}<|close|>think<|sep|>"),
    "glm": ("glm", glm, THINK),
    "kimi": ("kimi", kimi, THINK),
    "harmony": ("harmony", harmony, "<|channel|>analysis<|message|>{}<|end|><|start|>assistant"),
    "harmony, recipient first": (
        "harmony",
        harmony_recipient_first,
        "<|channel|>analysis<|message|>{}<|end|>",
    ),
    "gemma4": ("gemma4", gemma4, "<|channel>thought\n{}<channel|>"),
    "phi4": ("phi4", phi4, THINK),
    "phi4, functools": ("phi4", phi4_functools, THINK),
    "granite": ("granite", granite, THINK),
    "granite-4": ("granite-4", hermes, THINK),
    "generic": ("generic", hermes, THINK),
}
"""Form, how it writes calls, and how it writes reasoning (empty: it has none)."""
