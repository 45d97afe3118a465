"""Attention maps on their way to a picture: pooled, told causal or not, written as numbers in colours."""

from __future__ import annotations

import struct
import zlib

import numpy as np

from app.figures.raster import data_uri, packed


def pooled(weights: np.ndarray, factor: int) -> np.ndarray:
    """The largest weight of every `factor` x `factor` block; (R, C) -> (ceil(R / factor), ceil(C / factor)).

    For weights, which are numbers and not negative; one pass per place in a block, ten times as fast
    as reshaping.
    """
    if factor == 1:
        return weights
    padding = [(0, -size % factor) for size in weights.shape]
    whole = np.pad(weights, padding) if any(after for _, after in padding) else weights
    found = whole[::factor, ::factor].copy()
    for row, column in np.ndindex(factor, factor):
        np.maximum(found, whole[row::factor, column::factor], out=found)
    return found


def is_causal(weights: np.ndarray) -> bool:
    """Whether no query looks at a later key."""
    size = weights.shape[0]
    if size < 2 or weights[0, 1:].any():  # the first query tells already
        return False
    return not np.triu(weights, 1).any()


def weight_png(weights: np.ndarray) -> str:
    """Weights (R, C) in 0..1 as the data URI of a PNG that holds numbers: red per cent, green tenths.

    A weight of 0.374 is (37, 4, 0). NaN is (0, 0, 0).
    """
    tenths = np.rint(np.nan_to_num(weights, nan=0.0) * np.float32(1000)).clip(0, 1000).astype(np.uint16)
    rows, cols = tenths.shape
    lines = np.zeros((rows, 1 + 3 * cols), np.uint8)  # each scan line starts with its filter type, 0
    lines[:, 1::3] = tenths // 10
    lines[:, 2::3] = tenths % 10
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", cols, rows, 8, 2, 0, 0, 0)),
        (b"IDAT", packed(lines.tobytes())),
        (b"IEND", b""),
    )
    return data_uri(
        b"\x89PNG\r\n\x1a\n"
        + b"".join(
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
            for kind, body in chunks
        )
    )
