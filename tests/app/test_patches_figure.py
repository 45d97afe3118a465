"""Positions that are patches of a picture, laid out as the picture."""

from __future__ import annotations

import numpy as np
import pandas as pd

from app.figures.attention_patches import grid_of, patches_view
from app.theme import LIGHT

TOKENS = ["[CLS]", "0,0", "0,1", "0,2", "1,0", "1,1", "1,2"]


def test_patches_are_found_by_their_names() -> None:
    grid = grid_of(TOKENS)
    assert grid is not None
    assert grid.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert grid_of(["In", "the", "1,2"]) is None
    assert grid_of(["0"] * 20 + ["0,1", "0,2"]) is None
    assert grid_of(["0,0", "900,900"]) is None  # a stranger's names ask for no huge picture


def test_importance_lies_where_the_patch_is() -> None:
    importance = pd.DataFrame({"position": range(7), "importance": [0.4, 0.1, 0, 0, 0, 0.3, 0.2]})
    drawn = patches_view(TOKENS, importance, (1, 2), LIGHT)
    assert drawn is not None
    assert np.array_equal(drawn.fig.data[0].z, [[0.1, 0, 0], [0, 0.3, 0.2]])
    said = drawn.reading.replace("\N{NO-BREAK SPACE}", " ")
    assert said == "The patch at **row 1, column 1 (30 %)** receives most; all patches together 60 %."
    assert patches_view(["a", "b"], importance, (0, 0), LIGHT) is None
