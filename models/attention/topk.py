"""The largest entries of every row, exactly: ties go to the smaller index."""

from __future__ import annotations

import numpy as np
import torch

Tensor = torch.Tensor

NEVER = float("-inf")
_SORT = 512  # entries up to which numpy's sorting network beats its selection


def keep_largest(scores: Tensor, topk: int | None) -> Tensor:
    """`scores` with all but the `topk` largest of every row at -inf; ties go to the smaller index.

    Entries that are -inf stay so, also when fewer than `topk` are finite. Raises ValueError below 1.
    """
    keep = kept(scores.detach(), topk)
    return scores if keep is None else scores.masked_fill(keep == 0, NEVER)


def kept(scores: Tensor, topk: int | None) -> Tensor | None:
    """1 where an entry is among its row's `topk` largest and 0 elsewhere, like `scores`; None if all are.

    A number, not a truth value: torch on a CPU multiplies by it far faster than it masks. A row with
    fewer than `topk` finite entries keeps them all, and its -inf too. Raises ValueError below 1.
    """
    if topk is None or topk >= scores.shape[-1]:
        return None
    if topk < 1:
        raise ValueError(f"a row keeps at least one key, not {topk}")
    least, following = _last_and_next(scores, topk)
    keep = torch.ge(scores, least, out=torch.empty_like(scores))
    crowded = (least == following) & (least > NEVER)
    if bool(crowded.any()):  # several keys tie for the last place: rare, and dear to sort out
        crowded = crowded[..., 0]
        row, edge = scores[crowded], least[crowded]
        above, tied = row > edge, row == edge
        first = tied & (tied.cumsum(-1) <= topk - above.sum(-1, keepdim=True))
        keep[crowded] = (above | first).to(keep.dtype)
    return keep


def _last_and_next(scores: Tensor, topk: int) -> tuple[Tensor, Tensor]:
    """The `topk`-th and the next largest of every row, (..., 1) each."""
    if scores.device.type == "cpu" and scores.dtype in (torch.float32, torch.float64):
        # numpy orders with the processor's widest vectors; torch.topk on a CPU goes one by one.
        length, shape = scores.shape[-1], (*scores.shape[:-1], 1)
        place, flat = length - topk, scores.reshape(-1, length).numpy()
        rows = np.sort(flat) if length <= _SORT else np.partition(flat, (place - 1, place))
        ends = torch.from_numpy(rows[:, place - 1 : place + 1].T.copy())
        return ends[1].reshape(shape), ends[0].reshape(shape)
    best = scores.topk(topk + 1, dim=-1, sorted=True).values
    return best[..., topk - 1 : topk], best[..., topk:]
