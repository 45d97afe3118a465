"""Pictures for an ONNX graph: sizes, normalisation, and what the positions of its sequence are."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from models.checkpoints.bundle import Bundle, Limits
from models.checkpoints.inspection import Notice
from models.checkpoints.onnx_graph import Input
from models.checkpoints.refused import Refused, shown

SIZES = ((224, 224), (48, 320), (32, 320), (256, 256), (384, 384))  # tried where a graph leaves it open
_WIDEST = 40  # times the height: a line of text is cut there
_EXTRA = {0: (), 1: ("[CLS]",), 2: ("[CLS]", "[DIST]"), 5: ("[CLS]", "[REG1]", "[REG2]", "[REG3]", "[REG4]")}


@dataclass(frozen=True)
class Normalisation:
    """(x · scale - mean) / deviation, by channel, of bytes x."""

    scale: float = 1 / 255
    mean: tuple[float, ...] = (0.5,)
    deviation: tuple[float, ...] = (0.5,)

    def __call__(self, pixels: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """`(C, H, W)` bytes as floats."""
        mean, deviation = (np.asarray(v, np.float32)[:, None, None] for v in (self.mean, self.deviation))
        return np.asarray((pixels * np.float32(self.scale) - mean) / deviation, np.float32)


def normalisation(bundle: Bundle, limits: Limits) -> tuple[Normalisation, tuple[Notice, ...]]:
    """From preprocessor_config.json; without one, to -1 … 1, which is said."""
    item = bundle.named("preprocessor_config.json")
    if item is None:
        said = "No preprocessor_config.json came along: pictures are shown as RGB from -1 to 1."
        return Normalisation(), (Notice("normalisation_assumed", said),)
    refused = Refused(
        "brought_damaged",
        "preprocessor_config.json does not say how pictures are normalised.",
        "Save it with processor.save_pretrained(folder), or leave it out.",
        shown(item.name),
    )
    try:
        raw: dict[str, Any] = json.loads(item.path.read_bytes()[: limits.config_bytes])
        scale = float(raw.get("rescale_factor", 1 / 255)) if raw.get("do_rescale", True) else 1.0
        if not raw.get("do_normalize", True):
            found = Normalisation(scale, (0.0,), (1.0,))
        else:
            mean, deviation = (
                tuple(float(v) for v in raw.get(key, default))
                for key, default in (("image_mean", [0.5]), ("image_std", [0.5]))
            )
            found = Normalisation(scale, mean, deviation)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise refused from error
    numbers = (found.scale, *found.mean, *found.deviation)
    if not all(map(math.isfinite, numbers)) or 0 in found.deviation or scale == 0:
        raise refused
    if not {len(found.mean), len(found.deviation)} <= {1, 3}:
        raise refused
    return found, ()


@dataclass
class GraphImages:
    """`models.checkpoints.attention.Images` of a graph that makes `length` positions of one picture.

    Where the graph leaves the width open, a picture keeps its proportions: it is scaled to the height,
    and what is narrower than `shape` is filled up with grey.
    """

    shape: tuple[int, int, int]
    open_width: bool
    length: int  # positions at `shape`
    normalise: Normalisation

    def prepare(self, images: Sequence[npt.NDArray[np.uint8]]) -> torch.Tensor:
        """Pictures `(H, W, 3)` to `(N, C, height, width)`; a batch has the width of its widest."""
        made = [self._one(image) for image in images]
        width = max(p.shape[2] for p in made)
        filled = np.zeros((len(made), *made[0].shape[:2], width), dtype=np.float32)
        for target, pixels in zip(filled, made, strict=True):
            target[..., : pixels.shape[2]] = pixels
        return torch.from_numpy(filled)

    def _one(self, image: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        channels, height, width = self.shape
        if channels not in (1, 3):
            raise Refused(
                "brought_unsupported",
                f"The model takes pictures of {channels} channels.",
                "Bring a model of grey or colour pictures.",
            )
        picture = Image.fromarray(image).convert("RGB" if channels == 3 else "L")
        size = (width, height)
        if self.open_width:
            wide = math.ceil(picture.width / max(picture.height, 1) * height / 8) * 8
            size = (min(max(wide, 8), _WIDEST * height), height)
        resized = np.asarray(picture.resize(size, Image.Resampling.BICUBIC), dtype=np.float32)
        pixels = resized[None] if resized.ndim == 2 else resized.transpose(2, 0, 1)
        pixels = self.normalise(pixels)
        if pixels.shape[2] >= width:
            return pixels
        return np.pad(pixels, ((0, 0), (0, 0), (0, width - pixels.shape[2])))

    def pieces(self, pixels: torch.Tensor) -> list[str]:
        """Names of the positions of pixels `(N, C, height, width)`."""
        height, width = int(pixels.shape[2]), int(pixels.shape[3])
        length = self.length
        if width != self.shape[2]:  # a wider line has as many more columns
            length = length * width // self.shape[2]
        return positions(length, height, width)


def positions(length: int, height: int, width: int) -> list[str]:
    """What `length` positions of a picture are, as far as its proportions tell.

    "row,column" where they form a grid of square patches, after one of the usual counts of special
    tokens; "column i" where they divide the width alone, as in readers of text lines; else numbers.
    """
    for extra, names in _EXTRA.items():
        rows = math.isqrt(max(length - extra, 0) * height // width)
        columns = rows * width // height if rows else 0
        square = rows and rows * width == columns * height and height % rows == 0 and width % columns == 0
        if square and rows * columns == length - extra and (rows > 1 or columns > 1):
            return [*names, *(f"{r},{c}" for r in range(rows) for c in range(columns))]
    if length and width % length == 0 and length > 1:
        return [f"column {i}" for i in range(length)]
    return [str(i) for i in range(length)]


def candidates(given: Input) -> tuple[tuple[int, int, int], ...]:
    """Sizes (channels, height, width) that a graph's picture may have, the likeliest first."""
    channels = given.shape[1] or 3
    height, width = given.shape[2], given.shape[3]
    if height and width:
        return ((channels, height, width),)
    if height or width:
        known = height or width or 1
        sizes = ((known, 320 if height and height <= 64 else known),)
        return tuple((channels, *size) for size in sizes)
    return tuple((channels, *size) for size in SIZES)
