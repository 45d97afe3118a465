"""Statistics of every tensor of safetensors files, streamed: a few megabytes in memory at a time.

Mean and standard deviation are merged chunk by chunk in float64 (Chan, Golub and LeVeque 1979), so that
a large mean does not swallow a small spread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import IO

import ml_dtypes
import numpy as np
import numpy.typing as npt

from models.checkpoints import safetensors_header
from models.checkpoints.bundle import Bundle, Item, Limits, Progress, no_progress
from models.checkpoints.inspection import Statistics, Tensor
from models.checkpoints.refused import Refused, shown

CHUNK = 3 * 2**20  # bytes read at once; divisible by the 8 elements that 3 bytes of 6-bit numbers … 8-byte ones
_Array = npt.NDArray[np.float64]

# NumPy types of the elements, by safetensors' names; ml_dtypes for those that NumPy lacks.
_TYPES: Mapping[str, npt.DTypeLike] = {
    "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4", "U64": "<u8",
    "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8", "BOOL": "u1", "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu, "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
}  # fmt: skip
