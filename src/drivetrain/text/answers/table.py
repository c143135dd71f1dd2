"""Every form that is known by name, one row each. `forms.py` says what the fields mean."""

from __future__ import annotations

from dataclasses import replace

from drivetrain.text.answers.call_ids import CallIds
from drivetrain.text.answers.forms import (
    Arguments,
    Form,
    JsonCalls,
    NoArguments,
    Part,
    PythonCalls,
    Region,
    TaggedArguments,
)
from drivetrain.text.answers.values import GEMMA
from drivetrain.text.answers.writings import WRITINGS

_THINK = Region(Part.REASONING, opens=("<think>",), closes=("</think>",))
_BAR_END = "<｜end▁of▁sentence｜>"

# As in the template that transformers' server falls back to for Qwen 2 and 3.
_HERMES = Form(
    name="hermes",
    models="Hermes 2 Pro and 3, Qwen 2.5, Qwen 3",
    summary='`<tool_call>{"name": …, "arguments": {…}}</tool_call>`, `<think>`',
    signs=("<tool_call>", '"arguments"'),
    regions=(
        _THINK,
        Region(Part.CALLS, opens=("<tool_call>",), closes=("</tool_call>",), inside=JsonCalls()),
    ),
    silent=("</tool_call>", "<|im_end|>"),
)

# As in vLLM's parser for Qwen3-Coder, and in transformers' template for Qwen 3.5. Some leave out `<tool_call>`.
_QWEN_TAGS = TaggedArguments(
    key="<parameter=",
    key_end=">",
    value_end="</parameter>",
    ends=("</function>", "</tool_call>"),
    trims_line=True,
    loose_key=r"\n<parameter=(?P<key>[^<>\n]+)>\n",
    loose_end=r"\n</function>\s*</tool_call>",
)
_FUNCTION = r"<function=(?P<name>[^<>\s]+)>"
_QWEN_XML = Form(
    name="qwen-xml",
    models="Qwen3-Coder, Qwen 3.5",
    summary="`<tool_call><function=f><parameter=a>…</parameter></function></tool_call>`, `<think>`",
    signs=("<tool_call>", "<function="),
    regions=(
        _THINK,
        Region(
            Part.CALLS,
            opens=("<tool_call>",),
            header=r"\s*" + _FUNCTION,
            closes=("</tool_call>",),
            inside=_QWEN_TAGS,
            interrupts=True,
        ),
        Region(Part.CALLS, open_pattern=_FUNCTION, closes=("</tool_call>",), inside=_QWEN_TAGS),
    ),
    silent=("</tool_call>", "</think>", "<|im_end|>"),
)

# Llama 3.1's JSON form: the call is the whole answer, without a marker. Several are separated by semicolons.
# `<|python_tag|>` comes first where the environment is ipython.
_LLAMA_JSON = Form(
    name="llama-json",
    models="Llama 3.1 and later",
    summary='`{"name": …, "parameters": {…}}` at the start of a line, `<|python_tag|>`',
    signs=("<|start_header_id|>", '"parameters": '),
    regions=(
        Region(Part.CALLS, opens=("<|python_tag|>",), inside=JsonCalls()),
        Region(
            Part.CALLS,
            open_pattern=r"(?:^|\n|;)\s*"
            r'(?=\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*"(?P<name>[^"\\{}\n]+)"\s*,\s*'
            r'"(?:parameters|arguments)"\s*:\s*\{)',
            inside=JsonCalls(),
            bare=True,
        ),
    ),
    silent=("<|eot_id|>", "<|eom_id|>"),
)

# A list of Python calls, without a marker.
_LLAMA_PYTHONIC = Form(
    name="llama-pythonic",
    models="Llama 3.2, Llama 4",
    summary="`[f(a=1), g()]` at the start of a line",
    signs=("<|python_start|>",),
    regions=(
        Region(
            Part.CALLS,
            open_pattern=r"(?:^|\n)\s*\[\s*(?=(?P<name>[A-Za-z_][\w.-]*)\(\s*(?:\)|[A-Za-z_]\w*\s*=[^=]))",
            inside=PythonCalls(),
            bare=True,
        ),
    ),
    silent=("<|python_start|>", "<|python_end|>", "<|python_tag|>", "<|eot_id|>", "<|eot|>", "<|eom_id|>"),
)

