"""Neighbourhoods: the counts, schedules and ceilings that are known beforehand."""

from __future__ import annotations

import numpy as np
import pytest

from models.attention.metrics import (
    uniform_causal_importance,
    window_importance_ceiling,
    window_mass_ceiling,
)
from models.attention.support import Grid, Window, growing_topk


def test_valid_pairs_of_the_papers_grids() -> None:
    assert Grid(8, 8).pairs() == 417 and Grid(8, 8).length ** 2 == 4_225
    assert Grid(14, 14, 2, "chebyshev").pairs() == 4_489 and Grid(14, 14).length ** 2 == 38_809


def test_a_patch_sees_itself_its_neighbours_and_the_class_token() -> None:
    valid = Grid(3, 3).valid()
    assert np.flatnonzero(valid[5]).tolist() == [0, 2, 4, 5, 6, 8]  # the middle patch
    assert np.flatnonzero(valid[1]).tolist() == [0, 1, 2, 4]  # a corner
    assert valid[0].all() and valid[:, 0].all()


def test_a_corner_of_imagenets_grid_sees_ten_keys() -> None:
    """Fewer than the 16 that top-k would keep there."""
    assert int(Grid(14, 14, 2, "chebyshev").valid()[1].sum()) == 10


@pytest.mark.parametrize("grid", [Grid(4, 5), Grid(6, 6, 2, "chebyshev"), Grid(3, 3, 1, class_token=False)])
def test_neighbours_are_the_rows_of_the_mask(grid: Grid) -> None:
    index, real = grid.neighbours()
    valid, first = grid.valid(), int(grid.class_token)
    for row, (keys, held) in enumerate(zip(index, real, strict=True)):
        assert keys[held].tolist() == np.flatnonzero(valid[row + first]).tolist()


@pytest.mark.parametrize(("width", "length"), [(1, 5), (3, 10), (10, 10), (20, 10), (None, 7), (128, 784)])
def test_window_pairs_are_those_of_the_mask(width: int | None, length: int) -> None:
    assert Window(width).pairs(length) == int(Window(width).valid(length).sum())
    assert Window(width).valid(length).diagonal().all()  # no row is without a key


def test_topk_grows_with_depth_as_in_the_paper() -> None:
    assert growing_topk(2, 12) == (2, 2, 2, 3, 3, 3, 3, 3, 3, 4, 4, 4)
    assert growing_topk(8, 12) == (8, 9, 9, 10, 11, 12, 12, 13, 14, 15, 15, 16)


def test_window_ceilings() -> None:
    assert window_importance_ceiling(16, 64) == 0.25
    assert window_mass_ceiling(16, 64) == pytest.approx(0.238, abs=5e-4)
    assert window_importance_ceiling(128, 784) == pytest.approx(0.163, abs=5e-4)
    assert uniform_causal_importance(64) == pytest.approx(0.07412, abs=5e-6)


def test_a_window_holds_at_least_one_key() -> None:
    with pytest.raises(ValueError, match="own key"):
        Window(0)
