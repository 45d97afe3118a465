"""Compare a picture with its baseline, pixel by pixel, quickly when they are equal."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image
from pixelmatch.contrib.PIL import pixelmatch

THRESHOLD = 0.05  # of a pixel's perceived difference (pixelmatch's YIQ distance)
AREA = 0.001  # of a picture's pixels that may differ
_MARGIN = 4  # pixels around a difference that pixelmatch looks at to recognise anti-aliasing


@dataclass(frozen=True)
class Comparison:
    """`differing` pixels of `pixels` are not the same to the eye; `diff` shows them in red."""

    differing: int
    pixels: int
    reason: str = ""
    diff: Image.Image | None = None

    @property
    def share(self) -> float:
        """Share of the picture that differs; 1 when the sizes do."""
        return self.differing / self.pixels


def compare(expected: Image.Image, actual: Image.Image) -> Comparison:
    """How far `actual` is from `expected`. Pictures of different size differ everywhere."""
    pixels = expected.width * expected.height
    if expected.size != actual.size:
        sizes = " and ".join(f"{w} x {h}" for w, h in (expected.size, actual.size))
        return Comparison(pixels, pixels, f"the sizes differ: {sizes}")
    a, b = (np.asarray(image.convert("RGB")) for image in (expected, actual))
    changed = (a != b).any(axis=2)
    if not changed.any():
        return Comparison(0, pixels)
    # pixelmatch is pure Python: give it only the part that differs. It counts the same there.
    rows, columns = np.flatnonzero(changed.any(axis=1)), np.flatnonzero(changed.any(axis=0))
    box = (
        max(0, int(columns[0]) - _MARGIN),
        max(0, int(rows[0]) - _MARGIN),
        min(expected.width, int(columns[-1]) + 1 + _MARGIN),
        min(expected.height, int(rows[-1]) + 1 + _MARGIN),
    )
    part = Image.new("RGBA", (box[2] - box[0], box[3] - box[1]))
    differing = pixelmatch(expected.crop(box), actual.crop(box), part, threshold=THRESHOLD)
    diff = Image.blend(expected.convert("RGB"), Image.new("RGB", expected.size, "white"), 0.8)
    diff.paste(part.convert("RGB"), box[:2])
    return Comparison(differing, pixels, f"{differing:,} of {pixels:,} pixels differ", diff)
