"""Bigram + back-copy sequences: the smallest task on which a head has often nothing to look at.

A chain of characters follows a bigram table; after a trigger character the one before the trigger
comes again ("Active-Dormant Attention Heads", Guo et al. 2024, section 2). One attention head has to
look two tokens back after a trigger and has nothing to add elsewhere: that is where a sink forms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

START = 0  # the id of the start token, which stands first in every sequence


@dataclass(frozen=True)
class BackCopy:
    """A bigram chain with triggers. Ids are 1.. for `characters`, 0 for the start token.

    `first` (V+1,) is the distribution of the first character, `next` (V+1, V+1) of the one after
    each, `triggers` the ids after which the last but one is copied.
    """

    characters: tuple[str, ...]
    first: Floats
    next: Floats
    triggers: tuple[int, ...]

    @property
    def vocabulary(self) -> int:
        """Characters and the start token."""
        return len(self.characters) + 1

    def sample(self, count: int, length: int, seed: int) -> Ints:
        """`count` sequences (count, length), the start token first."""
        rng = np.random.default_rng(seed)
        first, table = np.cumsum(self.first), np.cumsum(self.next, axis=1)
        ids = np.full((count, length), START)
        for place in range(1, length):
            draw = rng.random(count)[:, None]
            before = first[None] if place == 1 else table[ids[:, place - 1]]
            ids[:, place] = np.minimum((before <= draw).sum(axis=1), self.vocabulary - 1)
            copies = self.copies(ids[:, :place])[:, -1]
            ids[copies, place] = ids[copies, place - 2]
        return ids

    def copies(self, ids: Ints) -> npt.NDArray[np.bool_]:
        """Where the next token is a copy of the last but one: (count, length), query by query."""
        found = np.isin(ids, self.triggers)
        found[:, :2] = False
        return found

    def floor_nats(self, ids: Ints) -> float:
        """Cross-entropy of the process itself on predicting ids[:, 1:]: what no network can beat."""
        chance = self.next[ids[:, :-1], ids[:, 1:]]
        chance[:, 0] = self.first[ids[:, 1]]
        nats = -np.log(chance, out=np.zeros_like(chance), where=chance > 0)
        return float(np.where(self.copies(ids[:, :-1]), 0.0, nats).mean())


def back_copy(text: str, triggers: Sequence[str] = ("t", "e", "i")) -> BackCopy:
    """The chain whose bigrams are those of `text`. Raises ValueError for a trigger that is not in it."""
    characters = tuple(sorted(set(text)))
    place = {c: i + 1 for i, c in enumerate(characters)}
    if missing := [t for t in triggers if t not in place]:
        raise ValueError(f"the text has no {missing[0]!r}")
    ids = np.array([place[c] for c in text])
    counts = np.zeros((len(characters) + 1,) * 2)
    np.add.at(counts, (ids[:-1], ids[1:]), 1)
    first = np.bincount(ids, minlength=len(characters) + 1).astype(float)
    counts[counts.sum(axis=1) == 0] = first  # the start token, and a character that ends the text
    table = counts / counts.sum(axis=1, keepdims=True)
    return BackCopy(characters, first / first.sum(), table, tuple(place[t] for t in triggers))
