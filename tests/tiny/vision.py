"""Models that read pictures and text, each with its processor.

`NEEDS_TORCHVISION` are folders as they stand on the Hub, whose processor class has a video half: the library cannot
load it without torchvision (SmolVLM's wants num2words too), though the model, the tokenizer and the image processor
load. The same two models under their plain names come with the nearest processor class that has no video half and
gives the same inputs.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

from tiny import tokenizers
from tiny.weights import Builder, save

HIDDEN = 48
SIDE, PATCH = 28, 7
TEXT: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
VISION: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": SIDE,
    "patch_size": PATCH,
}

FAKE, GLOBAL, END = "<fake_token_around_image>", "<global-img>", "<end_of_utterance>"
ROWS_AND_COLUMNS = tuple(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7))

SPLIT_TOKENS = (FAKE, GLOBAL, END, *ROWS_AND_COLUMNS)
QWEN_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|video_pad|>")


def template(
    *, image: str, user: str, assistant: str, end: str, system: str = "", start: str = "", separator: str = " "
) -> str:
    """A chat template whose message contents are strings or lists of parts, with `image` for every picture.

    `start` stands before all messages; `user`, `assistant` and `system` introduce a message of that role, and `end`
    closes each; `separator` stands before each text.
    """
    said = {
        "@image": image,
        "@user": user,
        "@assistant": assistant,
        "@system": system,
        "@end": end,
        "@start": start,
        "@separator": separator,
    }
    source = (
        "{{ @start }}"
        "{% for message in messages %}"
        "{% if message['role'] == 'assistant' %}{{ @assistant }}"
        "{% elif message['role'] == 'system' %}{{ @system }}{% else %}{{ @user }}{% endif %}"
        "{% if message['content'] is string %}{{ @separator + message['content'] }}"
        "{% else %}{% for part in message['content'] %}"
        "{% if part['type'] == 'image' %}{{ @image }}"
        "{% elif part['type'] == 'text' %}{{ @separator + part['text'] }}{% endif %}"
        "{% endfor %}{% endif %}"
        "{{ @end }}"
        "{% endfor %}"
        "{% if add_generation_prompt %}{{ @assistant }}{% endif %}"
    )
    for name, text in said.items():
        source = source.replace(name, json.dumps(text))
    return source


DEEPSEEK_TEMPLATE = template(
    image="<image_placeholder>", user="User:", assistant="Assistant:", end="\n\n", system="System:"
)
LLAVA_TEMPLATE = template(image="<image>\n", user="USER: ", assistant="ASSISTANT:", end=" ", separator="")
QWEN_TEMPLATE = template(
    image="<|vision_start|><|image_pad|><|vision_end|>",
    user="<|im_start|>user\n",
    assistant="<|im_start|>assistant\n",
    system="<|im_start|>system\n",
    end="<|im_end|>\n",
    separator="",
)
IDEFICS_TEMPLATE = template(
    start="<s>", image="<image>", user="User:", assistant="Assistant:", system="System:", end=f"{END}\n"
)
SMOLVLM_TEMPLATE = template(
    start="<|im_start|>", image="<image>", user="User:", assistant="Assistant:", system="System:", end=f"{END}\n"
)


def deepseek_vl(folder: Path) -> None:
    """SigLIP and Llama; 16 placeholders for a picture of any size, which is padded to a square."""
    import transformers

    tokenizer = tokenizers.byte_level(
        add_bos=True, named={"image_token": "<image_placeholder>"}, chat_template=DEEPSEEK_TEMPLATE
    )
    config = transformers.DeepseekVLConfig(
        text_config=transformers.LlamaConfig(**TEXT, **_ids(tokenizer)),
        vision_config=transformers.SiglipVisionConfig(**VISION),
        image_token_id=tokenizer.image_token_id,
        tie_word_embeddings=False,
    )
    images = transformers.DeepseekVLImageProcessorPil(size={"height": SIDE, "width": SIDE}, min_size=PATCH)
    processor = transformers.DeepseekVLProcessor(
        images, tokenizer, chat_template=DEEPSEEK_TEMPLATE, num_image_tokens=(SIDE // PATCH) ** 2
    )
    _save(folder, config, tokenizer)
    processor.save_pretrained(folder)


def llava(folder: Path) -> None:
    """CLIP and Llama; 16 placeholders (the class feature is left out) for the middle of the picture."""
    import transformers

    tokenizer = tokenizers.byte_fallback(named={"image_token": "<image>"}, chat_template=LLAVA_TEMPLATE)
    config = transformers.LlavaConfig(
        text_config=transformers.LlamaConfig(**TEXT, **_ids(tokenizer)),
        vision_config=transformers.CLIPVisionConfig(**VISION, projection_dim=32),
        image_token_index=tokenizer.image_token_id,
        image_seq_length=(SIDE // PATCH) ** 2,
    )
    images = transformers.LlavaImageProcessorPil(
        size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE}
    )
    processor = transformers.LlavaProcessor(
        images,
        tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=LLAVA_TEMPLATE,
    )
    _save(folder, config, tokenizer)
    processor.save_pretrained(folder)


def qwen2_vl(folder: Path, *, hub: bool = False) -> None:
    """Qwen 2 with three-part rotary positions; 4 to 16 placeholders, by the size of the picture."""
    import transformers

    tokenizer = tokenizers.byte_level(
        split=tokenizers.QWEN2_SPLIT,
        normalize=True,
        eos=tokenizers.IM_END,
        extra=QWEN_TOKENS,
        named={"image_token": "<|image_pad|>"},
        chat_template=QWEN_TEMPLATE,
    )
    ids = dict(zip(QWEN_TOKENS, tokenizer.convert_tokens_to_ids(list(QWEN_TOKENS)), strict=True))
    text = {**TEXT, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 2, 2]}}
    config = transformers.Qwen2VLConfig(
        text_config=transformers.Qwen2VLTextConfig(**text, **_ids(tokenizer)),
        vision_config=transformers.models.qwen2_vl.configuration_qwen2_vl.Qwen2VLVisionConfig(
            depth=2, embed_dim=32, hidden_size=HIDDEN, mlp_ratio=2, num_heads=2, patch_size=PATCH
        ),
        image_token_id=tokenizer.image_token_id,
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        video_token_id=ids["<|video_pad|>"],
    )
    images = transformers.Qwen2VLImageProcessorPil(
        patch_size=PATCH, size={"shortest_edge": SIDE * SIDE, "longest_edge": 4 * SIDE * SIDE}
    )
    _save(folder, config, tokenizer)
    if hub:
        _save_as_on_hub(folder, images, tokenizer, "Qwen2VLProcessor", QWEN_TEMPLATE)
    else:
        transformers.PaddleOCRVLProcessor(images, tokenizer, chat_template=QWEN_TEMPLATE).save_pretrained(folder)


def idefics3(folder: Path) -> None:
    """SigLIP-like and Llama; a picture becomes 2x2 tiles (or 2x1) and the whole, with 4 placeholders each.

    As on the Hub, the template writes `<s>` and the tokenizer adds it once more.
    """
    import transformers

    tokenizer = tokenizers.byte_level(
        900, add_bos=True, extra=("<image>", *SPLIT_TOKENS), chat_template=IDEFICS_TEMPLATE
    )
    config = transformers.Idefics3Config(
        text_config=transformers.LlamaConfig(**TEXT, **_ids(tokenizer)),
        vision_config=transformers.models.idefics3.configuration_idefics3.Idefics3VisionConfig(**VISION),
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        pad_token_id=tokenizer.pad_token_id,
        scale_factor=2,
    )
    images = transformers.Idefics3ImageProcessorPil(
        size={"longest_edge": 2 * SIDE}, max_image_size={"longest_edge": SIDE}
    )
    processor = transformers.Idefics3Processor(
        images, tokenizer, image_seq_len=(SIDE // PATCH // 2) ** 2, chat_template=IDEFICS_TEMPLATE
    )
    _save(folder, config, tokenizer)
    processor.save_pretrained(folder)


def smolvlm(folder: Path, *, hub: bool = False) -> None:
    """Like Idefics 3, but small pictures, so no tiles: one whole with 4 placeholders."""
    import transformers

    tokenizer = tokenizers.byte_level(
        900, extra=SPLIT_TOKENS, named={"image_token": "<image>"}, chat_template=SMOLVLM_TEMPLATE
    )
    config = transformers.SmolVLMConfig(
        text_config=transformers.LlamaConfig(**TEXT, **_ids(tokenizer)),
        vision_config=transformers.models.smolvlm.configuration_smolvlm.SmolVLMVisionConfig(**VISION),
        image_token_id=tokenizer.image_token_id,
        pad_token_id=tokenizer.pad_token_id,
        scale_factor=2,
    )
    images = transformers.SmolVLMImageProcessorPil(size={"longest_edge": SIDE}, max_image_size={"longest_edge": SIDE})
    length = (SIDE // PATCH // 2) ** 2
    _save(folder, config, tokenizer)
    if hub:
        _save_as_on_hub(folder, images, tokenizer, "SmolVLMProcessor", SMOLVLM_TEMPLATE, image_seq_len=length)
    else:
        processor = transformers.Idefics3Processor(
            images, tokenizer, image_seq_len=length, chat_template=SMOLVLM_TEMPLATE
        )
        processor.save_pretrained(folder)


def _ids(tokenizer: Any) -> dict[str, int]:
    return {
        "vocab_size": len(tokenizer),
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


def _save(folder: Path, config: Any, tokenizer: Any) -> None:
    """The model, whose head never gives a token that stands for a picture."""
    known = tokenizer.get_vocab()
    ends = [known[token] for token in (tokenizers.EOS, tokenizers.IM_END, END) if token in known]
    ids = {"bos_token_id": tokenizer.bos_token_id, "pad_token_id": tokenizer.pad_token_id, "eos_token_id": ends}
    mute = [known[t] for t in ("<image>", "<image_placeholder>", "<|image_pad|>", *QWEN_TOKENS) if t in known]
    mute += [known[t] for t in SPLIT_TOKENS if t in known and t != END]
    save(folder, "AutoModelForImageTextToText", config, generation=ids, mute=mute)


def _save_as_on_hub(
    folder: Path, images: Any, tokenizer: Any, processor_class: str, chat_template: str, **options: Any
) -> None:
    """The files of checkpoints from before transformers 5, where the template stands in two JSON files."""
    tokenizer.save_pretrained(folder)
    (folder / "chat_template.jinja").unlink()
    tokenizer_config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    files: dict[str, dict[str, Any]] = {
        "preprocessor_config.json": {**images.to_dict(), "processor_class": processor_class},
        "chat_template.json": {"chat_template": chat_template},
        "tokenizer_config.json": {**tokenizer_config, "chat_template": chat_template},
    }
    if options:
        files["processor_config.json"] = {**options, "processor_class": processor_class}
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


ARCHITECTURES: dict[str, Builder] = {
    "deepseek_vl": deepseek_vl,
    "llava": llava,
    "qwen2_vl": qwen2_vl,
    "idefics3": idefics3,
    "smolvlm": smolvlm,
}
NEEDS_TORCHVISION: dict[str, Builder] = {
    "qwen2_vl_hub": partial(qwen2_vl, hub=True),
    "smolvlm_hub": partial(smolvlm, hub=True),
}
