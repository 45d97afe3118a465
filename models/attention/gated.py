"""A Krause branch beside the attention of a pretrained rotary model, and a gate between the two.

The branch has its own low-rank updates of the queries, keys and values and starts from the pretrained
ones; a softmax over two numbers per token, linear in both branches' outputs, mixes them ("Krause
Synchronization Transformers", ICML 2026, adaptation setting: it starts at 0.8 to 0.2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from models.attention.krause import dense_attention, window_attention
from models.attention.support import Window

Tensor = torch.Tensor


@dataclass(frozen=True)
class GateSpec:
    """Window and kept keys of the branch, start of sigma, rank of the updates, start of the gate."""

    window: int
    topk: int | None
    sigma: float
    rank: int = 8
    branch: float = 0.2


class LowRank(nn.Module):
    """A frozen linear map plus a trained product of two thin ones, zero at the start (Hu et al. 2021)."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / math.sqrt(base.in_features))
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.base(x) + x @ self.down.T @ self.up.T
        return y


@dataclass(frozen=True)
class BranchView:
    """Weights (B, H, N, N) of both branches and the gate (B, N): the branch's weight per token."""

    standard: Tensor
    krause: Tensor | None
    gate: Tensor | None


class GatedAttention(nn.Module):
    """Stands in for a Llama attention module `base`. `spec` None keeps the standard branch alone.

    With `watch` set the dense path is taken and `seen` holds what the branches did; `closed` shuts the
    gate, which leaves the pretrained attention and its updates alone.
    """

    def __init__(self, base: Any, spec: GateSpec | None, rank: int = 8) -> None:
        super().__init__()
        self.spec = spec
        self.d, self.groups = base.head_dim, base.num_key_value_groups
        projections = (base.q_proj, base.k_proj, base.v_proj)
        self.standard = nn.ModuleList(LowRank(p, rank) for p in projections)
        self.out = base.o_proj
        if spec is not None:
            width = base.o_proj.in_features
            self.branch = nn.ModuleList(LowRank(p, spec.rank) for p in projections)
            self.log_sigma = nn.Parameter(torch.tensor(math.log(spec.sigma)))
            self.gate = nn.Linear(2 * width, 2)
            nn.init.zeros_(self.gate.weight)
            with torch.no_grad():
                self.gate.bias.copy_(torch.tensor([1 - spec.branch, spec.branch]).log())
        self.watch = self.closed = False
        self.seen: BranchView | None = None

    def forward(
        self, hidden_states: Tensor, position_embeddings: tuple[Tensor, Tensor], **_: Any
    ) -> tuple[Tensor, None]:
        cos, sin = position_embeddings
        q, k, v = self._project(self.standard, hidden_states, cos, sin)
        mask = torch.from_numpy(Window().valid(q.shape[-2])).to(q.device)
        standard, krause, share = None, None, None
        if self.watch:
            y, standard = dense_attention(q, k, v, mask)
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.transpose(1, 2).flatten(2)
        if self.spec is not None and not self.closed:
            near, krause = self._branch(hidden_states, cos, sin)
            share = self.gate(torch.cat([y, near], -1)).softmax(-1)
            y = share[..., :1] * y + share[..., 1:] * near
        if self.watch:
            assert standard is not None
            self.seen = BranchView(standard, krause, None if share is None else share[..., 1])
        return self.out(y), None

    def _branch(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor | None]:
        assert self.spec is not None
        q, k, v = self._project(self.branch, x, cos, sin)
        sigma2, weights = torch.exp(2 * self.log_sigma), None
        if self.watch:
            mask = torch.from_numpy(Window(self.spec.window).valid(q.shape[-2])).to(q.device)
            y, weights = dense_attention(q, k, v, mask, sigma2=sigma2, topk=self.spec.topk)
        else:
            y = window_attention(q, k, v, self.spec.window, sigma2=sigma2, topk=self.spec.topk)
        return y.transpose(1, 2).flatten(2), weights

    def _project(
        self, maps: nn.ModuleList, x: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (m(x).unflatten(-1, (-1, self.d)).transpose(1, 2) for m in maps)
        cos, sin = cos[:, None], sin[:, None]
        q, k = _turned(q, cos, sin), _turned(k, cos, sin)
        return q, k.repeat_interleave(self.groups, 1), v.repeat_interleave(self.groups, 1)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions as Llama pairs dimensions: the halves of a head."""
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


def adapt(model: Any, spec: GateSpec | None) -> list[GatedAttention]:
    """Put gated attention into every layer of a Llama model in place; everything else is frozen.

    Returns the new modules. `spec` None gives the control: the low-rank updates without a branch.
    """
    model.requires_grad_(False)
    modules = []
    for layer in model.model.layers:
        layer.self_attn = GatedAttention(layer.self_attn, spec).to(model.device)
        modules.append(layer.self_attn)
    for module in modules:
        for name, p in module.named_parameters():
            p.requires_grad_(".base." not in name and not name.startswith("out."))
    return modules
