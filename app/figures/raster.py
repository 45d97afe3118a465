"""Matrices as PNG images on the track scale. No Plotly, no Streamlit, no image library.

A matrix goes to the browser as one small image, not as a JSON list: 2,048 x 2,048 weights are 1.3 MB
as PNG and 59 MB as lists.
"""

from __future__ import annotations

import base64
import struct
import zlib
from dataclasses import dataclass

import numpy as np

from app.theme import Palette, track_rgb

MAX_PIXELS = 1_024  # a page of 1280 px shows no more columns than that
STEPS = 255  # colours of the scale; the palette's index 0 is transparent, for what does not exist


@dataclass(frozen=True)
class MatrixImage:
    """A matrix drawn as PNG.

    `uri` is the data URI; `shape` the matrix's (rows, columns); `factor` how many rows and columns
    one pixel stands for, by their maximum (1: every cell is a pixel).
    """

    uri: str
    shape: tuple[int, int]
    factor: int

    @property
    def pooled(self) -> bool:
        """Whether pixels stand for more than one cell; then the page says `note`."""
        return self.factor > 1

    @property
    def note(self) -> str:
        """One sentence for the page, empty when every cell is a pixel."""
        if not self.pooled:
            return ""
        rows, cols = self.shape
        return (
            f"{rows:,} × {cols:,} cells do not fit the screen: each pixel is the largest of "
            f"{self.factor} × {self.factor} cells."
        )


def max_pool(matrix: np.ndarray, factor: int) -> np.ndarray:
    """The largest value of every `factor` x `factor` block; NaN cells are left out, edges are kept.

    (R, C) -> (ceil(R / factor), ceil(C / factor)); a block of NaN only stays NaN.
    """
    rows, cols = matrix.shape
    high, wide = -(-rows // factor), -(-cols // factor)
    padded = np.full((high * factor, wide * factor), np.nan, dtype=np.float32)
    padded[:rows, :cols] = matrix
    blocks = padded.reshape(high, factor, wide, factor)
    return np.fmax.reduce(np.fmax.reduce(blocks, axis=3), axis=1)


def track_index(matrix: np.ndarray, vmin: float, vmax: float) -> np.ndarray:
    """Palette index of every cell: 1..255 from `vmin` to `vmax`, clipped; 0 (transparent) for NaN."""
    slope = (STEPS - 1) / (vmax - vmin) if vmax != vmin else 0.0
    scaled = (np.asarray(matrix, dtype=np.float32) - np.float32(vmin)) * np.float32(slope)
    clipped = np.clip(np.rint(scaled), 0, STEPS - 1)
    return np.where(np.isnan(clipped), 0, clipped + 1).astype(np.uint8)


def matrix_png(
    matrix: np.ndarray,
    palette: Palette,
    vmin: float = 0.0,
    vmax: float | None = None,
    max_px: int = MAX_PIXELS,
) -> MatrixImage:
    """Draw a matrix (R, C), row 0 at the top, on the palette's track scale.

    `vmax=None` takes the largest finite value. NaN cells are transparent. Above `max_px` rows or
    columns the matrix is pooled by maximum, so that a single bright key stays visible. Raises
    ValueError for anything but a non-empty matrix.
    """
    if matrix.ndim != 2 or not matrix.size:
        raise ValueError(f"a matrix with rows and columns is needed, not shape {matrix.shape}")
    factor = max(1, -(-max(matrix.shape) // max_px))
    shown = max_pool(matrix, factor) if factor > 1 else matrix
    if vmax is None:
        finite = shown[np.isfinite(shown)]
        vmax = float(finite.max()) if finite.size else vmin + 1.0
    colours = np.concatenate([np.zeros((1, 3), np.uint8), track_rgb(palette.mode, STEPS)])
    png = indexed_png(track_index(shown, vmin, vmax), colours, transparent_first=True)
    return MatrixImage(data_uri(png), (matrix.shape[0], matrix.shape[1]), factor)


def indexed_png(index: np.ndarray, colours: np.ndarray, *, transparent_first: bool = False) -> bytes:
    """Encode palette indices `uint8` (R, C) and colours `uint8` (n <= 256, 3) as PNG (RFC 2083)."""
    rows, cols = index.shape
    lines = np.zeros((rows, cols + 1), np.uint8)  # each scan line starts with its filter type, 0
    lines[:, 1:] = index
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", cols, rows, 8, 3, 0, 0, 0)),
        (b"PLTE", colours.astype(np.uint8).tobytes()),
        *([(b"tRNS", b"\0")] if transparent_first else []),
        (b"IDAT", packed(lines.tobytes())),
        (b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )


def packed(raw: bytes) -> bytes:
    """Deflate that looks for runs of one byte alone: maps have nothing else to repeat, and it is both a
    quarter smaller and faster than searching."""
    packer = zlib.compressobj(1, zlib.DEFLATED, 15, 9, zlib.Z_RLE)
    return packer.compress(raw) + packer.flush()


def data_uri(png: bytes) -> str:
    """A PNG as a data URI."""
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")
