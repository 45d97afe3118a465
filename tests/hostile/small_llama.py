"""A Llama of one layer as a Hugging Face folder: its configuration, weights and tokenizer."""

from __future__ import annotations

import json

import numpy as np

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 16,
    "max_position_embeddings": 16,
}

TOKENIZER = json.dumps(
    {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": 0, "content": "<s>", "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True}],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                          "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                  "vocab": {"<s>": 0, "a": 1, "b": 2, "ab": 3}, "merges": [["a", "b"]]},
    }
).encode()  # fmt: skip


def tensors() -> dict[str, np.ndarray]:
    """What save_pretrained writes for CONFIG, without the head."""
    draw = np.random.default_rng(0)
    layer = "layers.0."
    shapes = {
        "embed_tokens.weight": (16, 8),
        "norm.weight": (8,),
        f"{layer}input_layernorm.weight": (8,),
        f"{layer}post_attention_layernorm.weight": (8,),
        f"{layer}self_attn.q_proj.weight": (8, 8),
        f"{layer}self_attn.k_proj.weight": (4, 8),
        f"{layer}self_attn.v_proj.weight": (4, 8),
        f"{layer}self_attn.o_proj.weight": (8, 8),
        f"{layer}mlp.gate_proj.weight": (8, 8),
        f"{layer}mlp.up_proj.weight": (8, 8),
        f"{layer}mlp.down_proj.weight": (8, 8),
    }
    return {name: draw.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def weights() -> bytes:
    from safetensors.numpy import save

    return save(tensors())
