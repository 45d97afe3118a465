"""timm's vision transformers: renamed into transformers', they attend as their definition says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from models.attention.metrics import importance
from models.attention.trace import LayerAttention
from models.checkpoints import intake
from models.checkpoints.bundle import Bundle, Item, Limits

pytestmark = pytest.mark.models

WIDTH, DEPTH, HEADS, PATCH, SIDE = 48, 3, 3, 16, 2


class Attention(nn.Module):
    """Queries, keys and values from one projection, cut as timm does: (3, heads, width of a head)."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, t, _ = x.shape
        q, k, v = self.qkv(x).reshape(n, t, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        self.maps = (q @ k.transpose(-2, -1) / (WIDTH // HEADS) ** 0.5).softmax(-1)
        return self.proj((self.maps @ v).transpose(1, 2).reshape(n, t, WIDTH))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH, eps=1e-6), nn.LayerNorm(WIDTH, eps=1e-6)
        self.attn = Attention()
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(WIDTH, 96), "fc2": nn.Linear(96, WIDTH)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp["fc2"](nn.functional.gelu(self.mlp["fc1"](self.norm2(x))))


class ViT(nn.Module):
    """The computation of Dosovitskiy et al. 2021 with timm's names of tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.pos_embed = nn.Parameter(torch.zeros(1, SIDE * SIDE + 1, WIDTH))
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(3, WIDTH, PATCH, PATCH)})
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.norm, self.head = nn.LayerNorm(WIDTH, eps=1e-6), nn.Linear(WIDTH, 5)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        patches = self.patch_embed["proj"](pixels).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(pixels), -1, -1), patches], 1) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


def saved(model: Any, architecture: str, folder: Path, **arguments: Any) -> Bundle:
    """config.json and model.safetensors as timm pushes them to a hub."""
    save_file({k: v.contiguous() for k, v in model.state_dict().items()}, folder / "model.safetensors")
    config = {"architecture": architecture, "num_classes": 5, "pretrained_cfg": {}, "model_args": arguments}
    (folder / "config.json").write_text(json.dumps(config))
    return Bundle(tuple(Item(p.name, p) for p in sorted(folder.iterdir())))


def maps_of(model: Any, pixels: torch.Tensor) -> list[np.ndarray]:
    with torch.no_grad():
        model(pixels)
    return [block.attn.maps.numpy() for block in model.blocks]


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "deit_tiny_patch16_224"])
def test_maps_are_those_of_the_definition(tmp_path: Path, name: str) -> None:
    torch.manual_seed(0)
    model = ViT().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)  # so that attention is far from even
    brought = saved(model, name, tmp_path)
    seen = intake.inspect(brought, Limits())
    assert seen.refusal is None
    assert (seen.opener, seen.layers, seen.heads, seen.width) == ("timm", 3, 3, 48)
    assert (seen.image, seen.length, seen.takes) == ((3, 32, 32), 5, "image")
    opened = intake.open_model(brought, Limits(), "cpu")
    assert opened.images is not None
    picture = np.random.default_rng(0).integers(0, 255, (40, 30, 3), dtype=np.uint8)
    pixels = opened.images.prepare([picture])
    assert opened.images.pieces(pixels) == ["[CLS]", "0,0", "0,1", "1,0", "1,1"]
    layers: list[LayerAttention] = []
    opened.trace(
        pixels,
        on_attention=layers.append,
    )
    expected = maps_of(model, pixels)
    assert len(layers) == len(expected) == 3
    for layer, maps in zip(layers, expected, strict=True):
        np.testing.assert_allclose(layer.importance, importance(maps, causal=False), atol=1e-5)


@pytest.mark.parametrize(
    ("architecture", "extra", "where"),
    [
        ("swin_tiny_patch4_window7_224", {}, "architecture"),
        ("resnet50", {}, "architecture"),
        ("vit_tiny_patch16_224", {"reg_token": torch.zeros(1, 4, 48)}, "reg_token"),
        ("vit_tiny_patch16_224", {"blocks.0.ls1.gamma": torch.zeros(48)}, "blocks.0.ls1.gamma"),
    ],
)
def test_what_is_not_plain_is_refused_by_name(
    tmp_path: Path, architecture: str, extra: dict[str, torch.Tensor], where: str
) -> None:
    model = ViT()
    brought = saved(model, architecture, tmp_path)
    save_file(
        {**{k: v.contiguous() for k, v in model.state_dict().items()}, **extra},
        tmp_path / "model.safetensors",
    )
    seen = intake.inspect(brought, Limits())
    assert seen.refusal is not None
    assert (seen.refusal["kind"], seen.refusal["where"]) == ("brought_unsupported", where)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    model = ViT()
    brought = saved(model, "vit_tiny_patch16_224", tmp_path)
    state = {k: v.contiguous() for k, v in model.state_dict().items() if k != "pos_embed"}
    save_file(state, tmp_path / "model.safetensors")
    seen = intake.inspect(brought, Limits())
    assert seen.refusal is not None
    assert (seen.refusal["kind"], seen.refusal["where"]) == ("brought_incomplete", "pos_embed")