# As in vLLM's parser: a list of JSON objects before version 11 of the tokenizer, name and arguments from then on.
_MISTRAL = Form(
    name="mistral",
    models="Mistral and Magistral",
    summary='`[TOOL_CALLS]f[ARGS]{…}` or `[TOOL_CALLS][{"name": …, "arguments": {…}}]`, `[THINK]`',
    signs=("[TOOL_CALLS]", "[ARGS]"),
    regions=(
        Region(Part.REASONING, opens=("[THINK]",), closes=("[/THINK]",)),
        _THINK,
        Region(
            Part.CALLS,
            opens=("[TOOL_CALLS]",),
            header=r"\s*(?P<name>[^\s\[\](){}]+)\s*(?:\[CALL_ID\][^\[{]*)?(?:\[ARGS\])?\s*(?=\{)",
            inside=Arguments(),
        ),
        Region(Part.CALLS, opens=("[TOOL_CALLS]",), header=r"\s*(?=\[|\{)", inside=JsonCalls()),
    ),
    silent=("</s>",),
    call_ids=CallIds.NINE_CHARS,
)

# Read like the other one; written as a list.
_MISTRAL_LIST = replace(
    _MISTRAL,
    name="mistral-list",
    models="Mistral before version 11 of its tokenizer",
    summary="as `mistral`; calls are enforced as a list",
    signs=("[TOOL_CALLS]",),
)

# As in llama.cpp's tests for R1. The model often leaves out the end of the calls.
_DEEPSEEK_CALL_END = "<｜tool▁call▁end｜>"
_DEEPSEEK_SILENT = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", _DEEPSEEK_CALL_END, _BAR_END)
_DEEPSEEK_R1 = Form(
    name="deepseek-r1",
    models="DeepSeek V3, R1",
    summary="`<｜tool▁call▁begin｜>function<｜tool▁sep｜>f`, a fence with JSON, `<｜tool▁call▁end｜>`, `<think>`",
    signs=("<｜tool▁call▁begin｜>", "```json"),
    regions=(
        _THINK,
        Region(
            Part.CALLS,
            opens=("<｜tool▁call▁begin｜>",),
            header=r"\s*function\s*<｜tool▁sep｜>\s*(?P<name>[^\s`{<]+)\s*(?:```(?:json)?)?\s*(?=\{)",
            closes=(f"```{_DEEPSEEK_CALL_END}", f"```\n{_DEEPSEEK_CALL_END}", _DEEPSEEK_CALL_END),
            inside=Arguments(),
        ),
    ),
    silent=_DEEPSEEK_SILENT,
)

# As R1, but the name comes first and there is no fence.
_DEEPSEEK_V31 = Form(
    name="deepseek-v3.1",
    models="DeepSeek V3.1",
    summary="`<｜tool▁call▁begin｜>f<｜tool▁sep｜>{…}<｜tool▁call▁end｜>`, `<think>`",
    signs=("<｜tool▁call▁begin｜>",),
    regions=(
        _THINK,
        Region(
            Part.CALLS,
            opens=("<｜tool▁call▁begin｜>",),
            header=r"\s*(?P<name>[^\s{<]+)\s*<｜tool▁sep｜>\s*(?=\{)",
            closes=(_DEEPSEEK_CALL_END,),
            inside=Arguments(),
        ),
    ),
    silent=_DEEPSEEK_SILENT,
)


def _dsml(name: str, models: str, section: str, sign: str, blank: str = "") -> Form:
    """DeepSeek's markup since V3.2. Each tag names itself behind the same token, in V4.1 with a blank between them."""
    tag, end = f"<｜DSML｜{blank}", f"</｜DSML｜{blank}"
    named = r'\s+name="(?P<name>[^"<>\n]+)"\s*'
    parameters = TaggedArguments(
        key=f'{tag}parameter name="',
        key_end='" string="',
        text_mark='true">',
        json_marks={"": 'false">'},
        value_end=f"{end}parameter>",
        ends=(f"{end}invoke>",),
    )
    invoke, ends = f"{tag}invoke", (f"{end}invoke>",)
    return Form(
        name=name,
        models=models,
        summary=f'`{tag}invoke name="f">{tag}parameter name="a" string="true">…`, in `{tag}{section}>`, `<think>`',
        signs=("｜DSML｜", sign),
        regions=(
            _THINK,
            Region(Part.CALLS, opens=(invoke,), header=f"{named}>", closes=ends, inside=parameters),
            Region(Part.CALLS, opens=(invoke,), header=f"{named}/>", inside=NoArguments()),
        ),
        silent=(f"{tag}{section}>", f"{end}{section}>", *ends, _BAR_END),
        silent_pattern=r"</?｜DSML｜[^<>\n]*$",
    )


