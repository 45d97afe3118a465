"""Families of transformers: what is streamed is what the library's own eager attention says.

Every model is small, random and written by `save_pretrained`; it is opened through the intake, and held
against maps that the same weights give with `attn_implementation="eager"` and `output_attentions`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import transformers

from models.attention.metrics import importance
from models.attention.trace import LayerAttention
from models.checkpoints import intake
from models.checkpoints.bundle import Bundle, Item, Limits
from models.checkpoints.refused import Refused

pytestmark = pytest.mark.models

LENGTH, VOCABULARY, WINDOW = 12, 64, 4
PATCHES = 16  # of a picture of 16 x 16 in squares of 4
# A wide initialisation, so that attention is far from even.
S: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": VOCABULARY,
    "initializer_range": 0.4,
}
GROUPED = {**S, "num_key_value_heads": 2}
NARROW = {**GROUPED, "head_dim": 8}
SHORT = {**S, "max_position_embeddings": 64}
G: dict[str, Any] = {
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "vocab_size": VOCABULARY,
    "initializer_range": 0.4,
}
V: dict[str, Any] = {**S, "image_size": 16, "patch_size": 4}
del V["vocab_size"]


class Family(NamedTuple):
    """A configuration, and how many queries see position 0 in each of its two layers."""

    config: str
    settings: dict[str, Any]
    seen: tuple[int, int] = (LENGTH, LENGTH)
    causal: bool = True


def both(config: str, settings: dict[str, Any], *seen: int) -> Family:
    """A family whose queries look both ways."""
    first, second = seen or (LENGTH, LENGTH)
    return Family(config, settings, (first, second), causal=False)


TEXT = {
    "Llama": Family("LlamaConfig", GROUPED),
    "multi-query": Family("LlamaConfig", {**S, "num_key_value_heads": 1}),
    "Mistral": Family("MistralConfig", {**GROUPED, "sliding_window": WINDOW}, (WINDOW, WINDOW)),
    "Qwen2": Family("Qwen2Config", GROUPED),
    "Qwen3": Family("Qwen3Config", NARROW),
    "Gemma": Family("GemmaConfig", NARROW),
    "Gemma 2": Family("Gemma2Config", {**NARROW, "sliding_window": WINDOW}, (WINDOW, LENGTH)),
    "Gemma 3": Family(
        "Gemma3TextConfig",
        {**NARROW, "sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]},
        (WINDOW, LENGTH),
    ),
    "Phi": Family("PhiConfig", S),
    "Phi 3": Family("Phi3Config", {**S, "pad_token_id": 0}),
    "OLMo 2": Family("Olmo2Config", S),
    "GPT-2": Family("GPT2Config", G),
    "GPT-NeoX": Family("GPTNeoXConfig", S),
    "GPT-J": Family("GPTJConfig", {**G, "rotary_dim": 4}),
    "GPT-Neo": Family(
        "GPTNeoConfig",
        {
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "vocab_size": VOCABULARY,
            "attention_types": [[["global", "local"], 1]],
            "window_size": WINDOW,
            "initializer_range": 0.4,
        },
        (LENGTH, WINDOW),
    ),
    "OPT": Family(
        "OPTConfig",
        {
            "hidden_size": 32,
            "word_embed_proj_dim": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "ffn_dim": 48,
            "vocab_size": VOCABULARY,
            "init_std": 0.4,
        },
    ),
    "Falcon": Family("FalconConfig", S),
    "BLOOM": Family(
        "BloomConfig",
        {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": VOCABULARY, "initializer_range": 0.4},
    ),
    "MPT": Family(
        "MptConfig",
        {
            "d_model": 32,
            "n_heads": 4,
            "n_layers": 2,
            "vocab_size": VOCABULARY,
            "max_seq_len": 64,
            "initializer_range": 0.4,
        },
    ),
    "StarCoder 2": Family("Starcoder2Config", GROUPED),
    "GPT-BigCode": Family("GPTBigCodeConfig", G),
    "CodeGen": Family("CodeGenConfig", {**G, "rotary_dim": 4}),
    "Cohere": Family("CohereConfig", GROUPED),
    "Granite": Family("GraniteConfig", S),
    "SmolLM3": Family("SmolLM3Config", {**GROUPED, "pad_token_id": 0}),
    "Mixtral": Family("MixtralConfig", {**GROUPED, "num_local_experts": 4}),
    "Qwen2-MoE": Family(
        "Qwen2MoeConfig",
        {**GROUPED, "num_experts": 4, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16},
    ),
    "DeepSeek V3": Family(
        "DeepseekV3Config",
        {
            **S,
            "num_key_value_heads": 4,
            "n_routed_experts": 4,
            "moe_intermediate_size": 16,
            "first_k_dense_replace": 1,
            "n_group": 1,
            "topk_group": 1,
            "num_experts_per_tok": 2,
            "q_lora_rank": 8,
            "kv_lora_rank": 8,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 8,
        },
    ),
    "Llama 4": Family("Llama4TextConfig", {**NARROW, "num_local_experts": 4, "intermediate_size_mlp": 48}),
    "BERT": both("BertConfig", S),
    "RoBERTa": both("RobertaConfig", SHORT),
    "XLM-RoBERTa": both("XLMRobertaConfig", SHORT),
    "DistilBERT": both(
        "DistilBertConfig",
        {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "vocab_size": VOCABULARY},
    ),
    "ELECTRA": both("ElectraConfig", {**S, "embedding_size": 16}),
    "ALBERT": both("AlbertConfig", {**S, "embedding_size": 16}),
    "DeBERTa": both("DebertaConfig", S),
    "DeBERTa 2": both("DebertaV2Config", S),
    "ModernBERT": both(
        "ModernBertConfig",
        {
            **S,
            "global_attn_every_n_layers": 2,
            "local_attention": WINDOW,
            **dict.fromkeys(("bos_token_id", "cls_token_id"), 1),
            **dict.fromkeys(("eos_token_id", "sep_token_id"), 2),
            "pad_token_id": 0,
        },
        LENGTH,
        WINDOW // 2 + 1,  # half of the window to each side
    ),
    "MPNet": both("MPNetConfig", S),
    "XLNet": both(
        "XLNetConfig",
        {
            "d_model": 32,
            "n_layer": 2,
            "n_head": 4,
            "d_inner": 48,
            "vocab_size": VOCABULARY,
            "initializer_range": 0.4,
        },
    ),
    "ERNIE": both("ErnieConfig", S),
}

# Beside its patches a model may have a class token, one for distillation, registers.
VISION = {
    "ViT": both("ViTConfig", V, PATCHES + 1, PATCHES + 1),
    "DeiT": both("DeiTConfig", V, PATCHES + 2, PATCHES + 2),
    "DINOv2": both("Dinov2Config", V, PATCHES + 1, PATCHES + 1),
    "DINOv2 with registers": both("Dinov2WithRegistersConfig", V, PATCHES + 5, PATCHES + 5),
    "BEiT": both("BeitConfig", V, PATCHES + 1, PATCHES + 1),
    "CLIP": both("CLIPVisionConfig", V, PATCHES + 1, PATCHES + 1),
    "SigLIP": both("SiglipVisionConfig", V, PATCHES, PATCHES),
    "MSN": both("ViTMSNConfig", V, PATCHES + 1, PATCHES + 1),
}

REFUSED = {
    "learned sinks": (
        Family("GptOssConfig", {**NARROW, "num_local_experts": 4, "num_experts_per_tok": 2}),
        "learned sinks",
        "not comparable",
    ),
    "attention of its own": (Family("StableLmConfig", S), "does not show the attention", "ONNX"),
    "no attention": (
        Family("MambaConfig", {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": VOCABULARY}),
        "no attention heads",
        "Only models that compute attention",
    ),
    "patches left out": (both("ViTMAEConfig", V), "does not keep the 16 patches", "npy"),
}


def saved(family: Family, folder: Path) -> tuple[Any, Bundle]:
    """The model with the library's eager attention, and its files."""
    torch.manual_seed(0)
    config = getattr(transformers, family.config)(**family.settings)
    maker = transformers.AutoModel._model_mapping[type(config)]
    maker = maker[0] if isinstance(maker, tuple) else maker
    try:
        model = maker._from_config(config, attn_implementation="eager").eval()
    except ValueError:  # a model whose attention is its own knows no such setting
        model = maker(config).eval()
    model.save_pretrained(folder)
    return model, Bundle(tuple(Item(p.name, p) for p in sorted(folder.iterdir()) if p.is_file()))


