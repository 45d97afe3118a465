"""Pictures for vision models: resized, normalised, cut into patches that have names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from transformers import PreTrainedModel

from models.attention.trace import trace
from models.checkpoints.attention import Trace
from models.checkpoints.bundle import Bundle, Limits
from models.checkpoints.hf_trace import maps_of, own_maps
from models.checkpoints.inspection import Notice
from models.checkpoints.refused import Refused, shown
from models.checkpoints.safetensors_header import read_json

PREPROCESSOR = "preprocessor_config.json"
_HALF = (0.5, 0.5, 0.5)


@dataclass(frozen=True)
class Patches:
    """How a model is shown pictures: `shape` is (channels, height, width), `patch` the side of a patch.

    `leading` are the names of the tokens that stand before the patches.
    """

    shape: tuple[int, int, int]
    patch: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    leading: tuple[str, ...] = ("[CLS]",)

    def prepare(self, images: Sequence[npt.NDArray[np.uint8]]) -> torch.Tensor:
        """Pictures `(H, W, 3)` to pixels `(N, C, height, width)`: bicubic, scaled to 0..1, normalised."""
        return torch.stack([self._one(image) for image in images])

    def _one(self, image: npt.NDArray[np.uint8]) -> torch.Tensor:
        channels, height, width = self.shape
        picture = Image.fromarray(image).convert("L" if channels == 1 else "RGB")
        resized = (
            np.asarray(picture.resize((width, height), Image.Resampling.BICUBIC), dtype=np.float32) / 255
        )
        pixels = resized[None] if channels == 1 else resized.transpose(2, 0, 1)
        mean, std = (np.asarray(v, np.float32)[:channels, None, None] for v in (self.mean, self.std))
        return torch.from_numpy((pixels - mean) / std)

    def pieces(self, pixels: torch.Tensor) -> list[str]:
        """Names of the positions: what stands before the patches, then "row,column" of each."""
        rows, columns = pixels.shape[2] // self.patch[0], pixels.shape[3] // self.patch[1]
        return [*self.leading, *(f"{r},{c}" for r in range(rows) for c in range(columns))]


def image_input(
    settings: Mapping[str, Any], bundle: Bundle, model: PreTrainedModel
) -> tuple[Patches, tuple[Notice, ...]]:
    """How `model` is shown pictures, by its configuration and the preprocessor's, if that came along."""
    config: Any = model.config
    height, width = _pair(config.image_size)
    mean, std, notices = normalisation(bundle)
    shape = (int(getattr(config, "num_channels", 3)), height, width)
    return Patches(shape, _pair(config.patch_size), mean, std), notices


def leading_names(count: int, model_type: str) -> tuple[str, ...]:
    """What the `count` tokens before the patches are: none (SigLIP), a class token, then registers."""
    second = "[DIST]" if model_type == "deit" else "[REG 0]"
    others = (f"[REG {n}]" for n in range(1, max(count - 1, 1)))
    return ("[CLS]", second, *others)[:count]


def normalisation(bundle: Bundle) -> tuple[tuple[float, ...], tuple[float, ...], tuple[Notice, ...]]:
    """Mean and standard deviation by channel from preprocessor_config.json, else 0.5 with a notice."""
    item = bundle.named(PREPROCESSOR)
    if item is not None:
        found = read_json(item, Limits().config_bytes)
        if found.get("do_normalize") is False:
            return (0.0,) * 3, (1.0,) * 3, ()
        mean, std = _three(found.get("image_mean")), _three(found.get("image_std"))
        if mean is not None and std is not None and min(std) > 0:
            return mean, std, ()
    said = (
        "No preprocessor_config.json says how pictures are normalised: mean and standard deviation of 0.5 "
        "were taken."
    )
    return _HALF, _HALF, (Notice("normalisation_guessed", said, 1),)


def _three(value: object) -> tuple[float, ...] | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return (float(value),) * 3
    if isinstance(value, list) and len(value) in (1, 3) and all(isinstance(v, int | float) for v in value):
        return tuple(map(float, value * (3 // len(value))))
    return None


def _pair(size: Any) -> tuple[int, int]:
    if isinstance(size, list | tuple):
        return int(size[0]), int(size[1])
    return int(size), int(size)


def image_trace(
    model: PreTrainedModel, images: Patches, layers: int, notices: tuple[Notice, ...]
) -> tuple[Patches, Trace, tuple[Notice, ...]]:
    """How to look at a vision model, found out with an empty picture; how many tokens stand before the
    patches shows then, too. Raises Refused when not all layers are seen, or fewer tokens than patches."""
    seen: list[int] = []
    probe = torch.zeros(1, *images.shape)
    try:
        trace(
            model,
            None,
            pixel_values=probe,
            on_attention=lambda layer: seen.append(layer.importance.shape[-1]),
        )
    except (ValueError, TypeError):
        seen = []
    if len(seen) == layers:
        look: Trace = partial(_look, model)
    else:
        look, more = own_maps(model, "pixel_values", probe, layers)
        notices = (*notices, *more)
        seen = [m.shape[-1] for m in maps_of(model, "pixel_values", probe)]
    patches = len(images.pieces(probe)) - len(images.leading)
    before = seen[0] - patches
    if len(set(seen)) != 1 or before < 0:
        raise Refused(
            "brought_unsupported",
            f"{type(model).__name__} does not keep the {patches} patches of a picture from layer to layer.",
            "Only models whose tokens are the patches can be looked at; bring its maps as .npy.",
            where=shown(type(model).__name__),
        )
    leading = leading_names(before, str(model.config.model_type))
    return replace(images, leading=leading), look, notices


def _look(model: PreTrainedModel, inputs: torch.Tensor | None, **how: Any) -> None:
    """The tracer on pixels; `how` are its callbacks."""
    trace(model, None, pixel_values=inputs, **how)
