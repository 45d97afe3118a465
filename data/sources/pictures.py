"""Pictures that vision models are shown when a visitor brings none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from data.sources.fashion_mnist import fashion_mnist

Picture = npt.NDArray[np.uint8]  # (H, W, 3)

_LINES = ("Cloud Chamber 2026", "tracks of particles", "attention is a sum", "0123456789")
_HEIGHT, _MARGIN = 48, 8


@dataclass(frozen=True)
class PictureSet:
    """A bundled set. `read(n)` returns its first `n` pictures, or all of them."""

    slug: str
    title: str
    description: str
    licence: str
    read: Callable[[int], list[Picture]]


def _clothes(count: int) -> list[Picture]:
    """One picture of each class, in the order of the classes, then the next one of each."""
    test = fashion_mnist("subset").test
    order = np.lexsort((test.labels, _rank_within(test.labels)))
    return [np.repeat(test.images[i][:, :, None], 3, axis=2) for i in order[:count]]


def _rank_within(labels: npt.NDArray[np.integer]) -> npt.NDArray[np.intp]:
    """How many earlier pictures have the same label."""
    rank = np.zeros(len(labels), dtype=np.intp)
    for label in np.unique(labels):
        where = np.flatnonzero(labels == label)
        rank[where] = np.arange(len(where))
    return rank


def _printed(count: int) -> list[Picture]:
    """Printed lines of text, dark on light, as a text recogniser sees them."""
    return [_line(text) for text in _LINES[:count]]


def _line(text: str) -> Picture:
    font = ImageFont.load_default(size=_HEIGHT - 2 * _MARGIN)
    width = int(font.getlength(text)) + 2 * _MARGIN
    picture = Image.new("RGB", (width, _HEIGHT), (250, 250, 248))
    ImageDraw.Draw(picture).text((_MARGIN, _HEIGHT // 2), text, font=font, fill=(20, 20, 24), anchor="lm")
    return np.asarray(picture, dtype=np.uint8)


PICTURES: Mapping[str, PictureSet] = MappingProxyType(
    {
        p.slug: p
        for p in (
            PictureSet(
                "clothes",
                "Clothes (Fashion-MNIST)",
                "Test pictures of the ten classes in turn, 28 × 28, grey.",
                "MIT",
                _clothes,
            ),
            PictureSet(
                "line",
                "Printed lines",
                "Lines of text printed dark on light, 48 pixels high.",
                "drawn here",
                _printed,
            ),
        )
    }
)
