"""Templates of all the shapes that transformers has tests for, and an answer for each."""

from __future__ import annotations

from typing import Any

from answers_templates import CALL, CHATML, TAG, TEMPLATES

Template = dict[str, Any]


def template(**fields: Any) -> Template:
    return {"defaults": {"role": "assistant"}, "start_anchor": "<|assistant|>", "fields": fields}


def written(name: str, arguments: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


DOTTED = template(
    tool_calls={
        "open": "<use>", "close": "</use>", "repeats": True, "content": "json",
        "transform": written("{content.tool.id}", "{content.tool.with}"),
    }
)  # fmt: skip
DOTTED_EACH = template(
    tool_calls={
        "open": "<all>", "close": "</all>", "content": "json", "transform_each": True,
        "transform": written("{use.id}", "{use.with}"),
    }
)  # fmt: skip
UNTYPED = template(
    tool_calls={
        "open_pattern": r"<tool_call>\s*<function=(?P<name>\w+)>", "close": "</tool_call>", "repeats": True,
        "content": "xml-inline", "content_args": {"tag_pattern": TAG}, "transform": CALL,
    }
)  # fmt: skip
PREFIXED = {
    "start_anchor": "[GO]",
    "fields": {"tag": {"open": "<t>", "close": "</t>"}, "body": {"close_pattern": "$"}},
}
QUOTED = template(
    quote={
        "open_pattern": r"<quote of=(?P<name>\w+)>", "close": "</quote>", "content": "xml-inline",
        "content_args": {
            "tag_pattern": r"<(?P<key>\w+)>\s*(?P<value>.*?)\s*</\w+>",
            "value_parser": {"name": "json", "args": {"allow_non_json": True}},
        },
        "transform": {"of": "{name}", "values": "{content}"},
    }
)  # fmt: skip
KINDS = template(
    thinking={"open": "<t>", "close": "</t>"},
    score={"open": "<n>", "close": "</n>", "content": "int"},
    data={"open": "<j>", "close": "</j>", "content": "json"},
    pairs={
        "open": "<x>", "close": "</x>", "content": "xml-inline",
        "content_args": {"tag_pattern": r"<(?P<key>\w+)=(?P<value>[^>]+)>"},
    },
    lines={"open": "<kv>", "close": "</kv>", "content": "kv-lines"},
)  # fmt: skip
EITHER = template(x={"open": ["<a>", "<bb>"], "close": ["</a>", "</bb>"]})
GROWING = template(x={"open": "<x>", "close": ["END", "ENDX"]})
SPACED = template(
    thinking={"open": "<think>", "close": "</think>", "repeats": True, "join": " "},
    content={"repeats": True, "join": " "},
)
COHERE_CALL = '{"tool_call_id": "0", "tool_name": "f", "parameters": {"unit": "Celsius", "days": [1]}}'
INKLING_PROMPT = "<|message_system|><|content_text|>Effort: 0.9<|end_message|><|message_model|>"

CASES: dict[str, tuple[Template, str, str]] = {
    "a path into the content": (DOTTED, '<use>{"tool": {"id": "f", "with": {"a": {"b": 7}}}}</use>', ""),
    "a path in two calls": (
        DOTTED,
        '<use>{"tool": {"id": "f", "with": {}}}</use> <use>{"tool": {"id": "g", "with": {"a": null}}}</use>',
        "",
    ),
    "a path into each": (
        DOTTED_EACH, '<all>[{"use": {"id": "f", "with": {"a": 1}}}, {"use": {"id": "g", "with": {}}}]</all>', "",
    ),
    "an empty list of calls": (DOTTED_EACH, "<all>[]</all>", ""),
    "cohere": (
        TEMPLATES["cohere"],
        f"<|START_THINKING|>A tool.<|END_THINKING|><|START_ACTION|>[\n    {COHERE_CALL}\n]<|END_ACTION|>"
        "<|END_OF_TURN_TOKEN|>",
        "",
    ),
    "ernie": (
        TEMPLATES["ernie"],
        'Which tool? "f".\n\nYes.\n</think>\n\n<tool_call>\n{"name": "f", "arguments": {"a": "P"}}\n</tool_call>\n</s>',
        "",
    ),
    "ernie answers": (TEMPLATES["ernie"], "Greet.\n</think>\n\n<response>\nHello!\n\nBye?\n</response>\n</s>", ""),
    "gpt-oss is cut off": (
        TEMPLATES["gpt-oss"],
        "<|channel|>analysis<|message|>Hm.\n\nOk.<|end|><|start|>assistant<|channel|>commentary to=functions.f_1 "
        '<|constrain|>json<|message|>{\n  "a": "b, c"\n}',
        "",
    ),
    "gpt-oss answers": (
        TEMPLATES["gpt-oss"],
        "<|channel|>analysis<|message|>2+2 = 4.<|end|><|start|>assistant<|channel|>final<|message|>4",
        "",
    ),
    "gpt-oss, an anchor in the answer": (
        TEMPLATES["gpt-oss"],
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b",
        "<|start|>user<|message|>x<|end|><|start|>assistant",
    ),
    "smollm, an apostrophe": (
        TEMPLATES["smollm"],
        '<think>\nOkay, "hi".\n</think>\n\n<tool_call>{"name": "f", "arguments": {"a": "I\'m, ok?"}}</tool_call>',
        "",
    ),
    "qwen3-xml": (
        TEMPLATES["qwen3-xml"],
        '<tool_call>\n<function=f>\n<parameter=a>\n[{"b": "c", "d": "e"}]\n</parameter>\n<parameter=u>\nC\n'
        "</parameter>\n</function>\n</tool_call>",
        "",
    ),
    "gemma4, every kind of value": (
        TEMPLATES["gemma4"],
        '<|channel>thought\nHm.<channel|><|tool_call>call:f{b:true,l:[<|"|>x<|"|>,<|"|>y<|"|>],n:null,i:0,'
        's:<|"|>P, F<|"|>,o:{k:<|"|>v<|"|>}}<tool_call|><|tool_response>',
        "",
    ),
    "inkling behind its prompt": (
        TEMPLATES["inkling"],
        "<|content_thinking|>One.<|end_message|><|message_model|><|content_thinking|> Two.<|end_message|>"
        "<|message_model|><|content_text|>Now.<|end_message|><|message_model|>f<|content_invoke_tool_json|>"
        '{"name":"f","args":{"a":"b","u":"C"}}<|end_message|><|content_model_end_sampling|>',
        INKLING_PROMPT,
    ),
    "fields that are joined": (SPACED, "<think>a</think>b<think>c</think>d", ""),
    "one field that could be joined": (SPACED, "<think>a</think>", ""),
    "every kind of content": (
        KINDS, '<t>a b</t><n>42</n><j>{"a": 1, "b": 2}</j><x><n=foo><age=10></x><kv>k1: v1\nk2: v2: w</kv>', "",
    ),
    "the first of several markers": (EITHER, "<a>hi</a>", ""),
    "the second of several markers": (EITHER, "<bb>hi</bb>", ""),
    "two different markers": (EITHER, "<a>hi</bb>", ""),
    "a marker that could grow": (GROWING, "<x>hiEND more", ""),
    "a marker that grows": (GROWING, "<x>hiENDX more", ""),
    "no end": (template(content={"open": "<r>"}), "<r>hello world", ""),
    "all is one text": (template(content={"close_pattern": r"\Z"}), "Hello there!", "x<|assistant|>"),
    "a field in the prompt": (PREFIXED, "what follows", "noise[GO]<t>in the prompt</t>"),
    "a prompt of several turns": (
        TEMPLATES["qwen3-xml"], "done</think>", f"{CHATML}Earlier<|im_end|>\n<|im_start|>user\nx\n{CHATML}<think>\n",
    ),
    "groups of a field that is no call": (QUOTED, "<quote of=f><label>1.50</label><hour>7</hour></quote>", ""),
    "nothing": (TEMPLATES["smollm"], "", ""),
}  # fmt: skip
