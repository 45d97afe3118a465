"""What becomes of the sink when the first token is taken away or replaced.

If a sink is a property of the position, whatever stands first inherits it; if it is a property of
the token, it moves or vanishes (Gu et al. 2025, section 4; Xiao et al. 2024, table 1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PreTrainedModel

from models.attention.trace import Trace, collect

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Variant:
    """One variant of N samples, measured on L layers of H heads.

    The top key is the position of the largest importance among those seen by at least 8 queries.
    """

    variant: str  # "original", "removed" or "replaced: NAME"
    ids: npt.NDArray[np.int64]  # (N, T), one token shorter when removed
    first_importance: Floats  # (N, L, H): importance of position 0
    second_importance: Floats  # (N, L, H): of position 1, NaN where there is none
    top_key: Ints  # (N, L, H)
    top_key_importance: Floats  # (N, L, H)


def variants(ids: Tensor, replacements: Mapping[str, int]) -> Iterator[tuple[str, Tensor]]:
    """The original `(N, T)` ids, without their first token, and with each replacement in its place."""
    yield "original", ids
    if ids.shape[1] > 1:
        yield "removed", ids[:, 1:]
    for name, token in replacements.items():
        changed = ids.clone()
        changed[:, 0] = token
        yield f"replaced: {name}", changed


def measure(
    model: PreTrainedModel,
    ids: Tensor,
    replacements: Mapping[str, int],
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[Variant]:
    """Trace every variant of `ids (N, T)`; `replacements` maps a name to a token id.

    `progress(done, total)` counts layers over all variants; what it raises ends the measurement.
    """
    todo = list(variants(ids, replacements))
    for i, (name, changed) in enumerate(todo):

        def report(done: int, total: int, before: int = i) -> None:
            if progress is not None:
                progress(before * total + done, len(todo) * total)

        yield _variant(name, changed, collect(model, changed, progress=report))


def _variant(name: str, ids: Tensor, traced: Trace) -> Variant:
    importance = traced.attention["importance"]  # (N, L, H, T)
    one = importance[..., 1] if importance.shape[-1] > 1 else np.full(importance.shape[:-1], np.nan)
    return Variant(
        variant=name,
        ids=ids.to("cpu", torch.int64).numpy(),
        first_importance=importance[..., 0].copy(),  # the rest of the importances is let go
        second_importance=one.astype(np.float32),
        top_key=traced.attention["top_key"],
        top_key_importance=traced.attention["top_key_importance"],
    )
