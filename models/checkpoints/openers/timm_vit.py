"""A vision transformer saved by timm: config.json with `architecture`, and model.safetensors.

timm itself is not needed: its ViT and transformers' are the same computation under other names, so
the tensors are renamed and the model goes the way of every other one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from models.checkpoints import safetensors_header
from models.checkpoints.bundle import Bundle, Item, Limits, Progress
from models.checkpoints.hf_config import NAME, HFConfig
from models.checkpoints.inspection import Inspection, Tensor
from models.checkpoints.refused import Refused, shown

if TYPE_CHECKING:
    import torch

    from models.checkpoints.attention import AttentionModel

SLUG = "timm"
FORMAT = "timm folder, safetensors"
# The file does not tell the number of heads; the name of the architecture does.
_HEADS = {"tiny": 3, "little": 5, "small": 6, "medium": 8, "base": 12, "large": 16, "huge": 16}
_NAME = re.compile(r"^(?:vit|deit3?)_(tiny|little|small|medium|base|large|huge)_patch(\d+)")
_BLOCK = re.compile(r"^blocks\.(\d+)\.")
_KNOWN = re.compile(
    r"^(?:cls_token|pos_embed|patch_embed\.proj\.(?:weight|bias)|norm\.(?:weight|bias)|head\.(?:weight|bias)"
    r"|blocks\.\d+\.(?:norm1|norm2|attn\.qkv|attn\.proj|mlp\.fc1|mlp\.fc2)\.(?:weight|bias))$"
)
_RENAMED = (
    ("norm1.", "layernorm_before."),
    ("norm2.", "layernorm_after."),
    ("attn.proj.", "attention.o_proj."),
    ("mlp.", "mlp."),
)
_EPS = 1e-6  # of timm's layer norms; transformers' default is 1e-12
_REMEDY = "Plain ViT and DeiT are opened. Export any other model to ONNX."


def recognises(bundle: Bundle) -> bool:
    """A config.json as timm writes it: with `architecture`, without transformers' `model_type`."""
    item = bundle.named(NAME)
    if item is None or item.size > Limits().config_bytes:
        return False
    try:
        found = safetensors_header.read_json(item, Limits().config_bytes)
    except Refused:
        return False
    return "architecture" in found and "model_type" not in found


def read(bundle: Bundle, limits: Limits) -> tuple[HFConfig, dict[str, tuple[Item, Tensor]]]:
    """transformers' configuration of the same model, from timm's and the tensors' shapes; the tensors.

    Raises Refused for what is no plain ViT, naming the key or tensor.
    """
    item = bundle.named(NAME)
    assert item is not None  # recognised by it
    raw = safetensors_header.read_json(item, limits.config_bytes)
    name = str(raw.get("architecture"))
    located = safetensors_header.locate(bundle, limits)
    shapes = {key: tensor.shape for key, (_, tensor) in located.items()}
    match = _NAME.match(name)
    if match is None:
        raise Refused(
            "brought_unsupported",
            f"The architecture {shown(name)} is not opened.",
            _REMEDY,
            where="architecture",
        )
    for key in shapes:
        if not _KNOWN.match(key):
            raise Refused(
                "brought_unsupported",
                f"Tensor {shown(key)} belongs to a variant of ViT that is not opened.",
                _REMEDY,
                where=shown(key),
            )
    width, channels, patch, side = _sizes(shapes)
    layers = max((int(m[1]) for key in shapes if (m := _BLOCK.match(key))), default=-1) + 1
    arguments = raw.get("model_args")
    heads = arguments.get("num_heads") if isinstance(arguments, dict) else None
    heads = heads if isinstance(heads, int) and 0 < heads <= 1_024 else _HEADS[match[1]]
    if layers < 1 or width % heads:
        raise Refused(
            "brought_mismatch",
            f"{shown(name)} has {heads} heads, and the width of {width} of its tensors cannot be cut so.",
            "Bring the config.json that was saved with these weights.",
            where="architecture",
        )
    hidden = _shape(shapes, "blocks.0.mlp.fc1.weight", 2)[0]
    settings: dict[str, Any] = {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": hidden,
        "image_size": side * patch,
        "patch_size": patch,
        "num_channels": channels,
        "qkv_bias": "blocks.0.attn.qkv.bias" in shapes,
        "layer_norm_eps": _EPS,
    }
    config = HFConfig(
        model_type="vit",
        architecture=shown(name),
        settings=settings,
        takes="image",
        layers=layers,
        heads=heads,
        kv_heads=heads,
        width=width,
        vocabulary=None,
        max_positions=None,
        image=(channels, side * patch, side * patch),
        window="",
        notices=(),
    )
    return config, located


