"""Every prompt form that is known by name, one row each. `base.py` and `turns.py` say what the fields mean."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from drivetrain.families.base import CHAT_ROLES, Family, Roles
from drivetrain.families.turns import InstTurns, LabelledTurns, MarkedTurns, MarkedTurnsWithoutSystem

_CURIOUS_USER = (
    "A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user's questions."
)

# The bars are U+FF5C and the spaces U+2581: that is how the vocabulary spells its special tokens.
_END_OF_SENTENCE = "<｜end▁of▁sentence｜>"

# Alpaca: instruction and response under headings (Stanford Alpaca's prompt without an input). The original has one
# turn. Further turns are separated by a blank line, each response closed by the EOS that it had in training.
_ALPACA = LabelledTurns(
    name="alpaca",
    roles=Roles(system="", user="### Instruction", assistant="### Response"),
    label_end=":\n",
    separator="\n\n",
    answer_end="</s>\n\n",
    default_system=(
        "Below is an instruction that describes a task. Write a response that appropriately completes the request."
    ),
    # Fine-tunes with other vocabularies often miss their EOS and go on to write the next instruction themselves.
    stop=("### Instruction:",),
    stop_tokens=("</s>",),
    name_patterns=(r"alpaca",),
)

# Guanaco: QLoRA-tuned LLaMA, in the form of its model card (timdettmers/guanaco-7b and its merged copies).
_GUANACO = LabelledTurns(
    name="guanaco",
    roles=Roles(system="", user="### Human", assistant="### Assistant"),
    separator="\n",
    answer_end="\n",  # no EOS: its training text has none between the turns, and answers end where `###` begins
    default_system=(
        "A chat between a curious human and an artificial intelligence assistant. "
        "The assistant gives helpful, detailed, and polite answers to the user's questions."
    ),
    stop=("###",),
    stop_tokens=("</s>", "<unk>"),  # <unk> is LLaMA's id 0: no text contains it, so a model that emits it is lost
    # Greedy by top_k; the high penalty keeps a greedy answer from repeating itself.
    sampling=MappingProxyType({"temperature": 1.0, "top_k": 1, "repetition_penalty": 1.7}),
    max_tokens=512,
    name_patterns=(r"guanaco",),
)

# For models that nothing is known about, base models included: a dialogue as it might appear on a web page.
#
#     {system text}
#     User: {question}
#     Assistant: {answer}
#     User: {question}
#     Assistant:
#
# It uses no special tokens, so it fits every vocabulary. A base model goes on to write the user's next line: hence the
# stop.
PLAIN = LabelledTurns(
    name="plain",
    roles=Roles(system="", user="User", assistant="Assistant"),
    separator="\n",
    answer_end="\n",
    stop=("\nUser:",),
)

# The first match wins: fine-tunes and more specific names come before the models that they were made from.
FAMILIES: tuple[Family, ...] = (
    # The Alpaca form that some fine-tunes of Guanaco use.
    replace(
        _ALPACA,
        name="guanaco-alpaca",
        stop=_GUANACO.stop,
        stop_tokens=_GUANACO.stop_tokens,
        sampling=_GUANACO.sampling,
        max_tokens=_GUANACO.max_tokens,
        name_patterns=(r"guanaco.*alpaca", r"alpaca.*guanaco"),
    ),
    _GUANACO,
    # LLaMA tuned to write API calls. The form is `gorilla_v0` of its serving CLI (ShishirPatil/gorilla,
    # inference/serve/conv_template.py): Vicuna's text with line breaks. Its batch script gorilla_eval.py sends
    # `###USER: …###ASSISTANT:` instead. Gorilla OpenFunctions and the Falcon and MPT fine-tunes use other forms.
    LabelledTurns(
        name="gorilla",
        roles=Roles(system="", user="USER", assistant="ASSISTANT"),
        separator="\n",
        answer_end="</s>",
        default_system=_CURIOUS_USER,
        stop_tokens=("</s>",),
        max_tokens=1024,
        name_patterns=(r"gorilla(?!-(openfunctions|falcon|mpt))",),
    ),
    # Vicuna v1.1 and later: USER and ASSISTANT on one line (the lmsys/vicuna-*-v1.5 cards, FastChat's vicuna_v1.1).
    # No stop strings: it was trained to end with EOS, and `USER:` would cut an answer that quotes a chat.
    LabelledTurns(
        name="vicuna",
        roles=Roles(system="", user="USER", assistant="ASSISTANT"),
        separator=" ",
        answer_end="</s>",
        default_system=_CURIOUS_USER,
        stop_tokens=("</s>",),
        name_patterns=(r"vicuna",),
    ),
    # DeepSeek-VL2: DeepSeek-VL's script with role tokens as labels (deepseek-ai/DeepSeek-VL2, models/conversation.py).
    LabelledTurns(
        name="deepseek-vl2",
        roles=Roles(system="", user="<|User|>", assistant="<|Assistant|>"),
        separator="\n\n",
        answer_end=_END_OF_SENTENCE,
        stop_tokens=(_END_OF_SENTENCE, "<|User|>"),
        sampling=MappingProxyType({"repetition_penalty": 1.1}),
        max_tokens=256,
        architectures=("deepseek_vl_v2",),
        name_patterns=(r"deepseek-vl-?2",),
        image_token="<image>",
        image_end="\n",  # as in every example of the card
    ),
    # DeepSeek-VL: DeepSeek's labels with images (deepseek-ai/DeepSeek-VL, utils/conversation.py and processing_vlm.py).
    LabelledTurns(
        name="deepseek-vl",
        roles=Roles(system="", user="User", assistant="Assistant"),
        separator="\n\n",
        answer_end=_END_OF_SENTENCE,
        default_system=(
            "You are a helpful language and vision assistant. "
            "You are able to understand the visual content that the user provides, "
            "and assist the user with a variety of tasks using natural language."
        ),
        stop=("User:",),  # one of the two stop strings of its own template; the other is the EOS
        stop_tokens=(_END_OF_SENTENCE,),
        sampling=MappingProxyType({"repetition_penalty": 1.1}),
        max_tokens=512,
        architectures=("deepseek_vl", "deepseek_vl_hybrid"),
        name_patterns=(r"deepseek-vl(?!-?2)",),
        image_token="<image_placeholder>",
    ),
    # DeepSeek V2.5, V3 and R1: role tokens without labels.
    LabelledTurns(
        name="deepseek-v3",
        roles=Roles(system="", user="<｜User｜>", assistant="<｜Assistant｜>"),
        label_end="",
        separator="",
        answer_end=_END_OF_SENTENCE,
        stop_tokens=(_END_OF_SENTENCE,),
        architectures=("deepseek_v3",),
        architectures_if_named=("deepseek_v2", "llama", "qwen2", "qwen3"),
        name_patterns=(r"deepseek-(v2\.5|v3|r1)",),
    ),
    # DeepSeek LLM, MoE, V2 and Coder-V2: labels in plain text.
    LabelledTurns(
        name="deepseek",
        roles=Roles(system="", user="User", assistant="Assistant"),
        separator="\n\n",
        answer_end=_END_OF_SENTENCE,
        stop_tokens=(_END_OF_SENTENCE,),
        architectures=("deepseek", "deepseek_v2"),
        name_patterns=(r"deepseek-(llm|moe|v2|coder-v2)",),
    ),
    # Zephyr, and TinyLlama chat: role tags on lines of their own, EOS after every turn (HuggingFaceH4's model card).
    MarkedTurns(
        name="zephyr",
        roles=CHAT_ROLES,
        before_role="<|",
        after_role="|>\n",
        separator="</s>\n",
        stop_tokens=("</s>",),
        architectures_if_named=("mistral", "mixtral"),
        # StableLM Zephyr ends its turns with another EOS, the Gemma one speaks ChatML.
        name_patterns=(r"(?<!stablelm-)(?<!stablelm-2-)zephyr(?!-7b-gemma)", r"tinyllama.*chat"),
    ),
    # ChatML: the form that OpenAI published, used by SmolLM2, Hermes, Dolphin and many other fine-tunes.
    MarkedTurns(
        name="chatml",
        roles=CHAT_ROLES,
        before_role="<|im_start|>",
        after_role="\n",
        separator="<|im_end|>\n",
        stop_tokens=("<|im_end|>",),
        add_bos=False,  # the form has none; SmolLM2 even declares <|im_start|> as its BOS
        architectures_if_named=("mistral", "mixtral"),
        name_patterns=(r"smollm(?!3)", r"hermes-[23]\b", r"dolphin.*mi[sx]tral", r"chatml"),
    ),
    _ALPACA,
    # Llama 2 chat: `<<SYS>>` inside the first `[INST]` (Meta's reference code). Every exchange begins with its own BOS,
    # so the form spells all of them, the first one too. Meta withdrew its first default system text, so there is none.
    InstTurns(
        name="llama2",
        roles=Roles(system="<<SYS>>", user="[INST]", assistant="[/INST]"),
        separator=" ",
        before_user="<s>[INST] ",
        before_system="<<SYS>>\n",
        after_system="\n<</SYS>>\n\n",
        answer_end=" </s>",
        stop_tokens=("</s>",),
        add_bos=False,
        name_patterns=(r"llama-?2.*chat",),
    ),
    # Llama 3 to 3.3: a header names the speaker (Meta's model cards). No default system text.
    MarkedTurns(
        name="llama3",
        roles=CHAT_ROLES,
        before_role="<|start_header_id|>",
        after_role="<|end_header_id|>\n\n",
        separator="<|eot_id|>",
        stop_tokens=("<|eot_id|>", "<|end_of_text|>"),
        name_patterns=(r"llama-?3.*(instruct|chat)",),
    ),
    # Falcon 180B chat: the form on its card.
    LabelledTurns(
        name="falcon-chat",
        roles=Roles(system="System", user="User", assistant="Falcon"),
        separator="\n",
        answer_end="\n",
        stop=("\nUser:",),
        stop_tokens=("<|endoftext|>",),
        add_bos=False,  # the vocabulary has none
        architectures_if_named=("falcon",),
        name_patterns=(r"falcon-180b",),
    ),
    # Falcon 7B and 40B instruct: their cards give no form; this one is used by FastChat and the public demos.
    LabelledTurns(
        name="falcon",
        roles=Roles(system="", user="User", assistant="Assistant"),
        separator="\n\n",
        answer_end="\n\n",
        # These models often write the user's next turn instead of EOS. At the start of a line, the label is no quote.
        stop=("\nUser:",),
        stop_tokens=("<|endoftext|>",),
        add_bos=False,  # the vocabulary has none
        architectures=("falcon", "RefinedWeb", "RefinedWebModel"),
        name_patterns=(r"falcon-(7|11|40)b", r"falcon-rw"),
    ),
    # Qwen 1 to 3, text and vision: ChatML with the system text of Qwen2 and all the VL models. Qwen2.5 text models name
    # their maker in it, and Qwen3 has none: their own chat templates say so and take precedence.
    MarkedTurns(
        name="qwen",
        roles=CHAT_ROLES,
        before_role="<|im_start|>",
        after_role="\n",
        separator="<|im_end|>\n",
        default_system="You are a helpful assistant.",
        stop_tokens=("<|im_end|>", "<|endoftext|>"),
        add_bos=False,  # the vocabulary has none
        architectures=(
            "qwen",
            "qwen2",
            "qwen2_moe",
            "qwen2_vl",
            "qwen2_5_vl",
            "qwen3",
            "qwen3_moe",
            "qwen3_next",
            "qwen3_vl",
            "qwen3_vl_moe",
        ),
        name_patterns=(r"qwen", r"qwq"),
        image_token="<|vision_start|><|image_pad|><|vision_end|>",
    ),
    # Gemma 1 to 3: `user` and `model` turns, no system role (Google's model cards). The system text comes before the
    # first user message, as in Gemma 3's own template.
    MarkedTurnsWithoutSystem(
        name="gemma",
        roles=Roles(system="", user="user", assistant="model"),
        before_role="<start_of_turn>",
        after_role="\n",
        separator="<end_of_turn>\n",
        stop_tokens=("<end_of_turn>",),
        architectures=("gemma", "gemma2", "gemma3", "gemma3_text", "gemma3n", "gemma3n_text", "recurrent_gemma"),
        name_patterns=(r"(?<!pali)(?<!embedding)gemma(?!-?4)",),  # Gemma 4 has other tokens
        image_token="<start_of_image>",
    ),
    # Phi-3 and Phi-3.5: `<|user|>`, `<|assistant|>` and `<|end|>` on lines of their own (Microsoft's model cards).
    MarkedTurns(
        name="phi3",
        roles=CHAT_ROLES,
        before_role="<|",
        after_role="|>\n",
        separator="<|end|>\n",
        stop_tokens=("<|end|>", "<|endoftext|>"),
        add_bos=False,  # the card's tokenizer adds none
        architectures=("phi3", "phimoe"),
        name_patterns=(r"phi-?3",),
    ),
    # Mistral and Mixtral instruct, v0.1 and v0.2: EOS after each answer (Mistral's model cards). There is no system
    # role. The later Tekken models (Nemo, Small) leave out some of the spaces; their own templates take precedence.
    InstTurns(
        name="mistral",
        roles=Roles(system="", user="[INST]", assistant="[/INST]"),
        separator=" ",
        # No space at the start, unlike the newer template: the tokenizer adds that one itself, after its own BOS.
        before_user="[INST] ",
        after_system="\n\n",
        answer_end="</s> ",
        stop_tokens=("</s>",),
        architectures=("mistral", "mixtral"),
        name_patterns=(r"mistral", r"mixtral"),
    ),
    PLAIN,
)
