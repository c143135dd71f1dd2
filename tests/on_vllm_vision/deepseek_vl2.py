"""A tiny DeepSeek-VL2 with random weights, as its folder stands on the Hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from on_vllm_vision.parts.sitecustomize import WIDTH
from tiny import tokenizers

SIDE = 384
HIDDEN, HEADS, LAYERS, EXPERTS, INNER = 64, 2, 2, 4, 32
TOWER = "vit_so400m_patch14_siglip_384.webli"
ROLES = ("<|User|>", "<|Assistant|>")
OTHERS = ("<|ref|>", "<|/ref|>", "<|det|>", "<|/det|>", "<|grounding|>")


def checkpoint(folder: Path) -> Path:
    tokenizer = tokenizers.byte_level(add_bos=True, named={"image_token": "<image>"}, extra=ROLES + OTHERS)
    tokenizer.save_pretrained(folder)
    processor = {
        "processor_class": "DeepseekVLV2Processor",
        "candidate_resolutions": [[SIDE, SIDE]],
        "patch_size": 14,
        "downsample_ratio": 2,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "normalize": True,
        "image_token": "<image>",
        "pad_token": tokenizer.pad_token,
        "add_special_token": False,
        "sft_format": "deepseek",
        "mask_prompt": False,
        "ignore_id": -100,
    }
    for name in ("processor_config.json", "preprocessor_config.json"):
        (folder / name).write_text(json.dumps(processor))
    vocabulary = len(tokenizer)
    (folder / "config.json").write_text(json.dumps(_config(vocabulary, tokenizer)))
    _save_weights(folder, vocabulary)
    return folder


def _config(vocabulary: int, tokenizer: Any) -> dict[str, Any]:
    text = {
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "vocab_size": vocabulary,
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "moe_intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HIDDEN // HEADS,
        "n_routed_experts": EXPERTS,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "greedy",
        "kv_lora_rank": None,
        "q_lora_rank": None,
        "qk_nope_head_dim": 0,
        "qk_rope_head_dim": 0,
        "v_head_dim": 0,
        "use_mla": False,
        "max_position_embeddings": 2048,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "torch_dtype": "float32",
    }
    return {
        "model_type": "deepseek_vl_v2",
        "architectures": ["DeepseekVLV2ForCausalLM"],
        "torch_dtype": "float32",
        "tile_tag": "2D",
        "global_view_pos": "head",
        "candidate_resolutions": [[SIDE, SIDE]],
        "vision_config": {"model_type": "vision", "patch_size": 14, "width": WIDTH, "image_size": SIDE},
        "projector_config": {
            "model_type": "mlp_projector",
            "n_embed": HIDDEN,
            "input_dim": WIDTH,
            "depth": 2,
            "downsample_ratio": 2,
            "projector_type": "downsample_mlp_gelu",
        },
        "language_config": text,
    }


def _save_weights(folder: Path, vocabulary: int) -> None:
    import timm
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(20)
    tower = timm.create_model(TOWER, pretrained=False, num_classes=0, dynamic_img_size=True, dynamic_img_pad=True)
    shapes = {f"vision.{name}": tuple(value.shape) for name, value in tower.state_dict().items()}
    shapes |= {
        "image_newline": (HIDDEN,),
        "view_seperator": (HIDDEN,),
        "projector.layers.0.weight": (HIDDEN, 4 * WIDTH),
        "projector.layers.0.bias": (HIDDEN,),
        "projector.layers.2.weight": (HIDDEN, HIDDEN),
        "projector.layers.2.bias": (HIDDEN,),
        "language.model.embed_tokens.weight": (vocabulary, HIDDEN),
        "language.model.norm.weight": (HIDDEN,),
        "language.lm_head.weight": (vocabulary, HIDDEN),
    }
    for layer in range(LAYERS):
        front = f"language.model.layers.{layer}"
        shapes |= {f"{front}.self_attn.{name}_proj.weight": (HIDDEN, HIDDEN) for name in "qkvo"}
        shapes |= {f"{front}.{name}_layernorm.weight": (HIDDEN,) for name in ("input", "post_attention")}
        if layer == 0:
            shapes |= _mlp(f"{front}.mlp", 2 * HIDDEN)
            continue
        shapes |= {f"{front}.mlp.gate.weight": (EXPERTS, HIDDEN), **_mlp(f"{front}.mlp.shared_experts", INNER)}
        for expert in range(EXPERTS):
            shapes |= _mlp(f"{front}.mlp.experts.{expert}", INNER)
    save_file({name: _random(name, shape) for name, shape in shapes.items()}, folder / "model.safetensors")


def _mlp(front: str, inner: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{front}.gate_proj.weight": (inner, HIDDEN),
        f"{front}.up_proj.weight": (inner, HIDDEN),
        f"{front}.down_proj.weight": (HIDDEN, inner),
    }


def _random(name: str, shape: tuple[int, ...]) -> Any:
    """Numbers of a size that lets an image and a word far back be felt at the end."""
    import torch

    if "norm" in name and name.endswith("weight"):
        return torch.ones(shape)
    if name.endswith("bias") or len(shape) == 1:
        return 0.1 * torch.randn(shape)
    fan_in = max(1, torch.Size(shape[1:]).numel())
    return torch.randn(shape) * (1.0 if "embed" in name else 1.5 / fan_in**0.5)
