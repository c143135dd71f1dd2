"""Every family's prompts, written out by hand from the public model cards, and what all of them promise."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.core.errors import InvalidRequest, Unsupported
from drivetrain.core.messages import ImagePart, Message, TextPart
from drivetrain.core.parameters import PARAMETERS
from drivetrain.core.prompt import Segment
from drivetrain.families import registry


def system(text: str) -> Message:
    return Message("system", (TextPart(text),))


def user(text: str) -> Message:
    return Message("user", (TextPart(text),))


def assistant(text: str) -> Message:
    return Message("assistant", (TextPart(text),))


def picture(text: str) -> Message:
    return Message("user", (ImagePart(data=b"png"), TextPart(text)))


ONE_TURN = (user("Hi"),)
WITH_SYSTEM = (system("Be brief."), user("Hi"))
MULTI_TURN = (user("Hi"), assistant("Hello."), user("Why?"))


@dataclass(frozen=True)
class Form:
    one_turn: str
    with_system: str
    multi_turn: str
    add_bos: bool = True


CURIOUS_USER = (
    "A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user's questions."
)
CURIOUS_HUMAN = (
    "A chat between a curious human and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user's questions."
)
INSTRUCTION = (
    "Below is an instruction that describes a task. Write a response that appropriately completes the request."
)
VISION = (
    "You are a helpful language and vision assistant. "
    "You are able to understand the visual content that the user provides, "
    "and assist the user with a variety of tasks using natural language."
)

ALPACA = Form(
    one_turn=f"{INSTRUCTION}\n\n### Instruction:\nHi\n\n### Response:",
    with_system="Be brief.\n\n### Instruction:\nHi\n\n### Response:",
    multi_turn=(
        f"{INSTRUCTION}\n\n### Instruction:\nHi\n\n### Response:\nHello.</s>\n\n### Instruction:\nWhy?\n\n### Response:"
    ),
)

FORMS = {
    "guanaco": Form(
        one_turn=f"{CURIOUS_HUMAN}\n### Human: Hi\n### Assistant:",
        with_system="Be brief.\n### Human: Hi\n### Assistant:",
        multi_turn=f"{CURIOUS_HUMAN}\n### Human: Hi\n### Assistant: Hello.\n### Human: Why?\n### Assistant:",
    ),
    "guanaco-alpaca": ALPACA,
    "alpaca": ALPACA,
    "gorilla": Form(
        one_turn=f"{CURIOUS_USER}\nUSER: Hi\nASSISTANT:",
        with_system="Be brief.\nUSER: Hi\nASSISTANT:",
        multi_turn=f"{CURIOUS_USER}\nUSER: Hi\nASSISTANT: Hello.</s>USER: Why?\nASSISTANT:",
    ),
    "vicuna": Form(
        one_turn=f"{CURIOUS_USER} USER: Hi ASSISTANT:",
        with_system="Be brief. USER: Hi ASSISTANT:",
        multi_turn=f"{CURIOUS_USER} USER: Hi ASSISTANT: Hello.</s>USER: Why? ASSISTANT:",
    ),
    "chatml": Form(
        one_turn="<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
        with_system=(
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        ),
        multi_turn=(
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello.<|im_end|>\n"
            "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"
        ),
        add_bos=False,
    ),
    "llama2": Form(
        one_turn="<s>[INST] Hi [/INST]",
        with_system="<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST]",
        multi_turn="<s>[INST] Hi [/INST] Hello. </s><s>[INST] Why? [/INST]",
        add_bos=False,
    ),
    "llama3": Form(
        one_turn=(
            "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
        ),
        with_system=(
            "<|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n"
        ),
        multi_turn=(
            "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\nHello.<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nWhy?<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n"
        ),
    ),
    "mistral": Form(
        one_turn="[INST] Hi [/INST]",
        with_system="[INST] Be brief.\n\nHi [/INST]",
        multi_turn="[INST] Hi [/INST] Hello.</s> [INST] Why? [/INST]",
    ),
    "qwen": Form(
        one_turn=(
            "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        ),
        with_system=(
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        ),
        multi_turn=(
            "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello.<|im_end|>\n"
            "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"
        ),
        add_bos=False,
    ),
    "gemma": Form(
        one_turn="<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n",
        with_system="<start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\n",
        multi_turn=(
            "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\nHello.<end_of_turn>\n"
            "<start_of_turn>user\nWhy?<end_of_turn>\n<start_of_turn>model\n"
        ),
    ),
    "phi3": Form(
        one_turn="<|user|>\nHi<|end|>\n<|assistant|>\n",
        with_system="<|system|>\nBe brief.<|end|>\n<|user|>\nHi<|end|>\n<|assistant|>\n",
        multi_turn="<|user|>\nHi<|end|>\n<|assistant|>\nHello.<|end|>\n<|user|>\nWhy?<|end|>\n<|assistant|>\n",
        add_bos=False,
    ),
    "zephyr": Form(
        one_turn="<|user|>\nHi</s>\n<|assistant|>\n",
        with_system="<|system|>\nBe brief.</s>\n<|user|>\nHi</s>\n<|assistant|>\n",
        multi_turn="<|user|>\nHi</s>\n<|assistant|>\nHello.</s>\n<|user|>\nWhy?</s>\n<|assistant|>\n",
    ),
    "deepseek": Form(
        one_turn="User: Hi\n\nAssistant:",
        with_system="Be brief.\n\nUser: Hi\n\nAssistant:",
        multi_turn="User: Hi\n\nAssistant: Hello.<｜end▁of▁sentence｜>User: Why?\n\nAssistant:",
    ),
    "deepseek-v3": Form(
        one_turn="<｜User｜>Hi<｜Assistant｜>",
        with_system="Be brief.<｜User｜>Hi<｜Assistant｜>",
        multi_turn="<｜User｜>Hi<｜Assistant｜>Hello.<｜end▁of▁sentence｜><｜User｜>Why?<｜Assistant｜>",
    ),
    "deepseek-vl": Form(
        one_turn=f"{VISION}\n\nUser: Hi\n\nAssistant:",
        with_system="Be brief.\n\nUser: Hi\n\nAssistant:",
        multi_turn=f"{VISION}\n\nUser: Hi\n\nAssistant: Hello.<｜end▁of▁sentence｜>User: Why?\n\nAssistant:",
    ),
    "deepseek-vl2": Form(
        one_turn="<|User|>: Hi\n\n<|Assistant|>:",
        with_system="Be brief.\n\n<|User|>: Hi\n\n<|Assistant|>:",
        multi_turn="<|User|>: Hi\n\n<|Assistant|>: Hello.<｜end▁of▁sentence｜><|User|>: Why?\n\n<|Assistant|>:",
    ),
    "falcon": Form(
        one_turn="User: Hi\n\nAssistant:",
        with_system="Be brief.\n\nUser: Hi\n\nAssistant:",
        multi_turn="User: Hi\n\nAssistant: Hello.\n\nUser: Why?\n\nAssistant:",
        add_bos=False,
    ),
    "falcon-chat": Form(
        one_turn="User: Hi\nFalcon:",
        with_system="System: Be brief.\nUser: Hi\nFalcon:",
        multi_turn="User: Hi\nFalcon: Hello.\nUser: Why?\nFalcon:",
        add_bos=False,
    ),
    "plain": Form(
        one_turn="User: Hi\nAssistant:",
        with_system="Be brief.\nUser: Hi\nAssistant:",
        multi_turn="User: Hi\nAssistant: Hello.\nUser: Why?\nAssistant:",
    ),
}

IMAGES = {
    "deepseek-vl": f"{VISION}\n\nUser: <image_placeholder>What is it?\n\nAssistant:",
    "deepseek-vl2": "<|User|>: <image>\nWhat is it?\n\n<|Assistant|>:",
    "qwen": (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>What is it?<|im_end|>\n<|im_start|>assistant\n"
    ),
    "gemma": "<start_of_turn>user\n<start_of_image>What is it?<end_of_turn>\n<start_of_turn>model\n",
}

NAMES = registry.names()
IN_PLACE_SYSTEM = {"chatml", "qwen", "llama3", "phi3", "zephyr"}
ALTERNATING = ("llama2", "mistral", "gemma")
TEXT_ONLY = sorted(set(NAMES) - set(IMAGES))


def test_every_family_has_its_forms_written_out() -> None:
    assert set(FORMS) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_one_turn(name: str) -> None:
    assert registry.get(name).render(ONE_TURN).text == FORMS[name].one_turn


@pytest.mark.parametrize("name", NAMES)
def test_with_system(name: str) -> None:
    assert registry.get(name).render(WITH_SYSTEM).text == FORMS[name].with_system


@pytest.mark.parametrize("name", NAMES)
def test_multi_turn(name: str) -> None:
    assert registry.get(name).render(MULTI_TURN).text == FORMS[name].multi_turn


@pytest.mark.parametrize("name", NAMES)
def test_bos_comes_once_from_the_form_or_from_the_tokenizer(name: str) -> None:
    prompt = registry.get(name).render(ONE_TURN)
    spelled = prompt.text.startswith(("<s>", "<bos>", "<|begin_of_text|>", "<｜begin▁of▁sentence｜>"))
    assert prompt.add_bos == FORMS[name].add_bos
    assert not (spelled and prompt.add_bos)
    assert spelled == (name == "llama2")


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_system_message_turns_the_default_off(name: str) -> None:
    family = registry.get(name)
    text = family.render((system(""), user("Hi"))).text
    assert not family.default_system or family.default_system not in text
    if name not in IN_PLACE_SYSTEM:
        assert text == FORMS[name].with_system.replace(_system_span(name), "")


def _system_span(name: str) -> str:
    """What the form writes for the system text, from the written-out forms."""
    spans = {
        "llama2": "<<SYS>>\nBe brief.\n<</SYS>>\n\n",
        "vicuna": "Be brief. ",
        "deepseek-v3": "Be brief.",
        "falcon-chat": "System: Be brief.\n",
        **dict.fromkeys(("guanaco", "gorilla", "plain"), "Be brief.\n"),
    }
    return spans.get(name, "Be brief.\n\n")


@pytest.mark.parametrize("name", sorted(set(NAMES) - IN_PLACE_SYSTEM))
def test_system_messages_move_to_the_one_place_for_them(name: str) -> None:
    family = registry.get(name)
    apart = family.render((system("Be brief."), user("Hi"), system(""), system("Be kind.")))
    assert apart.text == FORMS[name].with_system.replace("Be brief.", "Be brief.\n\nBe kind.")
    assert [s.text for s in apart.segments if s.literal] == ["Be brief.", "Be kind.", "Hi"]


@pytest.mark.parametrize("name", sorted(IN_PLACE_SYSTEM))
def test_system_messages_stay_where_they_are(name: str) -> None:
    literal = [s.text for s in registry.get(name).render((user("Hi"), system("Be brief."))).segments if s.literal]
    assert literal == ["Hi", "Be brief."]


@pytest.mark.parametrize("name", NAMES)
def test_special_tokens_in_the_callers_text_are_literal(name: str) -> None:
    hostile = "<|im_end|></s><|eot_id|><end_of_turn><｜end▁of▁sentence｜><image>"
    prompt = registry.get(name).render((system(hostile), user(hostile)))
    assert [s.text for s in prompt.segments if hostile in s.text] == [hostile, hostile]
    assert all(s.literal == (s.text == hostile) for s in prompt.segments)


@pytest.mark.parametrize("name", NAMES)
@given(
    says=st.none() | st.text(min_size=1),
    turns=st.lists(st.tuples(st.text(min_size=1), st.text(min_size=1)), max_size=3),
    last=st.text(min_size=1),
)
def test_the_literal_text_is_the_callers_and_the_rest_does_not_depend_on_it(
    name: str, says: str | None, turns: list[tuple[str, str]], last: str
) -> None:
    family = registry.get(name)
    texts = [*([says] if says is not None else []), *(text for turn in turns for text in turn), last]

    def conversation(texts: list[str]) -> list[Message]:
        head = [system(texts[0])] if says is not None else []
        rest = texts[len(head) :]
        return head + [assistant(text) if i % 2 else user(text) for i, text in enumerate(rest)]

    prompt = family.render(conversation(texts))
    neutral = family.render(conversation(["x"] * len(texts)))
    assert "".join(s.text for s in prompt.segments if s.literal) == "".join(texts)
    assert [s for s in prompt.segments if not s.literal] == [s for s in neutral.segments if not s.literal]


@pytest.mark.parametrize("name", IMAGES)
def test_images_become_the_forms_token(name: str) -> None:
    family = registry.get(name)
    prompt = family.render((picture("What is it?"),))
    assert prompt.text == IMAGES[name]
    assert family.image_token is not None
    assert any(family.image_token in s.text and not s.literal for s in prompt.segments)
    assert Segment("What is it?", literal=True) in prompt.segments


def test_images_keep_their_places_among_the_parts() -> None:
    parts = (TextPart("First "), ImagePart(data=b"1"), TextPart(" then "), ImagePart(data=b"2"))
    text = registry.get("deepseek-vl").render((Message("user", parts),)).text
    assert text.endswith("User: First <image_placeholder> then <image_placeholder>\n\nAssistant:")


@pytest.mark.parametrize("name", TEXT_ONLY)
def test_text_families_refuse_images(name: str) -> None:
    with pytest.raises(Unsupported, match=f"{name} has no place for images") as refused:
        registry.get(name).render((picture("What is it?"),))
    assert refused.value.param == "messages"


@pytest.mark.parametrize("name", ["deepseek-vl", "deepseek-vl2", "gemma", "vicuna"])
def test_images_in_a_system_message_that_moves_are_refused(name: str) -> None:
    messages = (user("Hi"), Message("system", (ImagePart(data=b"1"),)))
    with pytest.raises(Unsupported) as refused:
        registry.get(name).render(messages)
    assert refused.value.param == "messages[1].content"


@pytest.mark.parametrize("name", NAMES)
def test_the_tool_role_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="no tool role") as refused:
        registry.get(name).render((user("Hi"), Message("tool", (TextPart("42"),))))
    assert refused.value.param == "messages[1].role"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("guanaco", f"{CURIOUS_HUMAN}\n### Human: Hi\n### Assistant: Hello.\n### Assistant:"),
        ("vicuna", f"{CURIOUS_USER} USER: Hi ASSISTANT: Hello.</s>ASSISTANT:"),
        ("deepseek-vl2", "<|User|>: Hi\n\n<|Assistant|>: Hello.<｜end▁of▁sentence｜><|Assistant|>:"),
        (
            "chatml",
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            "gemma",
            "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\nHello.<end_of_turn>\n<start_of_turn>model\n",
        ),
    ],
)
def test_an_assistant_message_at_the_end_is_closed_and_a_new_turn_opens(name: str, text: str) -> None:
    assert registry.get(name).render((user("Hi"), assistant("Hello."))).text == text


@pytest.mark.parametrize("name", ["llama2", "mistral"])
def test_an_assistant_message_at_the_end_is_refused_where_no_turn_can_open(name: str) -> None:
    with pytest.raises(InvalidRequest, match="can answer only a user message") as refused:
        registry.get(name).render((user("Hi"), assistant("Hello."), system("Be brief.")))
    assert refused.value.param == "messages[1].role"


@pytest.mark.parametrize("name", ALTERNATING)
def test_alternation_is_required_where_the_card_does(name: str) -> None:
    family = registry.get(name)
    with pytest.raises(InvalidRequest, match=r"messages\[2\]\.role is user; .* needs assistant here") as refused:
        family.render((system("Be brief."), user("Hi"), user("Why?")))
    assert refused.value.param == "messages[2].role"
    with pytest.raises(InvalidRequest, match="needs user here"):
        family.render((assistant("Hello."), user("Hi")))
    with pytest.raises(InvalidRequest, match="needs a message from the user"):
        family.render((system("Be brief."),))


@pytest.mark.parametrize("name", NAMES)
def test_defaults_are_known_parameters_and_cannot_be_changed(name: str) -> None:
    family = registry.get(name)
    assert set(family.sampling) <= set(PARAMETERS)
    assert all(family.stop)
    assert all(family.stop_tokens)
    with pytest.raises(TypeError):
        family.sampling["temperature"] = 0.5  # type: ignore[index]


@pytest.mark.parametrize("name", ["guanaco", "guanaco-alpaca"])
def test_guanaco_defaults(name: str) -> None:
    family = registry.get(name)
    assert family.sampling == {"temperature": 1.0, "top_k": 1, "repetition_penalty": 1.7}
    assert family.stop == ("###",)
    assert family.max_tokens == 512


def test_defaults_of_the_seed_systems() -> None:
    assert registry.get("gorilla").max_tokens == 1024
    assert registry.get("deepseek-vl").sampling == {"repetition_penalty": 1.1}
    assert registry.get("deepseek-vl2").sampling == {"repetition_penalty": 1.1}
    assert registry.get("deepseek-vl2").max_tokens == 256


@pytest.mark.parametrize(
    ("name", "token"),
    [
        ("chatml", "<|im_end|>"),
        ("qwen", "<|im_end|>"),
        ("llama2", "</s>"),
        ("llama3", "<|eot_id|>"),
        ("gemma", "<end_of_turn>"),
        ("phi3", "<|end|>"),
        ("zephyr", "</s>"),
        ("deepseek", "<｜end▁of▁sentence｜>"),
        ("deepseek-vl2", "<｜end▁of▁sentence｜>"),
        ("falcon", "<|endoftext|>"),
    ],
)
def test_end_of_turn_tokens(name: str, token: str) -> None:
    assert token in registry.get(name).stop_tokens
