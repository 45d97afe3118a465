"""The openers: one small file each, one line here.

An opener is a module of models.checkpoints.openers with three functions:

    recognises(bundle) -> bool                      is this for me? By content; no torch, no weights
    inspect(bundle, limits) -> Inspection           headers only, no torch; may raise Refused
    open_model(bundle, limits, device, consent, progress) -> AttentionModel      heavy imports inside
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Opener:
    """An entry. `title` and `accepts` are what pages and the README say of it."""

    slug: str
    title: str
    accepts: str
    study: str
    module: str  # imported where it runs


OPENERS: Mapping[str, Opener] = MappingProxyType(
    {
        o.slug: o
        for o in (  # asked in this order
            Opener(
                "huggingface",
                "Hugging Face folder",
                "config.json, tokenizer.json and safetensors, as zip, tar, or several files at once",
                "attention_sinks",
                "models.checkpoints.openers.huggingface",
            ),
            Opener(
                "onnx",
                "ONNX graph",
                "one .onnx whose attention is computed with Softmax nodes; text or images",
                "attention_sinks",
                "models.checkpoints.openers.onnx",
            ),
            Opener(
                "maps",
                "Attention maps",
                ".npy or .npz of maps (layers, heads, T, T) or (samples, layers, heads, T, T)",
                "attention_sinks",
                "models.checkpoints.openers.maps",
            ),
            Opener(
                "timm",
                "timm vision transformer",
                "config.json and model.safetensors of a ViT or DeiT",
                "attention_sinks",
                "models.checkpoints.openers.timm_vit",
            ),
            Opener(
                "gguf",
                "GGUF file",
                "one .gguf of an architecture that transformers can de-quantise",
                "attention_sinks",
                "models.checkpoints.openers.gguf",
            ),
        )
    }
)