_DEEPSEEK_V32 = _dsml("deepseek-v3.2", "DeepSeek V3.2", "function_calls", "function_calls>")
_DEEPSEEK_V4 = _dsml("deepseek-v4", "DeepSeek V4", "tool_calls", "tool_calls>")
_DEEPSEEK_V41 = _dsml("deepseek-v4.1", "DeepSeek V4.1", "calls", " calls>", blank=" ")

# As in vLLM's parser for GLM 4. A class, and not a literal, also takes a special token that begins like this.
_GLM = Form(
    name="glm",
    models="GLM 4.5 and later",
    summary="`<tool_call>f<arg_key>a</arg_key><arg_value>…</arg_value></tool_call>`, `<think>`",
    signs=("<tool_call>", "<arg_key>"),
    regions=(
        _THINK,
        Region(
            Part.CALLS,
            opens=("<tool_call>",),
            header=r"\s*(?P<name>[^\s<{]+)\s*(?=[<])",
            closes=("</tool_call>",),
            inside=TaggedArguments(
                key="<arg_key>",
                key_end="</arg_key>",
                value="<arg_value>",
                value_end="</arg_value>",
                ends=("</tool_call>",),
            ),
        ),
    ),
    silent=("</tool_call>", "<|user|>", "<|observation|>", "<|endoftext|>"),
)

# As in SGLang's tests. The name comes with the number of the call.
_KIMI = Form(
    name="kimi",
    models="Kimi K2",
    summary="`<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{…}<|tool_call_end|>`, `<think>`",
    signs=("<|tool_call_begin|>",),
    regions=(
        _THINK,
        Region(
            Part.CALLS,
            opens=("<|tool_call_begin|>",),
            header=r"\s*(?:functions\.)?(?P<name>[^\s:<{]+)(?::\d+)?\s*<\|tool_call_argument_begin\|>\s*(?=\{)",
            closes=("<|tool_call_end|>",),
            inside=Arguments(),
        ),
    ),
    section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    silent=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_end|>", "<|im_end|>"),
    call_ids=CallIds.NUMBERED,
)

# Every tag is opened and closed by the same tokens. The channel `response` is the content.
_K3_CALL_END = "<|close|>call<|sep|>"
_KIMI_K3 = Form(
    name="kimi-k3",
    models="Kimi K3",
    summary='`<|open|>call tool="f" index="1"<|sep|><|open|>argument key="a" type="string"<|sep|>…`, `<|open|>think`',
    signs=("<|open|>", "<|close|>"),
    regions=(
        Region(Part.REASONING, opens=("<|open|>think<|sep|>",), closes=("<|close|>think<|sep|>",)),
        Region(Part.CONTENT, opens=("<|open|>response<|sep|>",), closes=("<|close|>response<|sep|>",)),
        Region(
            Part.CALLS,
            opens=("<|open|>call",),
            header=r'\s+tool="(?P<name>[^"<>\n]+)"(?:\s+index="[0-9]*")?\s*<\|sep\|>',
            closes=(_K3_CALL_END,),
            inside=TaggedArguments(
                key='<|open|>argument key="',
                key_end='" type="',
                text_mark='string"<|sep|>',
                json_marks={
                    kind: f'{kind}"<|sep|>' for kind in ("object", "array", "number", "integer", "boolean", "null")
                },
                value_end="<|close|>argument<|sep|>",
                ends=(_K3_CALL_END,),
            ),
        ),
    ),
    section=("<|open|>tools<|sep|>", "<|close|>tools<|sep|>"),
    silent=(
        "<|open|>tools<|sep|>",
        "<|close|>tools<|sep|>",
        "<|close|>response<|sep|>",
        "<|close|>think<|sep|>",
        _K3_CALL_END,
    ),
    silent_pattern=r"(?:<\|open\|>|<\|close\|>)[^<>\n]*$",
)

# As in transformers' tests for gpt-oss. A recipient stands before the channel or behind it. Without one, only the
# channel `analysis` is reasoning; `commentary` is what the model says before a call.
_CONSTRAIN = r"[^<]*(?:<\|constrain\|>[^<]*)?<\|message\|>"
_RECIPIENT = r"to=functions\.(?P<name>[^\s<]+)"
_OTHER_RECIPIENT = r"to=(?P<name>[^\s<]+)"
_HARMONY_ENDS = ("<|end|>", "<|return|>", "<|call|>")


def _harmony_calls(recipient: str, aside: Part | None = None) -> tuple[Region, ...]:
    """The recipient stands behind the channel, or before it."""
    behind = r"<\|channel\|>\w+\s+" + recipient + _CONSTRAIN
    before = r"(?:^|<\|start\|>assistant)\s*" + recipient + r"\s*<\|channel\|>" + _CONSTRAIN
    return tuple(
        Region(Part.CALLS, open_pattern=pattern, closes=_HARMONY_ENDS, inside=Arguments(), aside=aside)
        for pattern in (behind, before)
    )


