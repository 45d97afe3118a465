"""Rows of the attention tables: what a layer's queries can see decides which sinks are possible."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.models


def seen(*counts: int) -> dict[str, Any]:
    from models.attention.trace import LayerAttention
    from precompute.runs import attention_tables

    nothing = np.zeros((1, 1), np.float32)
    layer = LayerAttention(
        layer=3,
        importance=np.zeros((1, 1, len(counts)), np.float32),
        seen_by=np.asarray([counts], np.int32),
        first_token_mass=nothing,
        row_entropy_bits=nothing,
        effective_keys=nothing,
        column_gini=nothing,
        top_key=nothing.astype(np.int32),
        top_key_importance=nothing,
        top_key_share=nothing,
        mean_distance=nothing,
        distance_mass=np.zeros((1, 1, 1), np.float32),
        key_norm_ratio=nothing,
        value_norm_ratio=nothing,
    )
    (row,) = attention_tables.window(layer).to_pylist()
    return dict(row)


def test_a_full_causal_view_has_no_window_and_no_ceiling() -> None:
    row = seen(4, 3, 2, 1)
    assert (row["layer"], row["causal"], row["window"]) == (3, True, None)
    assert (row["first_seen"], row["importance_ceiling"]) == (1.0, 1.0)


def test_a_sliding_window_lowers_the_ceilings() -> None:
    """Window of 2 over 4 tokens: queries 0 and 1 see key 0, so 1 of 3 later ones; importance <= 2/4."""
    row = seen(2, 2, 2, 1)
    assert (row["causal"], row["window"]) == (True, 2)
    assert row["first_seen"] == pytest.approx(1 / 3) and row["importance_ceiling"] == 0.5


def test_both_directions() -> None:
    row = seen(4, 4, 4, 4)
    assert (row["causal"], row["window"], row["importance_ceiling"]) == (False, None, 1.0)
    # One neighbour at each side: ends are seen by 2 queries, the middle by 3 of 5.
    row = seen(2, 3, 3, 3, 2)
    assert (row["causal"], row["window"]) == (False, 3)
    assert row["first_seen"] == 0.25
    assert row["importance_ceiling"] == pytest.approx(0.4)  # two of five queries see the first key


def test_a_single_token_has_no_later_queries() -> None:
    row = seen(1)
    assert math.isnan(row["first_seen"]) and row["importance_ceiling"] == 1.0
