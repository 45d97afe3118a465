"""Fashion-MNIST: the shipped subset, the idx files, and what is said when they are not there."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from data.errors import CloudChamberError
from data.sources import fashion_mnist as source


@pytest.fixture(autouse=True)
def _fresh() -> None:
    source.fashion_mnist.cache_clear()


def test_the_subset_is_balanced() -> None:
    data = source.fashion_mnist("subset")
    assert data.train.images.shape == (2_000, 28, 28) and data.test.images.shape == (1_000, 28, 28)
    assert np.bincount(data.train.labels).tolist() == [200] * 10
    assert np.bincount(data.test.labels).tolist() == [100] * 10
    assert len(source.CLASSES) == 10 and 60 < data.train.images.mean() < 90  # the full set's mean is 72.9


def write(folder: Path, count: int = 3, *, packed: bool = True) -> None:
    folder.mkdir(parents=True)
    for split in ("train", "t10k"):
        images = b"\0" * 16 + bytes(range(256)) * 3 + bytes(count * 784 - 768)
        for name, content in (
            (f"{split}-images-idx3-ubyte", images),
            (f"{split}-labels-idx1-ubyte", b"\0" * 8 + bytes(count)),
        ):
            if packed:
                (folder / f"{name}.gz").write_bytes(gzip.compress(content))
            else:
                (folder / name).write_bytes(content)


@pytest.mark.parametrize("packed", [True, False])
def test_idx_files_are_read_gzipped_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    write(tmp_path / "set", packed=packed)
    monkeypatch.setenv(source.FOLDER_VARIABLE, str(tmp_path / "set"))
    monkeypatch.setattr(source, "_SIZES", {"train": 3, "t10k": 3})
    data = source.fashion_mnist("full")
    assert data.train.images.shape == (3, 28, 28) and data.source == "set"
    assert data.train.images[0, 0, :4].tolist() == [0, 1, 2, 3]


def test_a_file_of_another_size_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "set")
    monkeypatch.setenv(source.FOLDER_VARIABLE, str(tmp_path / "set"))
    with pytest.raises(
        CloudChamberError, match="train-images-idx3-ubyte of Fashion-MNIST cannot be used: 2,368 bytes"
    ) as caught:
        source.fashion_mnist("full")
    assert caught.value.kind == "dataset_damaged"


def test_when_the_set_is_nowhere_the_ways_to_get_it_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "_folders", lambda: [tmp_path])
    with pytest.raises(CloudChamberError) as caught:
        source.fashion_mnist("full")
    assert caught.value.kind == "dataset_missing" and "dataset-fashion-mnist" in caught.value.remedy
