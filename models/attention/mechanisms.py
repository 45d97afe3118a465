"""The attention mechanisms that are compared, by what they are made of. No torch: pages read it too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Score = Literal["dot", "distance", "linear"]


@dataclass(frozen=True)
class Mechanism:
    """A kind of attention: its score, whether it keeps to a neighbourhood and to the k best keys there.

    Softmax attention differs from Krause attention in three places; a mechanism says which of them
    it takes, so that a difference can be put down to one of them.
    """

    slug: str
    title: str
    short: str  # where a label has little room
    meaning: str
    score: Score = "dot"
    local: bool = False
    sparse: bool = False
    null: bool = False


_ALL = (
    Mechanism(
        "softmax", "Softmax", "Softmax", "q·k/√d over every key the query may see: what transformers do."
    ),
    Mechanism(
        "null_key",
        "Softmax + null key",
        "Null key",
        "The same, with one learned key of value zero beside the others: attention to nothing.",
        null=True,
    ),
    Mechanism(
        "krause",
        "Krause",
        "Krause",
        "Distance scores, the nearest k keys of a neighbourhood.",
        score="distance",
        local=True,
        sparse=True,
    ),
    Mechanism(
        "window",
        "Softmax, same neighbourhood",
        "Neighbourhood",
        "q·k/√d over Krause's neighbourhood, all of it.",
        local=True,
    ),
    Mechanism(
        "window_topk",
        "Softmax, same support",
        "Same support",
        "q·k/√d over Krause's neighbourhood and as many keys: only the score differs from Krause.",
        local=True,
        sparse=True,
    ),
    Mechanism(
        "rbf",
        "Distance, dense",
        "Distance",
        "Distance scores over every key: only the score differs from softmax.",
        score="distance",
    ),
    Mechanism(
        "linear",
        "Linear (elu + 1)",
        "Linear",
        "A feature map instead of the exponential; no softmax at all.",
        score="linear",
    ),
)
MECHANISMS: Mapping[str, Mechanism] = MappingProxyType({m.slug: m for m in _ALL})
