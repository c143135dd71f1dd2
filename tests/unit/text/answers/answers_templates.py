"""The `response_template`s that transformers is asked about, and answers for each. The markers are the models' own."""

from __future__ import annotations

from typing import Any

CALL = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
CONTENT_CALL = {"type": "function", "function": "{content}"}
CHATML = "<|im_start|>assistant\n"
THINK = {"open": "<think>", "close": "</think>", "content": "text"}
TAG = r"<parameter=(?P<key>\w+)>\s*(?P<value>.*?)\s*</parameter>"

TEMPLATES: dict[str, dict[str, Any]] = {
    "cohere": {
        "defaults": {"role": "assistant"},
        "start_anchor": "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
        "fields": {
            "content": {"open": "<|START_RESPONSE|>", "close": "<|END_RESPONSE|>", "content": "text"},
            "thinking": {"open": "<|START_THINKING|>", "close": "<|END_THINKING|>", "content": "text"},
            "tool_calls": {
                "open": "<|START_ACTION|>",
                "close": "<|END_ACTION|>",
                "content": "json",
                "transform_each": True,
                "transform": {
                    "type": "function",
                    "function": {"name": "{tool_name}", "arguments": "{parameters}"},
                },
            },
        },
    },
    "ernie": {
        "start_anchor": "Assistant:",
        "fields": {
            "thinking": {"open_pattern": r"(?:^|<think>\s*)", "close": "</think>", "content": "text"},
            "content": {"open": "<response>\n", "close_pattern": r"\n?</response>", "content": "text"},
            "tool_calls": {
                "open": "<tool_call>",
                "close": "</tool_call>",
                "repeats": True,
                "content": "json",
                "transform": CONTENT_CALL,
            },
        },
    },
    "gpt-oss": {
        "start_anchor": "<|start|>assistant",
        "fields": {
            "thinking": {"open": "<|channel|>analysis<|message|>", "close": "<|end|>"},
            "content": {"open": "<|channel|>final<|message|>", "close": "<|end|>"},
            "tool_calls": {
                "open_pattern": r"<\|channel\|>commentary to=functions\.(?P<name>\w+).*?<\|message\|>",
                "close": "<|call|>",
                "repeats": True,
                "content": "json",
                "transform": CALL,
            },
        },
    },
    "smollm": {
        "start_anchor": CHATML,
        "fields": {
            "thinking": THINK,
            "tool_calls": {
                "open": "<tool_call>",
                "close": "</tool_call>",
                "repeats": True,
                "content": "json",
                "transform": CONTENT_CALL,
            },
            "content": {"close": "<|im_end|>", "content": "text"},
        },
    },
    "qwen3": {
        "start_anchor": CHATML,
        "fields": {
            "thinking": THINK,
            "tool_calls": {
                "open_pattern": r"\s*<tool_call>",
                "close": "</tool_call>",
                "repeats": True,
                "content": "json",
                "transform": CONTENT_CALL,
            },
            "content": {"close_pattern": r"\s*(?:<\|im_end\|>|<\|endoftext\|>|<\|eot_id\|>)", "content": "text"},
        },
    },
    "qwen3-xml": {
        "start_anchor": CHATML,
        "fields": {
            "thinking": THINK,
            "tool_calls": {
                "open_pattern": r"<tool_call>\s*<function=(?P<name>\w+)>",
                "close": "</tool_call>",
                "repeats": True,
                "content": "xml-inline",
                "content_args": {
                    "tag_pattern": TAG,
                    "value_parser": {"name": "json", "args": {"allow_non_json": True}},
                },
                "transform": CALL,
            },
        },
    },
    "qwen3.5": {
        "start_anchor": CHATML,
        "fields": {
            "thinking": THINK,
            "tool_calls": {
                "open_pattern": r"\s*<tool_call>\s*<function=(?P<name>[^>\n]+)>",
                "close_pattern": r"</function>\s*</tool_call>",
                "repeats": True,
                "content": "xml-inline",
                "content_args": {"tag_pattern": r"<parameter=(?P<key>[^>\n]+)>\s*(?P<value>.*?)\s*</parameter>"},
                "transform": CALL,
            },
            "content": {"close_pattern": r"\s*(?:<\|im_end\|>|<\|endoftext\|>)", "content": "text"},
        },
    },
    "merged": {
        "start_anchor": CHATML,
        "fields": {
            "tool_calls": {
                "open_pattern": r"<tool_call>\s*<function=(?P<name>\w+)>",
                "close": "</tool_call>",
                "repeats": True,
                "content": "xml-inline",
                "content_args": {"tag_pattern": TAG, "merge_duplicates": True},
                "transform": CALL,
            },
        },
    },
    "lines": {
        "start_anchor": CHATML,
        "fields": {
            "tool_calls": {
                "open_pattern": r"<tool_call>\s*<function=(?P<name>\w+)>\n",
                "close": "</tool_call>",
                "repeats": True,
                "content": "kv-lines",
                "transform": CALL,
            },
        },
    },
    "gemma4": {
        "start_anchor": ["<|turn>model\n", "<tool_response|>"],
        "fields": {
            "thinking": {"open": "<|channel>thought\n", "close": "<channel|>", "content": "text"},
            "tool_calls": {
                "open_pattern": r"<\|tool_call>call:(?P<name>\w+)",
                "close": "<tool_call|>",
                "repeats": True,
                "content": "json",
                "content_args": {"unquoted_keys": True, "string_delims": [['<|"|>', '<|"|>']]},
                "transform": CALL,
            },
            "content": {"close": ["<turn|>", "<|tool_response>", "<eos>"], "content": "text"},
        },
    },
    "inkling": {
        "start_anchor": "<|message_model|>",
        "fields": {
            "thinking": {
                "open_pattern": r"(?:<\|message_model\|>)?[^<]*<\|content_thinking\|>",
                "close": "<|end_message|>",
                "repeats": True,
                "join": "",
                "content_args": {"strip": False},
            },
            "content": {
                "open_pattern": r"(?:<\|message_model\|>)?[^<]*<\|content_text\|>",
                "close": "<|end_message|>",
                "repeats": True,
                "join": "",
                "content_args": {"strip": False},
            },
            "tool_calls": {
                "open_pattern": r"(?:<\|message_model\|>)?[^<]*<\|content_invoke_tool_json\|>",
                "close": "<|end_message|>",
                "repeats": True,
                "content": "json",
                "transform": {
                    "type": "function",
                    "function": {"name": "{content.name}", "arguments": "{content.args}"},
                },
            },
        },
    },
    "joined": {
        "start_anchor": "<|assistant|>",
        "fields": {
            "thinking": {"open": "<think>", "close": "</think>", "repeats": True, "join": " "},
            "content": {"repeats": True, "join": " "},
        },
    },
    "others": {
        "start_anchor_pattern": r"<\|assistant\|>|\[BEGIN\]",
        "fields": {
            "score": {"open": "<n>", "close": "</n>", "content": "int"},
            "share": {"open": "<f>", "close": "</f>", "content": "float", "repeats": True},
            "sure": {"open": "<b>", "close": "</b>", "content": "bool"},
            "meta": {"open": "<kv>", "close": "</kv>", "content": "kv-lines"},
            "note": {"open": ["<a>", "<bb>"], "close": ["</a>", "</bb>", "END", "ENDX"]},
            "content": {"close_pattern": r"\Z"},
        },
    },
}

