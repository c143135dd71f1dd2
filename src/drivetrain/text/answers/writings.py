"""How each form writes calls, by its name: as the chat templates of its models do."""

from __future__ import annotations

from dataclasses import replace

from drivetrain.text.answers.forms import NAME_HERE, CallWriting

_OBJECT = '{"name": "{name}", "arguments": '
_ANY = r"(.|\n)*"
_DEEPSEEK_MARKERS = ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>")

_HERMES = CallWriting(
    call=f"<tool_call>\n{_OBJECT}",
    ends="}\n</tool_call>",
    between="\n",
    markers=("<tool_call>",),
    goes_on=True,
)


def _dsml(section: str, blank: str = "") -> CallWriting:
    tag, end = f"<｜DSML｜{blank}", f"</｜DSML｜{blank}"
    return CallWriting(
        opens=f"{tag}{section}>\n",
        call=f'{tag}invoke name="{NAME_HERE}">\n',
        ends=f"{end}invoke>\n",
        between="",
        closes=f"{end}{section}>",
        markers=(f"{tag}{section}>", f"{tag}invoke"),
        gap="\n",
    )


WRITINGS: dict[str, CallWriting] = {
    "hermes": _HERMES,
    "generic": _HERMES,
    "qwen-xml": CallWriting(
        call="<tool_call>\n<function={name}>\n",
        ends="</function>\n</tool_call>",
        between="\n",
        markers=("<tool_call>", "<function="),
        goes_on=True,
        gap="\n",
        lines=True,
    ),
    "llama-json": CallWriting(
        call='{"name": "{name}", "parameters": ',
        ends="}",
        between="; ",
        begins='{"name": "',
        avoids=rf'({_ANY}[\n;])?\s*\{{\s*("type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*"[^"\\{{}}\n]+"\s*,\s*'
        rf'"(parameters|arguments)"\s*:\s*\{{{_ANY}|{_ANY}<\|python_tag\|>{_ANY}',
    ),
    "llama-pythonic": CallWriting(
        opens="[",
        call="{name}(",
        ends=")",
        between=", ",
        closes="]",
        avoids=rf"({_ANY}\n)?\s*\[\s*[A-Za-z_][\w.\-]*\(\s*(\)|[A-Za-z_]\w*\s*=[^=]){_ANY}",
    ),
    "mistral": CallWriting(call="[TOOL_CALLS]{name}[ARGS]", between="", markers=("[TOOL_CALLS]",)),
    "mistral-list": CallWriting(
        opens="[TOOL_CALLS][", call=_OBJECT, ends="}", between=", ", closes="]", markers=("[TOOL_CALLS]",)
    ),
    "deepseek-r1": CallWriting(
        opens="<｜tool▁calls▁begin｜>",
        call="<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n",
        ends="\n```<｜tool▁call▁end｜>",
        between="\n",
        closes="<｜tool▁calls▁end｜>",
        markers=_DEEPSEEK_MARKERS,
    ),
    "deepseek-v3.1": CallWriting(
        opens="<｜tool▁calls▁begin｜>",
        call="<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>",
        ends="<｜tool▁call▁end｜>",
        between="",
        closes="<｜tool▁calls▁end｜>",
        markers=_DEEPSEEK_MARKERS,
    ),
    "deepseek-v3.2": _dsml("function_calls"),
    "deepseek-v4": _dsml("tool_calls"),
    "deepseek-v4.1": _dsml("calls", blank=" "),
    "glm": CallWriting(
        call="<tool_call>{name}",
        ends="</tool_call>",
        between="\n",
        markers=("<tool_call>",),
        goes_on=True,
        gap="\n",
    ),
    "kimi": CallWriting(
        opens="<|tool_calls_section_begin|>",
        call="<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>",
        ends="<|tool_call_end|>",
        between="",
        closes="<|tool_calls_section_end|>",
        markers=("<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
    ),
    "kimi-k3": CallWriting(
        opens="<|open|>tools<|sep|>",
        call='<|open|>call tool="{name}" index="{index}"<|sep|>',
        ends="<|close|>call<|sep|>",
        between="",
        closes="<|close|>tools<|sep|>",
        content="<|open|>response<|sep|>",
        content_ends="<|close|>response<|sep|>",
        remark=("<|open|>response<|sep|>", "<|close|>response<|sep|>"),
    ),
    # `<|call|>` is one of the model's end tokens, so there is one call in an answer, and nothing closes it.
    "harmony": CallWriting(
        call="<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>",
        reasoning=("<|channel|>analysis<|message|>", "<|end|><|start|>assistant"),
        content="<|channel|>final<|message|>",
        remark=("<|channel|>commentary<|message|>", "<|end|><|start|>assistant"),
    ),
    "gemma4": CallWriting(call="<|tool_call>call:{name}", ends="<tool_call|>", between="", markers=("<|tool_call>",)),
    "phi4": CallWriting(
        opens="<|tool_call|>[",
        call=_OBJECT,
        ends="}",
        between=", ",
        closes="]<|/tool_call|>",
        markers=("<|tool_call|>",),
        avoids=rf"{_ANY}functools\s*\[{_ANY}",
    ),
    "granite": CallWriting(
        opens="<|tool_call|>[",
        call=_OBJECT,
        ends="}",
        between=", ",
        closes="]",
        markers=("<|tool_call|>",),
        avoids=rf"{_ANY}<tool_call>{_ANY}",
    ),
    "granite-4": replace(_HERMES, avoids=rf"{_ANY}<\|tool_call\|>{_ANY}"),
}
