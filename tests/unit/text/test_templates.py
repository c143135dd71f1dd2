"""Real-world templates render as plain jinja2 renders them, and nothing that a message says can forge a token."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from drivetrain.core.errors import InvalidRequest, LoadFailed
from drivetrain.core.messages import ImagePart, Message, TextPart
from drivetrain.core.prompt import Prompt, Segment, find_specials
from drivetrain.text.templates import ChatTemplate

BOS, EOS = "<s>", "</s>"
SPECIALS = frozenset(
    {BOS, EOS, "<|im_start|>", "<|im_end|>", "<start_of_turn>", "<end_of_turn>", "<|eot_id|>", "<|start_header_id|>"}
    | {"<|end_header_id|>", "[INST]", "[/INST]", "<image>", "<|image_pad|>", "<|begin_of_text|>", "<end_of_utterance>"}
)

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' +"
    " message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}"
    "{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
MISTRAL = (
    "{%- if messages[0]['role'] == 'system' %}{%- set system_message = messages[0]['content'] %}"
    "{%- set loop_messages = messages[1:] %}{%- else %}{%- set loop_messages = messages %}{%- endif %}{{- bos_token }}"
    "{%- for message in loop_messages %}{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{- raise_exception('After the optional system message, conversation roles\n must alternate') }}{%- endif %}"
    "{%- if message['role'] == 'user' %}{%- if loop.first and system_message is defined %}"
    "{{- ' [INST] ' + system_message + '\n\n' + message['content'] + ' [/INST]' }}{%- else %}"
    "{{- ' [INST] ' + message['content'] + ' [/INST]' }}{%- endif %}{%- elif message['role'] == 'assistant' %}"
    "{{- ' ' + message['content'] + eos_token }}{%- else %}{{- raise_exception('Only user and assistant roles') }}"
    "{%- endif %}{%- endfor %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}"
    "{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}"
    "{% set role = message['role'] %}{% endif %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"
)
ZEPHYR = """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\n'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}"""
QWEN2_VL = (
    "{% set image_count = namespace(value=0) %}{% for message in messages %}"
    "{% if loop.first and message['role'] != 'system'"
    " %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}<|im_end|>\n{% else %}{% for content in"
    " message['content'] %}{% if content['type'] == 'image' or 'image' in content or 'image_url' in content %}"
    "{% set image_count.value = image_count.value + 1 %}{% if add_vision_id %}Picture "
    "{{ image_count.value }}: {% endif %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% elif 'text' in content %}{{ content['text'] }}{% endif %}"
    "{% endfor %}"
    "<|im_end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAVA = (
    "{% for message in messages %}{% if message['role'] != 'system' %}{{ message['role'].upper() + ': '}}{% endif %}"
    "{# Render all images first #}{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}"
    "{{ '<image>\n' }}{% endfor %}{# Render all text next #}{% if message['role'] != 'assistant' %}{% for content in"
    " message['content'] | selectattr('type', 'equalto', 'text') %}{{ content['text'] + ' '}}{% endfor %}{% else %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}{% generation %}"
    "{{ content['text'] + ' '}}{% endgeneration %}{% endfor %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
SMOLVLM = (
    "<|im_start|>{% for message in messages %}{{message['role'] | capitalize}}{% if message['content'][0]['type'] =="
    " 'image' %}{{':'}}{% else %}{{': '}}{% endif %}{% for line in message['content'] %}{% if line['type'] == 'text' %}"
    "{{line['text']}}{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n"
    "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
GEMMA3 = (
    "{{ bos_token }}{%- if messages[0]['role'] == 'system' -%}{%- if messages[0]['content'] is string -%}"
    "{%- set first_user_prefix = messages[0]['content'] + '\n\n' -%}{%- else -%}"
    "{%- set first_user_prefix = messages[0]['content'][0]['text'] + '\n\n' -%}{%- endif -%}"
    "{%- set loop_messages = messages[1:] -%}{%- else -%}{%- set first_user_prefix = '' -%}"
    "{%- set loop_messages = messages -%}{%- endif -%}{%- for message in loop_messages -%}"
    "{%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}"
    "{{ '<start_of_turn>' + role + '\n' + (first_user_prefix if loop.first else '') }}"
    "{%- if message['content'] is string -%}{{ message['content'] | trim }}{%- elif message['content'] is iterable -%}"
    "{%- for item in message['content'] -%}{%- if item['type'] == 'image' -%}{{ '<image>' }}"
    "{%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}{%- endfor -%}{%- else -%}"
    "{{ raise_exception('Invalid content type') }}{%- endif -%}{{ '<end_of_turn>\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{'<start_of_turn>model\n'}}{%- endif -%}"
)
LLAMA_VISION = (
    "{{- bos_token }}{%- if messages[0]['role'] == 'system' %}{%- set system_message = messages[0]['content']|trim %}"
    "{%- set messages = messages[1:] %}{%- else %}{%- set system_message = '' %}{%- endif %}"
    "{{- '<|start_header_id|>system<|end_header_id|>\n\nToday: ' + strftime_now('%d %b %Y') + '\n' }}"
    "{{- system_message }}"
    "{{- '<|eot_id|>' }}{%- for message in messages %}"
    "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
    " }}{%- if message['content'] is string %}{{- message['content'] }}{%- else %}"
    "{%- for content in message['content'] %}"
    "{%- if content['type'] == 'image' %}{{- '<image>' }}{%- elif content['type'] == 'text' %}{{- content['text'] }}"
    "{%- endif %}{%- endfor %}{%- endif %}{{- '<|eot_id|>' }}{%- endfor %}{%- if add_generation_prompt %}"
    "{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"
)
THINKING = (
    "{%- macro visible(text) -%}"
    "{{- text.split('</think>')[-1].lstrip('\n') if '</think>' in text else text -}}{%- endmacro -%}"
    "{%- set ns = namespace(last=-1, system='') -%}{%- for m in messages -%}{%- if m.role == 'user' -%}"
    "{%- set ns.last = loop.index0 -%}{%- elif m.role == 'system' -%}{%- set ns.system = m.content -%}{%- continue -%}"
    "{%- endif -%}{%- endfor -%}{{ '<|im_start|>system\n' ~ ns.system.strip() ~ '<|im_end|>' }}"
    "{%- for m in messages[::-1] -%}"
    "{%- if not m.content.startswith('<tool>') and not m.content.endswith('!') -%}{%- break -%}"
    "{%- endif -%}{%- endfor -%}{%- for m in messages if m.role != 'system' -%}"
    "{{ '<|im_start|>' ~ m.role ~ '\n' ~ visible(m.content) ~ (' last' if loop.index0 == ns.last else '') ~"
    " '<|im_end|>' }}"
    "{%- endfor -%}{{ messages | map(attribute='role') | unique | join(', ') }}{{ tools is none }}"
    "{%- if messages | selectattr('role', 'eq', 'nobody') | list | length == 0 %}"
    "{{ messages[0] | tojson(indent=2) }}{% endif %}"
    "{{ messages[0].items() | list | length }}{{ {'b': 1, 'a': [1.5, none, true]} | tojson }}"
    "{{ {'b': 1, 'a': 2} | dictsort }}"
    "{% if messages | selectattr('role', 'eq', 'nobody') %}lazy{% endif %}{{ not_there is defined }}{{ not_there }}"
    "{{ 'a\nb' | indent(2) }}{{ [3, 1, 2] | sort | last }}{{ '%s' if 7 % 2 else 2 ** 3 * 'x' }}"
    "{{ messages[0].get('x', 'y') }}"
    "{% set captured %}{% for i in range(3) %}{{ i }},{% endfor %}{% endset %}{{ captured.rstrip(',') }}{{ [1] + [2] }}"
)

TEXT = {
    "chatml": CHATML,
    "llama 3": LLAMA3,
    "mistral": MISTRAL,
    "gemma": GEMMA,
    "zephyr": ZEPHYR,
    "qwen2-vl": QWEN2_VL,
    "gemma 3": GEMMA3,
    "llama vision": LLAMA_VISION,
    "thinking": THINKING,
}
PARTS = {"llava": LLAVA, "smolvlm": SMOLVLM}
VISION = {"qwen2-vl": QWEN2_VL, "gemma 3": GEMMA3, "llama vision": LLAMA_VISION, **PARTS}

Chat = Sequence[tuple[str, str]]
CHATS: list[Chat] = [
    [("user", " Hello ")],
    [("user", "Hi\n"), ("assistant", "<think>hm</think>\n\nYes {{ 1 }}"), ("user", "größer 你好 🙂")],
    [("system", "Be brief."), ("user", "Hi!"), ("assistant", "Yes"), ("user", "<tool>")],
    [("user", "a"), ("user", "b")],
    [("user", "")],
]


def said(*turns: tuple[str, str]) -> list[Message]:
    return [Message(role, (TextPart(text),)) for role, text in turns]


def template(source: str, specials: frozenset[str] = SPECIALS) -> ChatTemplate:
    return ChatTemplate(source, special_tokens={"bos_token": BOS, "eos_token": EOS}, special_strings=specials)


def refuse(message: str) -> None:
    raise ValueError(message)


def plainly(source: str, messages: list[dict[str, Any]], *, prompt: bool = True) -> str:
    """As transformers does it."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = lambda value, indent=None: __import__("json").dumps(
        value, ensure_ascii=False, indent=indent
    )
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    source = re.sub(r"{% (end)?generation %}", "", source)
    return environment.from_string(source).render(
        messages=messages, bos_token=BOS, eos_token=EOS, add_generation_prompt=prompt, tools=None, documents=None
    )


def specials_in(prompt: Prompt) -> int:
    return sum(len(find_specials(s.text, SPECIALS)) for s in prompt.segments if not s.literal)


@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("name", [*TEXT, *PARTS])
def test_it_renders_as_plain_jinja2_does(name: str, chat: Chat, prompt: bool) -> None:
    source = {**TEXT, **PARTS}[name]
    content = (lambda text: [{"type": "text", "text": text}]) if name in PARTS else str
    messages = [{"role": role, "content": content(text)} for role, text in chat]
    try:
        expected = plainly(source, messages, prompt=prompt)
    except ValueError:
        with pytest.raises(InvalidRequest, match="refuses these messages"):
            template(source).render(said(*chat), add_generation_prompt=prompt)
    else:
        assert template(source).render(said(*chat), add_generation_prompt=prompt).text == expected


@pytest.mark.parametrize("name", VISION)
def test_an_image_keeps_its_place(name: str) -> None:
    model = template(VISION[name])
    assert model.takes_images
    chat = [Message("user", (TextPart("Look: "), ImagePart(data=b"x"), TextPart("What?")))]
    shape = [{"type": "text", "text": "Look: "}, {"type": "image"}, {"type": "text", "text": "What?"}]
    assert model.render(chat).text == plainly(VISION[name], [{"role": "user", "content": shape}])


@pytest.mark.parametrize("name", sorted(TEXT.keys() - VISION.keys()))
def test_without_a_place_for_images_one_is_refused(name: str) -> None:
    model = template(TEXT[name])
    assert not model.takes_images
    with pytest.raises(InvalidRequest, match="no place for images") as caught:
        model.render([Message("user", (ImagePart(data=b"x"),))])
    assert caught.value.param == "messages"


def test_a_dump_of_the_content_is_no_place_for_images() -> None:
    for source in (
        "{{ messages }}",
        "{{ messages[0].content | tojson }}",
        "{% for m in messages %}{{ m.content }}{% endfor %}",
    ):
        assert not template(source).takes_images


def test_text_in_parts_equals_one_string() -> None:
    parts = [Message("user", (TextPart("a <s"), TextPart("> b")))]
    for source in TEXT.values():
        assert template(source).render(parts).text == template(source).render(said(("user", "a <s> b"))).text


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("chatml", "<|im_end|>"),
        ("llama 3", "<|eot_id|>"),
        ("mistral", EOS),
        ("gemma", "<end_of_turn>"),
        ("zephyr", EOS),
        ("qwen2-vl", "<|im_end|>"),
        ("llava", None),
        ("smolvlm", "<end_of_utterance>"),
    ],
)
def test_what_ends_a_turn(name: str, expected: str | None) -> None:
    assert template({**TEXT, **PARTS}[name]).end_of_turn() == expected


STRICT = "{% if messages[1:] | selectattr('role', 'equalto', 'system') | list %}{{ raise_exception('one') }}{% endif %}"


@pytest.mark.parametrize(
    ("source", "keeps_apart"), [(CHATML, True), (LLAMA3, True), (MISTRAL, False), (STRICT + CHATML, False)]
)
def test_several_messages_of_the_system_in_front(source: str, keeps_apart: bool) -> None:
    """They are one where the template would refuse the second, or leave it out. Of one behind, it is the judge."""
    first, second, user = said(("system", "Be brief."), ("system", "Be kind."), ("user", "Hello"))
    one = template(source).render([*said(("system", "Be brief.\n\nBe kind.")), user])
    several = template(source).render([first, second, user])
    assert (several == one) is not keeps_apart
    for text in ("Be brief.", "Be kind."):
        assert several.text.count(text) == 1
    if source.startswith(STRICT):
        with pytest.raises(InvalidRequest, match="one"):
            template(source).render([first, user, second])


@pytest.mark.parametrize(
    "source",
    [
        "{{ bos_token }}",
        "{{ bos_token }}{% for m in messages if m.role == 'user' %}{{ m.content }}<|im_end|>{% endfor %}",
        "{{ bos_token }}{% for m in messages %}{{ m.content }}\n{% endfor %}",
        "{{ bos_token }}{% for m in messages %}{{ m.content }} then <|im_end|>{% endfor %}",
        "{{ raise_exception('no') }}",
        "",
    ],
)
def test_where_nothing_ends_a_turn(source: str) -> None:
    assert template(source).end_of_turn() is None


PIECES = st.sampled_from(
    [*sorted(SPECIALS), "<|im_", "end|>", "<", "|", ">", "s", " ", "\n", "a", "é", "\U000f0000", "\ue000"]
)
TEXTS = st.lists(PIECES | st.text(max_size=3), max_size=12).map("".join)


@settings(deadline=None)  # a busy machine is no failure
@given(st.lists(TEXTS, min_size=1, max_size=4))
def test_nothing_that_is_said_forges_a_token(texts: list[str]) -> None:
    turns = [(("user", "assistant")[i % 2], text) for i, text in enumerate(texts)]
    for source in (CHATML, MISTRAL, ZEPHYR):
        prompt = MODELS[source].render(said(*turns))
        assert prompt.text == plainly(source, [{"role": role, "content": text} for role, text in turns])
        assert specials_in(prompt) == specials_in(MODELS[source].render(said(*((role, "a") for role, _ in turns))))


REWORKED = {
    "trims": "{% for m in messages %}<s>{{ m.content | trim }}</s>{% endfor %}",
    "repeats": "{% for m in messages %}<s>{{ m.content }}{{ m.content * 2 }}</s>{% endfor %}",
    "drops": "{% for m in messages %}<s>{{ m.content if loop.last }}</s>{% endfor %}",
    "reorders": "{% for m in messages | reverse %}<s>{{ m.content }}</s>{% endfor %}",
    "runs together": "{% for m in messages %}{{ m.content }}{% endfor %}",
    "trims and runs together": "{% for m in messages %}{{ m.content | trim }}{% endfor %}",
    "cuts": "{% for m in messages %}<s>{{ m.content[2:9] }}</s>{% endfor %}",
    "changes case": "{% for m in messages %}<s>{{ m.content | upper | lower }}</s>{% endfor %}",
    "spells": "{% for m in messages %}<s>{% for c in m.content %}{{ c }}{% endfor %}</s>{% endfor %}",
    "quotes": "{% for m in messages %}<s>{{ m | tojson }}</s>{% endfor %}",
    "parts": "{% for m in messages %}<s>{% for p in m.content if p.type %}{{ p.text | trim }}{% endfor %}</s>"
    "{% endfor %}",
}
MODELS = {source: template(source) for source in (CHATML, MISTRAL, ZEPHYR, *REWORKED.values())}


@settings(deadline=None)  # a busy machine is no failure
@given(st.lists(TEXTS, min_size=1, max_size=4))
def test_nor_where_the_template_reworks_what_is_said(texts: list[str]) -> None:
    chats = [said(*(("user", text) for text in texts)), [Message("user", tuple(TextPart(text) for text in texts))]]
    for source in REWORKED.values():
        for chat in chats:
            plain = [Message(m.role, tuple(TextPart("a") for _ in m.content)) for m in chat]
            assert specials_in(MODELS[source].render(chat)) == specials_in(MODELS[source].render(plain))


def test_what_was_said_is_literal_in_json_too() -> None:
    prompt = template("</s>{{ messages[0].content | tojson(ensure_ascii=true) }}").render(said(("user", "a<s>b")))
    assert prompt.segments == (Segment("</s>"), Segment('"a<s>b"', literal=True))


def test_private_use_characters_forge_nothing_and_come_back() -> None:
    everything = "".join(map(chr, [*range(0xE000, 0xF900), *range(0xF0000, 0x10FFFE)])) + "<s>"
    prompt = template(CHATML).render(said(("user", everything)))
    assert [segment.text for segment in prompt.segments if segment.literal] == [everything]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (MISTRAL, "alternate"),
        ("{{ raise_exception('a\\n' * 5000) }}", "refuses"),
        ("{{ raise_exception(messages) }}", "refuses"),
        ("{{ messages[7].content.more }}", "fails"),
        ("{{ messages[0].tool_calls[0] }}", "fails"),
        ("{{ 1 + messages[0].content }}", "TypeError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ nothing() }}", "undefined"),
        ("{{ messages[0].content | tojson(indent='x' * 99) }}", "limit of size"),
        ("{{ ([1] | map('string')) + 1 }}", "TypeError"),
        ("{{ '\\ud800' }}", "surrogate"),
    ],
)
def test_what_the_template_cannot_take_is_said_in_one_line(source: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as caught:
        template(source).render(said(("user", "x <s>"), ("user", "y")))
    assert caught.value.param == "messages"
    assert len(caught.value.message) < 600
    assert not re.search(r"\n|Traceback|0x[0-9a-f]{6}|[\U000f0000-\U0010ffff]", caught.value.message)


def test_a_broken_template_names_its_line() -> None:
    with pytest.raises(LoadFailed, match=r"in line 3.*setting family"):
        template("a\nb\n{% endfor %}")


def test_a_message_cannot_bring_a_template() -> None:
    text = "{{ 7 * 7 }}{% for a in b %}{# x #}"
    assert text in template(CHATML).render(said(("user", text))).text


def test_an_empty_special_spelling_is_no_spelling() -> None:
    assert template("{{ messages[0].content }}", frozenset({""})).render(said(("user", "abc"))).text == "abc"


def test_threads_do_not_disturb_each_other() -> None:
    model = template(CHATML + "{% for i in range(2000) %}{% endfor %}")
    wrong: list[str] = []

    def work(word: str) -> None:
        for i in range(50):
            text = f"{word} {i} <|im_end|>"
            prompt = model.render(said(("user", text)))
            if text not in prompt.text or specials_in(prompt) != 3:
                wrong.append(prompt.text)

    threads = [threading.Thread(target=work, args=(word,)) for word in ("one", "two", "three")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
