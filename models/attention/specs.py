"""What a network is made of and how it is trained, as data. No torch: plans and pages read it too."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from models.attention.mechanisms import MECHANISMS, Mechanism
from models.attention.support import Grid, Window, growing_topk


class NetworkSpec(BaseModel):
    """What a network is made of; kept in its checkpoint.

    kind        sequence: tokens to next-token logits; image: grey images to class logits
    vocabulary  symbols of a sequence, classes of an image network
    context     tokens of a sequence; rows of pixels of a square image
    window      causal window in tokens; of an image, Manhattan radius in patches
    topk        keys kept in every layer; an image network grows it to twice that with depth
    sigma       one learned width per head or per layer, or a fixed one
    positions   learned vectors, or rotary turns of queries and keys (sequences only)
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["sequence", "image"]
    mechanism: str
    vocabulary: int = Field(ge=2, le=1_000_000)
    context: int = Field(ge=1, le=8_192)
    width: int = Field(ge=1, le=8_192)
    heads: int = Field(ge=1)
    layers: int = Field(ge=1, le=256)
    window: int | None = Field(default=None, ge=1)
    topk: int | None = Field(default=None, ge=1)
    sigma: Literal["head", "layer", "fixed"] = "head"
    sigma_start: float = Field(default=2.5, gt=0)
    positions: Literal["learned", "rotary"] = "learned"
    patch: int = Field(default=4, ge=1)

    @model_validator(mode="after")
    def _consistent(self) -> NetworkSpec:
        if self.mechanism not in MECHANISMS:
            raise ValueError(f"there is no attention {self.mechanism!r}; choose from {', '.join(MECHANISMS)}")
        if self.width % self.heads:
            raise ValueError(f"a width of {self.width} does not divide among {self.heads} heads")
        if MECHANISMS[self.mechanism].local and self.window is None:
            raise ValueError(f"{self.mechanism} needs a window")
        if self.positions == "rotary" and (self.kind == "image" or self.width // self.heads % 2):
            raise ValueError("rotary positions are for sequences with an even number of dimensions a head")
        return self

    @property
    def attention(self) -> Mechanism:
        """The mechanism, by its name."""
        return MECHANISMS[self.mechanism]

    @property
    def length(self) -> int:
        """Tokens that attend to each other."""
        return self.context if self.kind == "sequence" else self.grid.length

    @property
    def grid(self) -> Grid:
        """The patches of an image network and who sees whom."""
        side = self.context // self.patch
        return Grid(side, side, self.window if MECHANISMS[self.mechanism].local else None)

    @property
    def kept(self) -> tuple[int | None, ...]:
        """Keys kept per layer; None keeps all that are visible."""
        if not MECHANISMS[self.mechanism].sparse or self.topk is None:
            return (None,) * self.layers
        return growing_topk(self.topk, self.layers) if self.kind == "image" else (self.topk,) * self.layers


def scored_pairs(spec: NetworkSpec) -> int:
    """Query-key pairs that one head scores in one sequence: those its neighbourhood admits."""
    if spec.kind == "image":
        return spec.grid.pairs()
    return Window(spec.window if spec.attention.local else None).pairs(spec.length)


def kept_pairs(spec: NetworkSpec) -> float:
    """Query-key pairs with weight after top-k, per head and sequence, mean over layers."""
    if spec.kind == "image":
        visible = spec.grid.valid().sum(axis=1)
    else:
        visible = Window(spec.window if spec.attention.local else None).valid(spec.length).sum(axis=1)
    per_layer = [int(visible.clip(max=topk or spec.length).sum()) for topk in spec.kept]
    return sum(per_layer) / len(per_layer)


class Recipe(BaseModel):
    """How a network is trained; with the data's name it identifies the trained network."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    network: NetworkSpec
    data: str
    seed: int
    steps: int = Field(ge=1)
    batch: int = Field(ge=1)
    rate: float = Field(gt=0)
    warmup: int = Field(default=50, ge=1)
    floor: float = Field(default=0.1, ge=0, le=1)
    decay: float = Field(default=0.1, ge=0)
    snapshots: tuple[int, ...] = ()

    def rate_at(self, step: int) -> float:
        """Learning rate of update `step`, from 0."""
        cosine = 0.5 * (1 + math.cos(math.pi * step / self.steps))
        return self.rate * min(1.0, (step + 1) / self.warmup) * (self.floor + (1 - self.floor) * cosine)
