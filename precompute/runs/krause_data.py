"""What the compared networks are trained on and tested with: characters, bytes, pictures, pixels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from data.errors import CloudChamberError
from data.sources.fashion_mnist import FashionMnist, fashion_mnist
from data.sources.texts import TEXTS
from models.attention.backcopy import START, BackCopy, back_copy
from models.attention.specs import Recipe
from models.attention.training import Batch

GREYS = 17  # levels of a pixel token; the start token is one more
_POOL = 8_000  # back-copy sequences of a seed, drawn once
_HELD_OUT_SEED = 999_983  # of no training
_HELD_OUT_SHARE = 0.05  # the end of the King James text


@dataclass(frozen=True)
class Task:
    """Batches to train with, by step, and held-out ones to test with."""

    batches: Callable[[int], Batch]
    held_out: tuple[Batch, ...]
    name: str


def task(recipe: Recipe) -> Task:
    """The data of a recipe. Raises CloudChamberError for one that is unknown or not on this machine."""
    makers: dict[str, Callable[[Recipe], Task]] = {
        "back-copy": _back_copy,
        "kjv": _kjv,
        "fashion": _pictures,
        "fashion-subset": _pictures,
        "pixels": _pixels,
        "pixels-subset": _pixels,
    }
    if recipe.data not in makers:
        raise CloudChamberError(
            "dataset_unknown",
            f"There is no data {recipe.data!r} to train on.",
            f"Choose from: {', '.join(makers)}.",
            where="data",
        )
    return makers[recipe.data](recipe)


def drawn(seed: int, step: int, below: int, count: int) -> torch.Tensor:
    """Which examples the batch of `step` holds: the same for the same seed and step, resumed or not."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    return torch.randint(below, (count,), generator=generator)


def shifted(ids: torch.Tensor) -> Batch:
    """Sequences (B, T+1) as inputs and their next tokens."""
    return Batch(ids[:, :-1], ids[:, 1:])


@lru_cache(maxsize=1)
def chain() -> BackCopy:
    """Back-copy over the characters and bigrams of the King James text."""
    return back_copy(TEXTS["kjv"].read(1_000_000))


def _back_copy(recipe: Recipe) -> Task:
    length = recipe.network.context + 1
    pool = torch.from_numpy(chain().sample(_POOL, length, recipe.seed))
    test = torch.from_numpy(chain().sample(256, length, _HELD_OUT_SEED))
    return Task(
        lambda step: shifted(pool[drawn(recipe.seed, step, len(pool), recipe.batch)]),
        (shifted(test),),
        "bigram chain of the King James text with back-copies",
    )


@lru_cache(maxsize=1)
def _bytes() -> torch.Tensor:
    text = TEXTS["kjv"].read(10**9).encode("utf-8")
    return torch.from_numpy(np.frombuffer(text, np.uint8).copy())


def _kjv(recipe: Recipe) -> Task:
    """Chunks of bytes behind a start token (byte 0, which no text holds)."""
    text, length = _bytes(), recipe.network.context + 1
    split = int(len(text) * (1 - _HELD_OUT_SHARE))
    span = torch.arange(length)

    def chunks(starts: torch.Tensor) -> Batch:
        ids = text[starts[:, None] + span].long()
        ids[:, 0] = START
        return shifted(ids)

    apart = (len(text) - split - length) // 64
    return Task(
        lambda step: chunks(drawn(recipe.seed, step, split - length, recipe.batch)),
        tuple(chunks(split + apart * torch.arange(i, i + 16)) for i in range(0, 64, 16)),
        "bytes of the King James text",
    )


def pictures(recipe: Recipe) -> FashionMnist:
    """Fashion-MNIST, in full or the shipped subset, by the recipe's name of it."""
    return fashion_mnist("subset" if recipe.data.endswith("-subset") else "full")


def as_images(images: np.ndarray) -> torch.Tensor:
    """Grey pictures (n, 28, 28) of bytes to (n, 1, 28, 28), about zero mean and unit variance."""
    return (torch.from_numpy(images.copy()).float()[:, None] / 255 - 0.286) / 0.353


def _pictures(recipe: Recipe) -> Task:
    data = pictures(recipe)
    images, labels = data.train.images, torch.from_numpy(data.train.labels.copy()).long()
    test, answers = as_images(data.test.images), torch.from_numpy(data.test.labels.copy()).long()

    def batch(step: int) -> Batch:
        rows = drawn(recipe.seed, step, len(labels), recipe.batch)
        return Batch(as_images(images[rows.numpy()]), labels[rows])

    held_out = tuple(Batch(test[i : i + 500], answers[i : i + 500]) for i in range(0, len(test), 500))
    return Task(batch, held_out, f"Fashion-MNIST ({data.source})")


def as_pixels(images: np.ndarray) -> torch.Tensor:
    """Pictures (n, 28, 28) of bytes as raster tokens (n, 785): a start token, then 17 grey levels."""
    grey = torch.from_numpy(np.rint(images.astype(np.float32) * ((GREYS - 1) / 255))).long()
    return torch.cat([torch.full((len(grey), 1), GREYS), grey.flatten(1)], 1)


def _pixels(recipe: Recipe) -> Task:
    data = pictures(recipe)
    images = data.train.images

    def batch(step: int) -> Batch:
        rows = drawn(recipe.seed, step, len(images), recipe.batch).numpy()
        return shifted(as_pixels(images[rows]))

    test = as_pixels(data.test.images[:: max(1, len(data.test.images) // 64)][:64])
    held_out = tuple(shifted(test[i : i + 8]) for i in range(0, len(test), 8))
    return Task(batch, held_out, f"pixels of Fashion-MNIST ({data.source})")
