"""Time and memory of one attention operator by itself, on random queries, keys and values."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from models.attention.krause import dense_attention, linear_attention_chunked, window_attention
from models.attention.support import Window

Tensor = torch.Tensor
Path = Literal["dense", "gathered", "sdpa", "linear"]


class LiveMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes of tensor storage that are alive, counted at every operation: `peak` and `now`.

    Counts what torch allocates through its operators, autograd's saved tensors among them; what a
    fused kernel or numpy takes inside one operation is not seen.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = {
            t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)
        }
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self._count(tensor.untyped_storage(), given)
        return result

    def _count(self, storage: torch.UntypedStorage, given: set[int]) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._seen or key in given:
            return
        self._seen.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._free, key, size)

    def _free(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.now -= size


def operator(
    path: Path, length: int, *, window: int, topk: int | None
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """The operator as a function of q, k, v; distance scores with sigma^2 = sqrt(d) where they apply."""
    if path == "sdpa":
        return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)
    if path == "linear":
        return linear_attention_chunked
    if path == "gathered":
        return lambda q, k, v: window_attention(q, k, v, window, sigma2=_sigma2(q), topk=topk)
    valid = torch.from_numpy(Window(window).valid(length))

    def dense(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return dense_attention(q, k, v, valid.to(q.device), sigma2=_sigma2(q), topk=topk)[0]

    return dense


def _sigma2(q: Tensor) -> Tensor:
    return q.new_tensor(float(q.shape[-1]) ** 0.5)


def measure(
    path: Path,
    length: int,
    *,
    clock: Callable[[], float],
    direction: str,
    repetitions: int,
    window: int = 128,
    topk: int | None = None,
    d: int = 64,
    heads: int = 8,
    device: str = "cpu",
    seed: int = 0,
) -> list[tuple[float, int]]:
    """(seconds, peak bytes) of every repetition, after one that is not counted; one sequence.

    `direction` is "forward" or "forward+backward". Peak bytes leave the inputs out; on CUDA they are
    the allocator's own. `clock` gives seconds, because models know no clock.
    """
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(1, heads, length, d, generator=generator).to(device) for _ in range(3))
    backward = direction == "forward+backward"
    inputs = tuple(t.requires_grad_(backward) for t in (q, k, v))
    call = operator(path, length, window=window, topk=topk)

    def once() -> None:
        with torch.set_grad_enabled(backward):
            out = call(*inputs)
            if backward:
                torch.autograd.grad(out.sum(), inputs)

    once()
    peak = _peak(once, device)
    times = []
    for _ in range(repetitions):
        before = clock()
        once()
        if device != "cpu":
            torch.cuda.synchronize()
        times.append((clock() - before, peak))
    return times


def _peak(once: Callable[[], None], device: str) -> int:
    if device != "cpu":
        torch.cuda.synchronize()
        held = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        once()
        torch.cuda.synchronize()
        return int(torch.cuda.max_memory_allocated() - held)
    with LiveMemory() as memory:
        once()
    return int(memory.peak)
