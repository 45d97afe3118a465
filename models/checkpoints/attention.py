"""What an opener hands over for the study of attention: a model that can be looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from models.attention.trace import OnAttention, OnMap, OnStates, Progress
from models.checkpoints.inspection import Notice, Takes


class Trace(Protocol):
    """One forward pass, looked at layer by layer; see models.attention.trace.trace."""

    def __call__(
        self,
        inputs: torch.Tensor | None,
        *,
        on_attention: OnAttention,
        on_states: OnStates = ...,
        on_map: OnMap | None = ...,
        map_samples: tuple[int, ...] = ...,
        progress: Progress | None = ...,
    ) -> None:
        """Run `inputs` and hand out numbers as they come.

        `inputs` are ids `(N, T)` int64 of a model that takes text, pixels `(N, C, H, W)` float32 as
        `Images.prepare` made them of one that takes images, None for stored maps. A source that does
        not know hidden states never calls `on_states`. What is left out is as for
        `trace`. Raises Refused when they do not fit.
        """


class Images(Protocol):
    """How a vision model is shown pictures."""

    shape: tuple[int, int, int]  # channels, height, width

    def prepare(self, images: Sequence[npt.NDArray[np.uint8]]) -> torch.Tensor:
        """Pictures `(H, W, 3)` of any size to pixels `(N, C, height, width)` float32, normalised."""

    def pieces(self, pixels: torch.Tensor) -> list[str]:
        """What each position of the sequence is: "[CLS]", then "row,column" of each patch."""


@dataclass(frozen=True)
class AttentionModel:
    """A model in eval mode on its device, and all that the study needs to know of it.

    `tokenizer` is a `tokenizers.Tokenizer` as it came, or None: then bytes or ids are read. `samples`
    is how many samples stored maps hold, else None. `causal` is None where only the maps can tell.
    """

    format: str
    architecture: str
    family: str
    takes: Takes
    layers: int
    heads: int
    kv_heads: int
    parameters: int
    trace: Trace
    vocabulary: int | None = None  # ids it can embed
    max_positions: int | None = None  # tokens it can read at once
    tokenizer: Any | None = None
    images: Images | None = None
    samples: int | None = None
    length: int | None = None  # tokens of a sequence, where it is fixed (stored maps, a fixed ONNX axis)
    causal: bool | None = None
    pieces: tuple[str, ...] = ()  # what the positions of stored maps are called, if that came along
    dtype: str = ""  # of the stored weights, the most frequent
    notices: tuple[Notice, ...] = ()
