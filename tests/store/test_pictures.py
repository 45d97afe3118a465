"""The pictures that vision models are shown: real ones, in a fixed order."""

from __future__ import annotations

import numpy as np

from data.sources.fashion_mnist import fashion_mnist
from data.sources.pictures import PICTURES


def test_the_clothes_are_one_of_each_class_in_turn() -> None:
    found = PICTURES["clothes"].read(13)
    test = fashion_mnist("subset").test
    assert len(found) == 13
    for number, picture in enumerate(found):
        of_class = np.flatnonzero(test.labels == number % 10)
        expected = test.images[of_class[number // 10]]
        assert picture.dtype == np.uint8 and (picture == expected[:, :, None]).all()
    assert len(PICTURES["clothes"].read(10_000)) == len(test.labels)


def test_the_lines_are_printed_dark_on_light() -> None:
    lines = PICTURES["line"].read(2)
    assert [line.shape[0] for line in lines] == [48, 48]
    assert all(line.shape[1] > 150 and line.min() < 60 and np.median(line) >= 240 for line in lines)
    assert len(PICTURES["line"].read(99)) == 4