_CITY = '{"city": "Zürich \\"Süd\\"", "at": {"x": [1, {"y": []}], "z": {}}}'
ANSWERS: dict[str, list[str]] = {
    "cohere": [
        f'<|START_THINKING|>Hm.<|END_THINKING|><|START_ACTION|>[\n{{"tool_name": "f", "parameters": {_CITY}}},'
        '{"tool_name": "g", "parameters": {}}]<|END_ACTION|><|END_OF_TURN_TOKEN|>',
        "dropped<|START_RESPONSE|> Two words. <|END_RESPONSE|>",
    ],
    "ernie": [
        'A thought.\n</think>\n\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>\n</s>',
        "<think>  A thought</think><response>\nHello!\n</response>\n</s>",
        "A thought without an end",
        "",
    ],
    "gpt-oss": [
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.f "
        f"<|constrain|>json<|message|>{_CITY}",
        '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|><|channel|>commentary '
        "to=functions.g<|message|>{}<|call|>",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>2",
    ],
    "smollm": [
        '<think>\nHm.\n</think>\n\n<tool_call>{"name": "f", "arguments": ' + _CITY + "}</tool_call>",
        '<tool_call>{"name": "f", "arguments": {}}</tool_call><tool_call>{"name": "g", "arguments": {}}</tool_call>',
        'Before.\n<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>',
        "Just <text> with </half> markers <tool_cal<|im_end|>",
        "<think>cut off",
        "",
    ],
    "qwen3": [
        '<think>Hm.</think>\n\nBefore.\n\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>\n'
        '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>',
        "Text with space   <|im_end|>",
    ],
    "qwen3-xml": [
        "<think>Hm.</think>\n<tool_call>\n<function=f>\n<parameter=a>\n"
        '[{"b": "c"}]\n</parameter>\n<parameter=d>\n007 x\n</parameter>\n</function>\n</tool_call>',
        "<tool_call>\n<function=f>\n</function>\n</tool_call>",
    ],
    "qwen3.5": [
        "Before.\n<tool_call>\n<function=f-g>\n<parameter=a b>\nß\n\n x\n</parameter>\n</function>\n</tool_call>",
    ],
    "merged": [
        "<tool_call><function=f><parameter=a>1</parameter><parameter=a>2</parameter><parameter=b>3</parameter>"
        "</function></tool_call>",
    ],
    "lines": ["<tool_call>\n<function=f>\na: 7\nb: x: y\n\nno\n</tool_call>"],
    "gemma4": [
        '<|channel>thought\nHm.<channel|><|tool_call>call:f{a:true,b:[<|"|>x, y:"<|"|>,<|"|>{<|"|>],c:null,d:{e:1.5}}'
        "<tool_call|><|tool_call>call:g{}<tool_call|><|tool_response>",
        "Text.<turn|>",
    ],
    "inkling": [
        "<|content_thinking|>One.<|end_message|><|message_model|><|content_thinking|> Two.<|end_message|>"
        "<|message_model|><|content_text|> Now. <|end_message|><|message_model|>f<|content_invoke_tool_json|>"
        '{"name":"f","args":{"a":"b"}}<|end_message|><|content_model_end_sampling|>',
    ],
    "joined": ["<think>first</think>middle<think>second</think>done", "<think> </think><think>a</think>", "a<think>b"],
    "others": [
        "<n> 42 </n><f>1.5</f><f>2</f><b>True</b><kv>name: alice\nage: 30</kv><bb>x END more",
        "<a>hiENDX and</a>",
    ],
}