def held(family: Family, model: Any, bundle: Bundle, inputs: torch.Tensor, name: str) -> None:
    """The streamed importances are those of the library's own maps, layer by layer."""
    opened = intake.open_model(bundle, Limits(), "cpu")
    found: list[LayerAttention] = []
    opened.trace(
        inputs,
        on_attention=found.append,
    )
    with torch.no_grad():
        maps = model(**{name: inputs}, output_attentions=True).attentions
    assert len(found) == len(maps) == opened.layers == 2
    assert opened.heads == 4
    for layer, own in zip(found, maps, strict=True):
        expected = importance(own.float().numpy(), causal=family.causal)
        np.testing.assert_allclose(layer.importance, expected, atol=3e-6)
    assert tuple(int(layer.seen_by[0, 0]) for layer in found) == family.seen
    assert all((layer.seen_by[0, -1] == 1) == family.causal for layer in found)


@pytest.mark.parametrize("name", TEXT)
def test_text(name: str, tmp_path: Path) -> None:
    model, bundle = saved(TEXT[name], tmp_path)
    ids = torch.randint(5, 60, (1, LENGTH), generator=torch.Generator().manual_seed(1))
    held(TEXT[name], model, bundle, ids, "input_ids")


@pytest.mark.parametrize("name", VISION)
def test_vision(name: str, tmp_path: Path) -> None:
    model, bundle = saved(VISION[name], tmp_path)
    found = intake.inspect(bundle, Limits())
    assert (found.takes, found.image) == ("image", (3, 16, 16))
    images = intake.open_model(bundle, Limits(), "cpu").images
    assert images is not None
    picture = np.random.default_rng(0).integers(0, 255, (20, 20, 3), dtype=np.uint8)
    held(VISION[name], model, bundle, images.prepare([picture]), "pixel_values")


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_measured_is_refused_and_says_why(name: str, tmp_path: Path) -> None:
    family, says, remedy = REFUSED[name]
    _, bundle = saved(family, tmp_path)
    with pytest.raises(Refused) as refused:
        intake.open_model(bundle, Limits(), "cpu")
    assert refused.value.kind == "brought_unsupported"
    assert says in refused.value.message
    assert remedy in refused.value.remedy


def test_the_window_is_told_before_anything_runs(tmp_path: Path) -> None:
    _, bundle = saved(TEXT["Gemma 2"], tmp_path)
    assert intake.inspect(bundle, Limits()).window == f"1 of 2 layers see a window of {WINDOW} tokens"
