"""Fashion-MNIST (Xiao et al. 2017, MIT licence): grey 28 x 28 pictures of ten kinds of clothing.

A balanced subset ships with the sources; the full set is read where a package or a library put it.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from data.errors import CloudChamberError
from data.paths import cache_dir

CLASSES = (
    "T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
FOLDER_VARIABLE = "CLOUDCHAMBER_FASHION_MNIST"
SIDE = 28
SUBSET = Path(__file__).with_name("fashion_mnist_subset.npz")
_SIZES = {"train": 60_000, "t10k": 10_000}

Bytes = npt.NDArray[np.uint8]
Amount = Literal["full", "subset"]


@dataclass(frozen=True)
class Pictures:
    """`images` (n, 28, 28) and `labels` (n,), both uint8."""

    images: Bytes
    labels: Bytes


@dataclass(frozen=True)
class FashionMnist:
    """Training and test pictures; `source` says where they came from."""

    train: Pictures
    test: Pictures
    source: str


@lru_cache(maxsize=2)
def fashion_mnist(amount: Amount) -> FashionMnist:
    """The full set (60,000 + 10,000) or the subset that ships (2,000 + 1,000, balanced).

    Raises CloudChamberError("dataset_missing") when the full set is nowhere, with the ways to get
    it, and "dataset_damaged" when a file is not what it should be.
    """
    if amount == "subset":
        with np.load(SUBSET) as kept:
            train = Pictures(kept["train_images"], kept["train_labels"])
            return FashionMnist(
                train, Pictures(kept["test_images"], kept["test_labels"]), "the shipped subset"
            )
    for folder in _folders():
        if _file(folder, "train-images-idx3-ubyte") is not None:
            return FashionMnist(_read(folder, "train"), _read(folder, "t10k"), folder.name)
    raise CloudChamberError(
        "dataset_missing",
        "The full Fashion-MNIST is not on this machine.",
        "Install it: `sudo apt-get install dataset-fashion-mnist` (Debian, Ubuntu), or "
        "`torchvision.datasets.FashionMNIST(FOLDER, download=True)`; if it lies elsewhere, set "
        f"{FOLDER_VARIABLE} to the folder of the idx files.",
        where="fashion-mnist",
    )


def _folders() -> Iterable[Path]:
    given = os.environ.get(FOLDER_VARIABLE, "").strip()
    if given:
        yield Path(given).expanduser()
    yield Path("/usr/share/datasets/fashion-mnist")  # Debian's dataset-fashion-mnist
    yield cache_dir() / "FashionMNIST" / "raw"  # torchvision, with this cache as its root


def _file(folder: Path, name: str) -> Path | None:
    return next((p for p in (folder / name, folder / f"{name}.gz") if p.is_file()), None)


def _read(folder: Path, split: str) -> Pictures:
    count = _SIZES[split]
    images = _idx(folder, f"{split}-images-idx3-ubyte", 16, count * SIDE * SIDE)
    labels = _idx(folder, f"{split}-labels-idx1-ubyte", 8, count)
    return Pictures(images.reshape(count, SIDE, SIDE), labels)


def _idx(folder: Path, name: str, header: int, size: int) -> Bytes:
    """The bytes of an idx file after its header, gzipped or not."""
    path = _file(folder, name)
    try:
        raw = b"" if path is None else path.read_bytes()
        raw = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except (OSError, EOFError) as error:
        raise _damaged(folder / name, str(error)) from error
    if len(raw) != header + size:
        raise _damaged(folder / name, f"{len(raw):,} bytes instead of {header + size:,}")
    return np.frombuffer(raw, np.uint8, offset=header)


def _damaged(path: Path, why: str) -> CloudChamberError:
    return CloudChamberError(
        "dataset_damaged",
        f"The file {path.name} of Fashion-MNIST cannot be used: {why}.",
        "Install the data set again.",
        where=str(path),
    )