_HARMONY = Form(
    name="harmony",
    models="gpt-oss",
    summary="`<|channel|>commentary to=functions.f <|constrain|>json<|message|>{…}<|call|>`, channel `analysis`",
    signs=("<|channel|>",),
    regions=(
        *_harmony_calls(_RECIPIENT),
        *_harmony_calls(_OTHER_RECIPIENT, aside=Part.REASONING),
        Region(Part.REASONING, open_pattern=r"<\|channel\|>analysis" + _CONSTRAIN, closes=_HARMONY_ENDS),
        Region(Part.CONTENT, open_pattern=r"<\|channel\|>" + _CONSTRAIN, closes=_HARMONY_ENDS),
    ),
    silent=("<|start|>assistant", *_HARMONY_ENDS),
    silent_pattern=r"(?:<\|start\|>[^<>\n]*|<\|channel\|>[^<>\n]*(?:<\|constrain\|>[^<>\n]*)?)$",
)

# As in the `response_template` of Gemma 4, and in vLLM's parser: strings have a token as their quote, keys none.
_GEMMA4 = Form(
    name="gemma4",
    models="Gemma 4",
    summary='`<|tool_call>call:f{a:<|"|>…<|"|>}<tool_call|>`, `<|channel>thought`',
    signs=("<|tool_call>call:",),
    regions=(
        Region(Part.REASONING, opens=("<|channel>thought\n",), closes=("<channel|>",)),
        Region(
            Part.CALLS,
            opens=("<|tool_call>",),
            header=r"\s*call:\s*(?P<name>[^\s{<]+)\s*(?=\{)",
            closes=("<tool_call|>",),
            inside=Arguments(GEMMA),
        ),
    ),
    silent=("<tool_call|>", "<|tool_response>", "<turn|>", "<eos>"),
)

# Ollama's template for Phi-4-mini marks calls with tokens; vLLM's parser finds `functools`.
_PHI4 = Form(
    name="phi4",
    models="Phi-4-mini",
    summary='`<|tool_call|>[{"name": …, "arguments": {…}}]<|/tool_call|>` or `functools[…]`, `<think>`',
    signs=("<|tool|>",),
    regions=(
        _THINK,
        Region(Part.CALLS, opens=("<|tool_call|>",), closes=("<|/tool_call|>",), inside=JsonCalls()),
        Region(Part.CALLS, open_pattern=r"functools\s*(?=\[)", inside=JsonCalls()),
    ),
    silent=("<|/tool_call|>", "<|end|>"),
)

# As in vLLM's parser: Granite 3.0 marks its list of calls with a token, 3.1 with text. Granite 4.0 writes an object a
# call and closes it.
_GRANITE = Form(
    name="granite",
    models="Granite 3",
    summary='`<|tool_call|>[{"name": …, "arguments": {…}}]` or `<tool_call>{…}</tool_call>`, `<think>`',
    signs=("<|start_of_role|>",),
    regions=(
        _THINK,
        Region(
            Part.CALLS,
            opens=("<|tool_call|>", "<tool_call>"),
            closes=("</tool_call>",),
            inside=JsonCalls(),
        ),
    ),
    silent=("</tool_call>", "<|end_of_text|>"),
)

# Read like Granite 3; written like Hermes.
_GRANITE_4 = replace(
    _GRANITE,
    name="granite-4",
    models="Granite 4",
    summary="as `granite`; calls are enforced with `<tool_call>`",
    signs=("<|start_of_role|>", "<tool_call>"),
)

# For models with no form of their own, which are asked in their prompt to call tools like this.
_GENERIC = replace(_HERMES, name="generic", models="any that is asked to", silent=("</tool_call>",), signs=())

FORMS: dict[str, Form] = {
    form.name: replace(form, writing=WRITINGS.get(form.name))
    for form in (
        _KIMI,
        _KIMI_K3,
        _DEEPSEEK_V32,
        _DEEPSEEK_V41,
        _DEEPSEEK_V4,
        _DEEPSEEK_R1,
        _DEEPSEEK_V31,
        _GLM,
        _GEMMA4,
        _HARMONY,
        _MISTRAL,
        _MISTRAL_LIST,
        _GRANITE_4,
        _GRANITE,
        _PHI4,
        _QWEN_XML,
        _LLAMA_PYTHONIC,
        _HERMES,
        _LLAMA_JSON,
        _GENERIC,
    )
}
"""The first one whose signs a chat template has is the form of that model: those that share a sign stand in order."""
