"""Training of the networks that are compared: the same recipe for every attention.

AdamW, linear warm-up, cosine decay, clipped gradients. No dropout and no augmentation, so that two
networks differ in their attention alone; batches depend on the seed and not on the network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from models.attention.networks import Network
from models.attention.specs import Recipe

Tensor = torch.Tensor


@dataclass
class Batch:
    """Inputs and what is to be predicted from them."""

    inputs: Tensor
    targets: Tensor


def loss_of(network: Network, batch: Batch) -> tuple[Tensor, Tensor]:
    """Mean cross-entropy in nats, and the share of predictions that are right."""
    logits = network(batch.inputs).flatten(0, -2)
    targets = batch.targets.flatten()
    return F.cross_entropy(logits, targets), (logits.argmax(-1) == targets).float().mean()


def optimiser(network: Network, recipe: Recipe) -> torch.optim.AdamW:
    """AdamW that decays matrices alone."""
    matrices = [p for p in network.parameters() if p.requires_grad and p.dim() > 1]
    others = [p for p in network.parameters() if p.requires_grad and p.dim() <= 1]
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": recipe.decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.rate, betas=(0.9, 0.95))


def started(recipe: Recipe, device: str) -> Network:
    """The network before training: the same weights for the same seed, wherever it is made."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        return Network(recipe.network).to(device)


def train(
    network: Network,
    recipe: Recipe,
    batches: Callable[[int], Batch],
    *,
    first: int = 0,
    optimiser_: torch.optim.AdamW | None = None,
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Train in place; yields (updates done, loss, accuracy) after every update.

    `batches(step)` gives the batch of update `step`, so that a training that resumes at `first`
    with its own optimiser goes on as if nothing had been.
    """
    steps = optimiser_ or optimiser(network, recipe)
    network.train()
    for step in range(first, recipe.steps):
        for group in steps.param_groups:
            group["lr"] = recipe.rate_at(step)
        loss, accuracy = loss_of(network, batches(step))
        steps.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        steps.step()
        yield step + 1, loss.detach(), accuracy.detach()
