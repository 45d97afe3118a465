"""Graphs that torch.onnx.export writes of many architectures: equal to eager attention."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf

from models.checkpoints.bundle import Bundle, Item, Limits
from models.checkpoints.openers import onnx as opener
from models.checkpoints.refused import Refused
from tests.models.test_openers_onnx import traced

LAYERS, HEADS, LENGTH = 2, 4, 12
SIZES = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
FAMILIES: dict[str, tuple[Any, Any]] = {
    "gpt2": (
        hf.GPT2Config(vocab_size=99, n_embd=32, n_layer=LAYERS, n_head=HEADS, n_positions=64),
        hf.GPT2Model,
    ),
    "opt": (
        hf.OPTConfig(**{k: v for k, v in SIZES.items() if k != "intermediate_size"}, word_embed_proj_dim=32),
        hf.OPTModel,
    ),
    "mistral": (hf.MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=4), hf.MistralModel),
    "gemma2": (
        hf.Gemma2Config(**SIZES, num_key_value_heads=2, head_dim=8, sliding_window=4),
        hf.Gemma2Model,
    ),
    "neox": (hf.GPTNeoXConfig(**SIZES), hf.GPTNeoXModel),
    "bloom": (hf.BloomConfig(vocab_size=99, hidden_size=32, n_layer=LAYERS, n_head=HEADS), hf.BloomModel),
    "roberta": (hf.RobertaConfig(**SIZES), hf.RobertaModel),
    "t5": (
        hf.T5Config(vocab_size=99, d_model=32, d_kv=8, d_ff=48, num_layers=LAYERS, num_heads=HEADS),
        hf.T5EncoderModel,
    ),
    "vit": (
        hf.ViTConfig(
            hidden_size=32,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            intermediate_size=48,
            image_size=32,
            patch_size=8,
        ),
        hf.ViTModel,
    ),
    "swin": (
        hf.SwinConfig(image_size=32, patch_size=2, embed_dim=16, depths=[2], num_heads=[2]),
        hf.SwinModel,
    ),
}
IMAGES = ("vit", "swin")


class _Bare(torch.nn.Module):
    def __init__(self, model: Any, image: bool) -> None:
        super().__init__()
        self.model, self.image = model, image

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return (
            self.model(pixel_values=x)[0] if self.image else self.model(input_ids=x, attention_mask=mask)[0]
        )


def exported(name: str, attention: str, folder: Path) -> tuple[Any, torch.Tensor, Bundle]:
    """A tiny random model, an input for it, and its graph."""
    settings, kind = FAMILIES[name]
    settings.use_cache = False
    torch.manual_seed(1)
    model = kind._from_config(settings, attn_implementation=attention).eval()
    image = name in IMAGES
    x = torch.randn(1, 3, 32, 32) if image else torch.randint(5, 99, (1, LENGTH))
    inputs = (x,) if image else (x, torch.ones_like(x))
    names = ["pixel_values"] if image else ["input_ids", "attention_mask"]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            _Bare(model, image).eval(),
            inputs,
            str(folder / "0"),
            input_names=names,
            output_names=["y"],
            dynamic_axes=None if image else {n: {0: "batch", 1: "sequence"} for n in names},
            opset_version=17,
            dynamo=False,
        )
    return model, x, Bundle((Item("model.onnx", folder / "0"),))


@pytest.mark.parametrize(
    ("name", "attention"),
    [
        *((name, "eager") for name in FAMILIES if name != "swin"),
        ("gpt2", "sdpa"),
        ("mistral", "sdpa"),
        ("vit", "sdpa"),
    ],
)
def test_exported_families(name: str, attention: str, tmp_path: Path) -> None:
    model, x, found = exported(name, attention, tmp_path)
    card = opener.inspect(found, Limits())
    assert card.refusal is None
    assert (card.layers, card.heads) in ((LAYERS, HEADS), (LAYERS, None))
    assert card.vocabulary == (None if name in IMAGES else 99)
    brought = opener.open_model(found, Limits(), "cpu")
    assert (brought.layers, brought.heads) == (LAYERS, HEADS)
    other = x if name in IMAGES else torch.randint(5, 99, (1, LENGTH - 3))  # not the exported length
    layers, drawn = traced(brought, other)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        given = {"pixel_values": other} if name in IMAGES else {"input_ids": other}
        maps = model(**given, output_attentions=True).attentions
    for (layer, _, head), weights in drawn.items():
        np.testing.assert_allclose(weights, maps[layer][0, head].numpy(), atol=1e-5)
    window = {"mistral": (0, 1), "gemma2": (0,)}.get(name, ())
    for layer_ in layers:
        assert (layer_.seen_by.max() == 4) == (layer_.layer in window)


def test_patches_of_an_exported_vit(tmp_path: Path) -> None:
    _, x, found = exported("vit", "eager", tmp_path)
    card = opener.inspect(found, Limits())
    assert (card.takes, card.image) == ("image", (3, 32, 32))
    images = opener.open_model(found, Limits(), "cpu").images
    assert images is not None
    assert images.pieces(x) == ["[CLS]", *(f"{r},{c}" for r in range(4) for c in range(4))]
    assert images.prepare([np.zeros((50, 70, 3), np.uint8)] * 2).shape == (2, 3, 32, 32)


def test_attention_within_windows_is_said(tmp_path: Path) -> None:
    _, _, found = exported("swin", "eager", tmp_path)
    with pytest.raises(Refused, match="within windows"):
        opener.open_model(found, Limits(), "cpu")
