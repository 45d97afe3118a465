"""One transformer and one vision transformer, whose block is the same whatever the attention.

Pre-norm blocks, GELU, learned positions, no dropout. The attention mechanism is the only thing that
differs between two networks of the same specification, also in the number of parameters, but for
sigma (one a head) and the null key (one vector a head).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from models.attention.krause import (
    dense_attention,
    extended,
    grid_attention,
    linear_attention,
    linear_attention_chunked,
    window_attention,
)
from models.attention.mechanisms import MECHANISMS
from models.attention.ring import Memory
from models.attention.specs import NetworkSpec
from models.attention.support import Window

Tensor = torch.Tensor

_SHORT = 128  # tokens up to which one dense product is quicker than gathering a few keys a query


def rotary_table(length: int, d: int, base: float = 10_000.0) -> Tensor:
    """Cosines and sines of rotary positions (2, length, d/2) (Su et al. 2021, eq. 15)."""
    angle = torch.arange(length)[:, None] * base ** (-torch.arange(0, d, 2) / d)[None]
    return torch.stack([angle.cos(), angle.sin()])


def rotated(x: Tensor, table: Tensor) -> Tensor:
    """Queries or keys (..., N, d) turned by their positions; the halves of d are paired. Keeps norms."""
    a, b = x.chunk(2, -1)
    cos, sin = table
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


class Attention(nn.Module):
    """Multi-head attention of one layer; `weights=True` takes the dense path and returns the maps."""

    valid: Tensor
    index: Tensor
    real: Tensor
    rotary: Tensor

    def __init__(self, spec: NetworkSpec, topk: int | None) -> None:
        super().__init__()
        self.spec, self.topk, self.mechanism = spec, topk, MECHANISMS[spec.mechanism]
        self.window = spec.window if self.mechanism.local else None
        self.causal = spec.kind == "sequence"
        self.qkv = nn.Linear(spec.width, 3 * spec.width, bias=False)
        self.out = nn.Linear(spec.width, spec.width, bias=False)
        if self.mechanism.score == "distance":
            count = 1 if spec.sigma == "layer" else spec.heads
            start = torch.full((count,), math.log(spec.sigma_start))
            self.log_sigma = nn.Parameter(start, requires_grad=spec.sigma != "fixed")
        if self.mechanism.null:
            self.null = nn.Parameter(torch.zeros(spec.heads, spec.width // spec.heads))
        seen = Window(self.window).valid(spec.length) if self.causal else spec.grid.valid()
        self.register_buffer("valid", torch.from_numpy(seen), persistent=False)
        if spec.positions == "rotary":
            table = rotary_table(spec.length, spec.width // spec.heads)
            self.register_buffer("rotary", table, persistent=False)
        if not self.causal:
            index, real = map(torch.from_numpy, spec.grid.neighbours())
            self.register_buffer("index", index, persistent=False)
            self.register_buffer("real", real, persistent=False)

    @property
    def sigma2(self) -> Tensor | None:
        """Squared widths (heads or 1, 1, 1); None for dot-product scores."""
        if self.mechanism.score != "distance":
            return None
        return torch.exp(2 * self.log_sigma)[:, None, None]

    def project(self, x: Tensor, start: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """(B, N, width) -> q, k, v of (B, heads, N, d); the first token is at position `start`."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.spec.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.spec.positions == "rotary":
            turn = self.rotary[:, start : start + x.shape[1]]
            q, k = rotated(q, turn), rotated(k, turn)
        return q, k, v

    def forward(self, x: Tensor, weights: bool = False) -> tuple[Tensor, Tensor | None]:
        q, k, v = self.project(x)
        y, maps = self._dense(q, k, v) if weights else (self._fast(q, k, v), None)
        return self.out(y.transpose(1, 2).flatten(2)), maps

    def step(self, x: Tensor, position: int, memory: Memory) -> Tensor:
        """The same for one token x (B, 1, width) at `position`, with what `memory` holds of the others."""
        y = memory.step(*self.project(x, position))
        result: Tensor = self.out(y.transpose(1, 2).flatten(2))
        return result

    def _dense(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if self.mechanism.score == "linear":
            return linear_attention(q, k, v, causal=self.causal)
        n = q.shape[-2]
        null = self.null if self.mechanism.null else None
        return dense_attention(
            q, k, v, self.valid[:n, :n], sigma2=self.sigma2, topk=self.topk, null=null
        )  # fmt: skip

    def _fast(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The same output without the maps, by the quickest exact path."""
        if self.mechanism.score == "linear":
            return linear_attention_chunked(q, k, v) if self.causal else self._dense(q, k, v)[0]
        if self.mechanism.null:
            return self._with_null(q, k, v)
        if self.causal and self.window is not None and self.window < q.shape[-2]:
            return window_attention(q, k, v, self.window, sigma2=self.sigma2, topk=self.topk)
        if self.topk is not None and not self.causal and self.spec.length > _SHORT:
            return grid_attention(q, k, v, self.index, self.real, sigma2=self.sigma2, topk=self.topk)
        if self.topk is not None:
            return self._dense(q, k, v)[0]
        a, b = extended(q, k, self.sigma2)
        mask = None if self.causal or self.window is None else self.valid
        return F.scaled_dot_product_attention(a, b, v, attn_mask=mask, is_causal=self.causal, scale=1.0)

    def _with_null(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """One more key in front, with value zero, for the fused kernel."""
        n = q.shape[-2]
        a, b = extended(q, k, None)
        nothing = self.null[None, :, None].expand(q.shape[0], -1, -1, -1)
        mask = F.pad(self.valid[:n, :n], (1, 0), value=True)
        return F.scaled_dot_product_attention(
            a, torch.cat([nothing, b], 2), F.pad(v, (0, 0, 1, 0)), attn_mask=mask, scale=1.0
        )


class Block(nn.Module):
    """Pre-norm: x + attention(norm x), then x + mlp(norm x)."""

    def __init__(self, spec: NetworkSpec, topk: int | None) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(spec.width), nn.LayerNorm(spec.width)
        self.attention = Attention(spec, topk)
        self.up = nn.Linear(spec.width, 4 * spec.width)
        self.down = nn.Linear(4 * spec.width, spec.width)

    def forward(self, x: Tensor, weights: bool = False) -> tuple[Tensor, Tensor | None]:
        y, maps = self.attention(self.norm1(x), weights)
        x = x + y
        return x + self.down(F.gelu(self.up(self.norm2(x)))), maps

    def step(self, x: Tensor, position: int, memory: Memory) -> Tensor:
        """One token (B, 1, width) through the block."""
        x = x + self.attention.step(self.norm1(x), position, memory)
        y: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return y


@dataclass(frozen=True)
class LayerView:
    """What a block does: weights (B, H, N, N), states after it (B, N, width), key lengths (B, H, N)."""

    weights: Tensor
    states: Tensor
    key_norms: Tensor


class Network(nn.Module):
    """Tokens (B, T) to next-token logits (B, T, vocabulary), or images (B, 1, S, S) to (B, classes)."""

    def __init__(self, spec: NetworkSpec) -> None:
        super().__init__()
        self.spec = spec
        if spec.kind == "sequence":
            self.embed: nn.Module = nn.Embedding(spec.vocabulary, spec.width)
        else:
            self.embed = nn.Linear(spec.patch**2, spec.width)
            self.class_token = nn.Parameter(torch.zeros(spec.width))
        if spec.positions == "learned":
            self.position = nn.Parameter(torch.zeros(spec.length, spec.width))
        self.blocks = nn.ModuleList(Block(spec, topk) for topk in spec.kept)
        self.norm = nn.LayerNorm(spec.width)
        self.head = nn.Linear(spec.width, spec.vocabulary, bias=False)
        self._start()

    def _start(self) -> None:
        """Normal weights of 0.02, the two that write to the residual stream smaller with depth."""
        for name, p in self.named_parameters():
            if p.dim() > 1 or name in ("position", "class_token"):
                deep = name.endswith(("attention.out.weight", "down.weight"))
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * self.spec.layers) if deep else 0.02)

    def embedded(self, x: Tensor) -> Tensor:
        """The residual stream before the first block, (B, N, width)."""
        if self.spec.kind == "sequence":
            h: Tensor = self.embed(x)
            return h if self.spec.positions == "rotary" else h + self.position[: x.shape[1]]
        patches = F.unfold(x, self.spec.patch, stride=self.spec.patch).transpose(1, 2)
        first = self.class_token.expand(x.shape[0], 1, -1)
        return torch.cat([first, self.embed(patches)], 1) + self.position

    def forward(self, x: Tensor) -> Tensor:
        h = self.embedded(x)
        for block in self.blocks:
            h, _ = block(h)
        return self.read(h)

    def read(self, h: Tensor) -> Tensor:
        """Logits from the last residual stream."""
        result: Tensor = self.head(self.norm(h if self.spec.kind == "sequence" else h[:, 0]))
        return result

    def layers(self, x: Tensor) -> Iterator[LayerView]:
        """Every block's attention and states on inputs x, by the dense path."""
        h = self.embedded(x)
        for block in self.blocks:
            assert isinstance(block, Block)
            _, keys, _ = block.attention.project(block.norm1(h))
            h, maps = block(h, weights=True)
            assert maps is not None
            yield LayerView(maps, h, keys.norm(dim=-1))

    @property
    def attentions(self) -> list[Attention]:
        """The attention of every layer."""
        return [block.attention for block in self.blocks if isinstance(block, Block)]

    def step(self, token: Tensor, position: int, memories: Sequence[Memory]) -> Tensor:
        """Logits (B, vocabulary) after one token (B,) at `position`; `memories` take it in."""
        h: Tensor = self.embed(token[:, None])
        if self.spec.positions == "learned":
            h = h + self.position[position]
        for block, memory in zip(self.blocks, memories, strict=True):
            assert isinstance(block, Block)
            h = block.step(h, position, memory)
        return self.read(h)[:, -1]

    @property
    def parameter_count(self) -> int:
        """Trained parameters."""
        return sum(p.numel() for p in self.parameters() if p.requires_grad)
