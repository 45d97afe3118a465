"""Which keys a query may see, asked one band of query rows at a time.

transformers builds its masks through a registered function. Ours returns an object that keeps the
rule instead of a (T, T) tensor and evaluates it for the rows at hand, so that memory stays O(T).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers.masking_utils import causal_mask_function, sdpa_mask

_SCAN_ROWS = 256


class Visibility(Protocol):
    """What the kernel asks of a mask. `samples` is 1 when all samples share it."""

    causal: bool  # no query sees a key after itself
    plain: bool  # nothing but the causal triangle (if causal) or nothing at all limits the view

    def span(self, start: int, stop: int) -> tuple[int, int]:
        """Half-open range of keys that any of the queries `start..stop` may see."""

    def rows(self, start: int, stop: int, low: int, high: int) -> Tensor:
        """Mask `(N or 1, H or 1, stop-start, high-low)`: bool (True = visible) or an additive float."""

    def seen_by(self, valid: Tensor) -> Tensor:
        """How many of the `valid (N, T)` queries can see each key: `(N, T)` int64."""


class Plain:
    """Full view, or everything up to oneself."""

    plain = True

    def __init__(self, length: int, causal: bool, device: torch.device) -> None:
        self.length, self.causal, self.device = length, causal, device

    def span(self, start: int, stop: int) -> tuple[int, int]:
        return (0, stop) if self.causal else (0, self.length)

    def rows(self, start: int, stop: int, low: int, high: int) -> Tensor:
        if not self.causal:
            return torch.ones(1, 1, stop - start, high - low, dtype=torch.bool, device=self.device)
        queries = torch.arange(start, stop, device=self.device)[:, None]
        return (torch.arange(low, high, device=self.device)[None, :] <= queries)[None, None]

    def seen_by(self, valid: Tensor) -> Tensor:
        if self.causal:
            return valid.long().flip(-1).cumsum(-1).flip(-1)
        return valid.long().sum(-1, keepdim=True).expand(valid.shape).contiguous()


class _Scanned:
    """A mask known only through its rows: spans and causality are found by one pass over them."""

    plain = False

    def __init__(self, length: int, rows: Callable[[int, int], Tensor]) -> None:
        self.length, self._rows = length, rows
        self.causal = True
        lows, highs = [], []
        for start in range(0, length, _SCAN_ROWS):
            seen = self._visible(start, min(start + _SCAN_ROWS, length)).any(dim=0).any(dim=0)
            keys = torch.arange(length, device=seen.device)
            lows.append(torch.where(seen, keys, length).amin(-1))
            highs.append(torch.where(seen, keys + 1, 0).amax(-1))
        self._low, self._high = torch.cat(lows).cpu(), torch.cat(highs).cpu()
        self.causal = bool((self._high <= torch.arange(1, length + 1)).all())

    def _visible(self, start: int, stop: int) -> Tensor:
        rows = self._rows(start, stop)
        if rows.dtype == torch.bool:
            return rows
        return rows > torch.finfo(rows.dtype).min / 2

    def span(self, start: int, stop: int) -> tuple[int, int]:
        low, high = int(self._low[start:stop].min()), int(self._high[start:stop].max())
        return (low, high) if low < high else (0, 1)

    def rows(self, start: int, stop: int, low: int, high: int) -> Tensor:
        return self._rows(start, stop)[..., low:high]

    def seen_by(self, valid: Tensor) -> Tensor:
        total = torch.zeros(valid.shape, dtype=torch.int64, device=valid.device)
        for start in range(0, self.length, _SCAN_ROWS):
            stop = min(start + _SCAN_ROWS, self.length)
            seen = self._visible(start, stop).any(dim=1) & valid[:, start:stop, None]
            total += seen.sum(1)
        return total


class Dense(_Scanned):
    """A ready 4-D mask tensor that the caller or the model made itself."""

    def __init__(self, mask: Tensor) -> None:
        super().__init__(mask.shape[-1], lambda start, stop: mask[:, :, start:stop])


class Lazy(_Scanned):
    """transformers' mask rule (padding, sliding windows, packed sequences, …), evaluated by rows."""

    def __init__(self, rule: dict[str, Any]) -> None:
        if rule["q_length"] != rule["kv_length"] or rule["q_offset"] or rule["kv_offset"]:
            raise ValueError("attention is traced over whole sequences, without a key-value cache")
        self._rule = rule
        super().__init__(rule["kv_length"], self._evaluate)

    def _evaluate(self, start: int, stop: int) -> Tensor:
        arguments = self._rule | {
            "q_length": stop - start,
            "q_offset": start,
            "allow_is_causal_skip": False,
            "allow_is_bidirectional_skip": False,
        }
        mask = sdpa_mask(**arguments)
        if mask is None:  # only the skips that are switched off above return none
            raise RuntimeError("transformers made no mask")
        return mask


def lazy_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Tensor | None = None,
    **rest: Any,
) -> Visibility:
    """The mask function the tracer registers with transformers' AttentionMaskInterface."""
    whole = q_length == kv_length and not q_offset and not kv_offset
    unpadded = attention_mask is None or bool(attention_mask.all())
    device = rest.get("device", "cpu")
    if whole and unpadded:
        if mask_function is causal_mask_function:
            return Plain(kv_length, True, torch.device(device))
        if rest.get("allow_is_bidirectional_skip") and rest.get("local_size") is None:
            return Plain(kv_length, False, torch.device(device))
    return Lazy(
        {
            "batch_size": batch_size,
            "q_length": q_length,
            "kv_length": kv_length,
            "q_offset": q_offset,
            "kv_offset": kv_offset,
            "mask_function": mask_function,
            "attention_mask": attention_mask,
            "device": device,
            "use_vmap": rest.get("use_vmap", False),
        }
    )
