"""Packing of attention maps into blobs, and back.

A blob is a CRC-32 of the packed values (4 bytes, little endian) and one zstd frame of them.

f16   half precision. The frame holds all low bytes, then all high bytes: exponents beside
      exponents compress.
log8  one byte on a logarithmic scale: code k of 1..255 stands for 2 ** (-11 (255 - k) / 254),
      that is 2**-11 to 1 in steps of 3 %, and 0 for less. Half the size of half precision cut to
      five bits of mantissa, at the same relative error.
log6  the same with codes 1..63 from 2**-9 to 1, in steps of 10 %: for long maps, where a picture of
      every head must fit into a few megabytes.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from data.errors import CloudChamberError

_CRC = 4


@dataclass(frozen=True)
class _Scale:
    """Codes 1..`top` stand for 2**-`octaves` to 1, evenly in the logarithm; code 0 for less."""

    octaves: int
    top: int

    @property
    def weights(self) -> npt.NDArray[np.float32]:
        """The weight of every code."""
        weights = np.exp2(-self.octaves * np.arange(self.top, -1, -1) / (self.top - 1)).astype(np.float32)
        weights[0] = 0
        return weights

    @property
    def relative(self) -> float:
        """Half a step, as a relative error."""
        return float(2.0 ** (self.octaves / (2 * (self.top - 1))) - 1)


_SCALES: Mapping[str, _Scale] = MappingProxyType({"log8": _Scale(11, 255), "log6": _Scale(9, 63)})


@dataclass(frozen=True)
class Codec:
    """`relative` and `absolute` bound |decoded - weight| <= relative * weight + absolute."""

    relative: float
    absolute: float
    bytes_per_weight: int  # before compression
    zstd_level: int
    meaning: str


CODECS: Mapping[str, Codec] = MappingProxyType(
    {
        "f16": Codec(2.0**-11, 2.0**-25, 2, 3, "half precision"),
        "log8": Codec(
            _SCALES["log8"].relative, 2.0**-11, 1, 15, "255 steps of 3 % from 1/2048 to 1; less is 0"
        ),
        "log6": Codec(
            _SCALES["log6"].relative, 2.0**-9, 1, 15, "63 steps of 10 % from 1/512 to 1; less is 0"
        ),
    }
)


def codec_named(name: str) -> Codec:
    """The codec called `name`; CloudChamberError("map_codec") that lists the known ones."""
    if name not in CODECS:
        raise CloudChamberError(
            "map_codec",
            f"There is no map codec {name!r}.",
            f"Use one of: {', '.join(CODECS)}; or update Cloud Chamber if a newer one wrote the store.",
        )
    return CODECS[name]


def encode_map(weights: npt.NDArray[np.floating], codec: str = "f16") -> bytes:
    """Pack `weights` (R, C), finite, into a blob; the log codecs take attention weights of 0..1 only.

    Raises CloudChamberError for an unknown codec, another shape, or weights the codec cannot hold.
    """
    spec = codec_named(codec)
    if weights.ndim != 2:
        raise _refused(f"An attention map has two axes, not {weights.ndim}.")
    packed = _pack_f16(weights) if codec == "f16" else _pack_log(weights, _SCALES[codec])
    frame = pa.Codec("zstd", compression_level=spec.zstd_level).compress(packed, asbytes=True)
    return zlib.crc32(packed).to_bytes(_CRC, "little") + frame


def decode_map(blob: bytes, rows: int, cols: int, codec: str = "f16") -> npt.NDArray[np.float32]:
    """Unpack a blob of `encode_map` into float32 weights (rows, cols).

    Raises CloudChamberError("map_damaged") when the blob is not exactly such a map.
    """
    size = rows * cols * codec_named(codec).bytes_per_weight
    if rows < 1 or cols < 1 or len(blob) <= _CRC:
        raise _damaged(f"{len(blob)} bytes cannot hold {rows} x {cols} weights")
    try:
        packed = pa.Codec("zstd").decompress(blob[_CRC:], size, asbytes=True)
    except (OSError, pa.ArrowException) as error:
        raise _damaged(str(error)) from error
    if len(packed) != size:
        raise _damaged(f"{len(packed)} bytes instead of {size}")
    if zlib.crc32(packed).to_bytes(_CRC, "little") != blob[:_CRC]:
        raise _damaged("its checksum does not match")
    codes = np.frombuffer(packed, np.uint8)
    if codec in _SCALES:
        weights = _SCALES[codec].weights
        if codes.max() >= len(weights):
            raise _damaged("it holds a code that the codec does not have")
        return weights[codes].reshape(rows, cols)
    pairs = np.ascontiguousarray(codes.reshape(2, -1).T)
    return pairs.reshape(-1).view("<f2").reshape(rows, cols).astype(np.float32)


def _pack_f16(weights: npt.NDArray[np.floating]) -> bytes:
    with np.errstate(over="ignore"):
        half = np.ascontiguousarray(weights, dtype="<f2")
    if not np.isfinite(half).all():
        raise _refused("An attention map holds NaN, infinity or a number beyond half precision.")
    return np.ascontiguousarray(half.reshape(-1).view(np.uint8).reshape(-1, 2).T).tobytes()


def _pack_log(weights: npt.NDArray[np.floating], scale: _Scale) -> bytes:
    # A softmax in float32 may exceed 1 by a few units of the last place.
    if not ((weights >= 0) & (weights <= 1.001)).all():
        raise _refused("An attention map holds a weight outside 0..1.")
    with np.errstate(divide="ignore"):
        code = np.rint(scale.top + np.log2(weights, dtype=np.float32) * ((scale.top - 1) / scale.octaves))
    return np.where(weights < 2.0**-scale.octaves, 0, np.clip(code, 1, scale.top)).astype(np.uint8).tobytes()


def _refused(what: str) -> CloudChamberError:
    return CloudChamberError("map_invalid", what, "Store finite weights as a matrix of queries by keys.")


def _damaged(what: str) -> CloudChamberError:
    return CloudChamberError(
        "map_damaged",
        f"A stored attention map is damaged: {what}.",
        "Compute the run again with `cloudchamber precompute --force`, or delete the store to rebuild it.",
    )
