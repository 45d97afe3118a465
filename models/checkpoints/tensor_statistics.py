"""Statistics of every tensor that was brought, streamed: a few megabytes in memory at a time.

Mean and standard deviation are merged chunk by chunk in float64, so that a large mean does not swallow
a small spread. Source: Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for
Computing Sample Variances", 1979.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from functools import cache

import ml_dtypes
import numpy as np
import numpy.typing as npt

from models.checkpoints.bundle import Bundle, Limits, Progress, no_progress
from models.checkpoints.inspection import Statistics
from models.checkpoints.refused import Refused, shown
from models.checkpoints.tensor_places import Place, places

CHUNK = 2**21  # bytes read at once; eight times as many when each becomes a float64
_Values = npt.NDArray[np.float64]

# NumPy types of elements by their names in safetensors; ml_dtypes has those that NumPy lacks.
_TYPES: Mapping[str, npt.DTypeLike] = {
    "BOOL": "u1", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4",
    "U64": "<u8", "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8",
    "BF16": ml_dtypes.bfloat16, "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu, "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz, "F4": ml_dtypes.float4_e2m1fn,
}  # fmt: skip


def of_bundle(bundle: Bundle, limits: Limits, progress: Progress = no_progress) -> list[Statistics]:
    """Statistics of all tensors of a bundle, in the order of its files' headers.

    `std` is that of the population; quantised blocks are looked at as the numbers they stand for. What
    is not stored in one piece, and types that are not known here (6 bits, complex), have NaN in place of
    values. `progress` hears bytes read; what it raises ends the work. Raises Refused.
    """
    located = places(bundle, limits)
    total = max(sum(place.tensor.bytes for place in located), 1)
    found, done = [], 0
    for place in located:
        name = place.tensor.name
        progress(done, total, f"reading {shown(name)}")
        tally = _Tally()
        for chunk in _chunks(place):
            tally.add(_values(chunk, place.tensor.dtype))
            done += len(chunk)
            progress(done, total, f"reading {shown(name)}")
        found.append(tally.statistics(name))
    return found


def _chunks(place: Place) -> Iterator[bytes]:
    """The bytes of a tensor in pieces of whole elements or blocks; none for what cannot be read."""
    tensor = place.tensor
    if place.start is None or (tensor.dtype not in _TYPES and tensor.dtype not in _blocks()):
        return
    width = _blocks()[tensor.dtype] if tensor.dtype not in _TYPES else 8
    with place.path.open("rb") as file:
        file.seek(place.start)
        left = tensor.bytes
        while left:
            chunk = file.read(min(left, CHUNK // width * width))
            if not chunk:
                raise Refused(
                    "brought_truncated",
                    f"The file ends within tensor {shown(tensor.name)}.",
                    "Transfer it again.",
                    where=shown(tensor.file),
                )
            left -= len(chunk)
            yield chunk


@cache
def _blocks() -> Mapping[str, int]:
    """Bytes of a block of each quantised type of GGUF that can be de-quantised."""
    from gguf.constants import GGML_QUANT_SIZES
    from gguf.quants import dequantize

    known = {}
    for kind, (_, width) in GGML_QUANT_SIZES.items():
        with contextlib.suppress(NotImplementedError):
            dequantize(np.zeros((1, width), np.uint8), kind)
            known[kind.name] = width
    return known


def _values(chunk: bytes, dtype: str) -> _Values:
    """The elements of a chunk as float64."""
    if dtype == "F4":  # two in a byte
        packed = np.frombuffer(chunk, np.uint8)
        stored = np.concatenate((packed & 0xF, packed >> 4)).view(ml_dtypes.float4_e2m1fn)
    elif dtype in _TYPES:
        stored = np.frombuffer(chunk, _TYPES[dtype])
    else:
        from gguf.constants import GGMLQuantizationType
        from gguf.quants import dequantize

        blocks = np.frombuffer(chunk, np.uint8).reshape(-1, _blocks()[dtype])
        stored = dequantize(blocks, GGMLQuantizationType[dtype]).ravel()
    values: _Values = stored.astype(np.float64)
    return values


class _Tally:
    """Running count, mean and sum of squared differences of the finite values, and what else there is."""

    def __init__(self) -> None:
        self._count = self._zeros = self._nans = self._infinities = 0
        self._mean = self._squares = 0.0
        self._minimum, self._maximum = math.inf, -math.inf

    def add(self, values: _Values) -> None:
        """Count a chunk in."""
        finite = np.isfinite(values)
        if not finite.all():
            nans = int(np.isnan(values).sum())
            self._nans += nans
            self._infinities += int(values.size - finite.sum()) - nans
            values = values[finite]
        if not values.size:
            return
        self._zeros += int(values.size - np.count_nonzero(values))
        self._minimum = min(self._minimum, float(values.min()))
        self._maximum = max(self._maximum, float(values.max()))
        with np.errstate(over="ignore", invalid="ignore"):  # float64 weights of 1e300: the result says inf
            mean = float(values.mean())
            values -= mean
            squares = float(np.dot(values, values))
            difference, count = mean - self._mean, self._count + values.size
            self._squares += squares + difference * difference * self._count * values.size / count
            self._mean += difference * values.size / count
            self._count = count

    def statistics(self, name: str) -> Statistics:
        """What was counted."""
        if not self._count:
            nan = math.nan
            return Statistics(name, nan, nan, nan, nan, self._zeros, self._nans, self._infinities)
        deviation = math.sqrt(self._squares / self._count) if self._squares >= 0 else math.nan
        return Statistics(
            name,
            self._mean,
            deviation,
            self._minimum,
            self._maximum,
            self._zeros,
            self._nans,
            self._infinities,
        )
