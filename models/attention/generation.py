"""Writing on, one token at a time, with whatever memory the attention needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch

from models.attention.networks import Attention, Network
from models.attention.ring import FullCache, LinearState, Memory, RingCache

Kind = Literal["full", "ring", "state"]


def memory_kind(network: Network) -> Kind:
    """The smallest memory that is exact: a ring for a window, sums for linear attention, else everything."""
    mechanism = network.spec.attention
    return "state" if mechanism.score == "linear" else "ring" if mechanism.local else "full"


def memories(network: Network) -> list[Memory]:
    """One empty memory a layer, of `memory_kind`."""
    return [_memory(layer) for layer in network.attentions]


def _memory(layer: Attention) -> Memory:
    if layer.mechanism.score == "linear":
        return LinearState()
    sigma2 = None if layer.sigma2 is None else layer.sigma2.detach()
    if layer.window is not None:
        return RingCache(layer.window, sigma2=sigma2, topk=layer.topk)
    null = layer.null.detach() if layer.mechanism.null else None
    return FullCache(sigma2=sigma2, topk=layer.topk, null=null)


@torch.no_grad()
def generate(
    network: Network,
    given: torch.Tensor,
    length: int,
    *,
    temperature: float = 1.0,
    generator: torch.Generator | None = None,
    memory: list[Memory] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> torch.Tensor:
    """Write `length` tokens after `given` (B, n), n >= 1. Returns (B, n + length).

    Temperature 0 takes the likeliest token; `memory` (empty) is made if not given, so that a caller
    may ask for its size. Raises ValueError beyond the network's context.
    """
    batch, n = given.shape
    if network.spec.kind != "sequence":
        raise ValueError("only a network of sequences can write on")
    if n < 1 or n + length - 1 > network.spec.context:
        raise ValueError(f"{n} tokens and {length} more do not fit a context of {network.spec.context}")
    memory = memories(network) if memory is None else memory
    written = torch.empty(batch, n + length, dtype=given.dtype, device=given.device)
    written[:, :n] = given
    for place in range(n + length - 1):
        logits = network.step(written[:, place], place, memory)
        if place >= n - 1:
            written[:, place + 1] = _next(logits, temperature, generator)
        if progress is not None:
            progress(place + 1, n + length - 1)
    return written


def _next(logits: torch.Tensor, temperature: float, generator: torch.Generator | None) -> torch.Tensor:
    if temperature == 0:
        return logits.argmax(-1)
    chances = (logits / temperature).softmax(-1)
    return torch.multinomial(chances, 1, generator=generator)[:, 0]