def _shape(shapes: Mapping[str, tuple[int, ...]], name: str, axes: int) -> tuple[int, ...]:
    found = shapes.get(name)
    if found is None or len(found) != axes or 0 in found:
        raise Refused(
            "brought_incomplete" if found is None else "brought_mismatch",
            f"Tensor {name} of the model "
            + ("is not in the file." if found is None else f"has shape {found}."),
            _REMEDY,
            where=name,
        )
    return found


def _sizes(shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, int, int, int]:
    """Width, channels, side of a patch in pixels, side of the picture in patches."""
    width, channels, patch, other = _shape(shapes, "patch_embed.proj.weight", 4)
    _shape(shapes, "cls_token", 3)
    positions = _shape(shapes, "pos_embed", 3)[1] - 1
    side = math.isqrt(positions)
    if patch != other or side * side != positions or side < 1:
        raise Refused(
            "brought_unsupported",
            f"The patches of this model form no square: {positions} positions of {patch} × {other} pixels.",
            _REMEDY,
            where="pos_embed",
        )
    return width, channels, patch, side


def inspect(bundle: Bundle, limits: Limits) -> Inspection:
    """What the name of the architecture and the tensors' shapes say."""
    config, located = read(bundle, limits)
    tensors = tuple(tensor for _, tensor in located.values())
    side = config.settings["image_size"] // config.settings["patch_size"]
    return Inspection(
        format=FORMAT,
        opener=SLUG,
        study="attention_sinks",
        architecture=config.architecture,
        family="timm ViT",
        takes="image",
        layers=config.layers,
        heads=config.heads,
        kv_heads=config.kv_heads,
        width=config.width,
        image=config.image,
        length=side * side + 1,
        parameters=sum(math.prod(t.shape) for t in tensors),
        bytes=sum(t.bytes for t in tensors),
        tensors=tensors,
    )


def renamed(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """timm's tensors under transformers' names; queries, keys and values are cut apart."""
    found = {}
    for key, tensor in state.items():
        if (match := _BLOCK.match(key)) is None:
            target = {
                "cls_token": "embeddings.cls_token",
                "pos_embed": "embeddings.position_embeddings",
                "patch_embed.proj.weight": "embeddings.patch_embeddings.projection.weight",
                "patch_embed.proj.bias": "embeddings.patch_embeddings.projection.bias",
                "norm.weight": "layernorm.weight",
                "norm.bias": "layernorm.bias",
            }.get(key)
            if target is not None:  # the classifier stays behind
                found[target] = tensor
            continue
        layer, rest = f"layers.{match[1]}.", key[match.end() :]
        if rest.startswith("attn.qkv."):
            kind = rest.removeprefix("attn.qkv.")
            for part, piece in zip("qkv", tensor.chunk(3), strict=True):
                found[f"{layer}attention.{part}_proj.{kind}"] = piece.contiguous()
            continue
        for old, new in _RENAMED:
            if rest.startswith(old):
                found[layer + new + rest.removeprefix(old)] = tensor
    return found


def open_model(
    bundle: Bundle, limits: Limits, device: str, consent: bool, progress: Progress
) -> AttentionModel:
    """The model with its weights. Raises Refused."""
    progress(0, 1, "reading the weights")
    from dataclasses import replace

    from models.checkpoints.hf_model import open_hf, read_tensors

    config, located = read(bundle, limits)
    state = renamed(read_tensors(located))
    model = open_hf(config, bundle, {}, state, limits, device, FORMAT)
    return replace(model, family="timm ViT")
