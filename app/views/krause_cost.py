"""Cost: measured time and memory of the operators against the length of the sequence."""

from __future__ import annotations

import streamlit as st

from app.figures.krause_cost import cost_curves
from app.theme import current_palette
from app.widgets import controls, states
from app.widgets.figure import draw
from app.widgets.store import cached_on
from data.records import krause_attention_ledger as ledger
from data.store import Store

_DIRECTIONS = {"forward+backward": "Forward and backward", "forward": "Forward"}


def cost(store: Store) -> None:
    """Time and memory of dense, gathered, fused and linear attention."""
    direction = controls.choice(
        "Direction",
        _DIRECTIONS,
        "c_direction",
        style="segmented",
        help="Training needs both; generation and reading need the forward pass alone.",
    )
    times = cached_on(store, ledger.operator_times, direction)
    if times.empty:
        states.empty_state(
            "The store holds no timings of the operators.",
            "Run `cloudchamber precompute krause_attention --profile laptop`.",
        )
        return
    draw(cost_curves(times, current_palette()), "krause_cost")
    st.caption(
        f"8 heads of 64 dimensions, one sequence, window 128; medians of {times['repetition'].nunique()} "
        "repetitions, bars from the quickest to the slowest. Dense scores are timed up to 4,096 tokens at "
        "most: beyond that one score matrix takes gigabytes. Memory counts live tensors without the "
        "inputs; what a fused kernel takes inside itself is not seen."
    )
