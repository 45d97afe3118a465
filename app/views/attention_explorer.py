"""The main figure: every head of the model, and the chosen one beside it. One fragment."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from app.figures import attention_head, attention_sinks
from app.figures.attention_metrics import Metric
from app.theme import current_palette
from app.views.attention_runs import Run, default_head
from app.widgets import controls
from app.widgets.figure import draw

KEY, VIEWS, TABS = "explorer", "views", "view"  # of the fragments and of the tabs' control
FOLLOW_HEAD: Sequence[str] = ("Compare", "All heads", "Numbers")  # tabs that show the chosen head


def place() -> tuple[int, int] | None:
    """The chosen (layer, head), once its controls have been drawn."""
    if "layer" not in st.session_state or "head" not in st.session_state:
        return None
    return round(st.session_state["layer"]), round(st.session_state["head"])


def follow() -> None:
    """Called when the head changed: only what shows it runs again, never the whole page."""
    st.rerun([KEY, VIEWS] if st.session_state.get(TABS) in FOLLOW_HEAD else KEY)


def clicked(chart: str) -> None:
    """A cell of `chart` was clicked: its layer and head become the controls' values.

    A click on the cell that Plotly still holds selected takes the selection away and names no point;
    it means that same cell, which another control may have left meanwhile.
    """
    points = st.session_state[chart]["selection"]["points"]
    if points:
        point = points[0]
        named = point.get("customdata") or []
        cell = (named[0], named[1]) if len(named) > 2 else (point["x"], point["y"])
        st.session_state[f"{chart}_cell"] = cell
    layer, head = st.session_state[f"{chart}_cell"]
    st.session_state["layer"], st.session_state["head"] = float(layer), float(head)
    follow()


@st.fragment(key=KEY)
def explorer(run: Run, metric: Metric, eps: float) -> None:
    """Left: all heads, the controls of the chosen one, the reading. Right: the chosen head."""
    palette = current_palette()
    heads, layers = run.heads(eps), run.by_layer(eps)
    left, right = st.columns([0.45, 0.55], gap="medium")
    with left:
        st.markdown(f"**Every head** of {run.model}: {metric.title.lower()}")
        figure = st.container()
        layer, head = _head_controls(heads)
        drawn = attention_sinks.heads_map(heads, layers, metric, eps, palette, (layer, head))
        with figure:
            draw(
                drawn,
                "heads",
                reading=False,
                on_select=lambda: clicked("heads"),
                selection_mode="points",
            )
        st.markdown(attention_sinks.sink_reading(layers, len(heads), run.samples, eps))
        if metric.slug != "sink":
            st.markdown(drawn.reading)
    with right:
        _head(run, layer, head, eps)


def _head_controls(heads: pd.DataFrame) -> tuple[int, int]:
    """Layer and head as numbers: for the keyboard, for links, and the same values that clicks set."""
    layer, head = default_head(heads)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        chosen_layer = _whole("Layer", heads["layer"], layer, "Transformer block, from 0 at the input.")
        chosen_head = _whole("Head", heads["head"], head, "Query head within the layer, from 0.")
    return chosen_layer, chosen_head


def _whole(name: str, values: pd.Series, default: int, help: str) -> int:
    """One of the two numbers that say which head is shown."""
    help = f"{help} Click a cell of the map, or set it here."
    value = controls.number(
        name,
        0,
        int(values.max()),
        name.lower(),
        default=default,
        step=1,
        help=help,
        style="input",
        on_change=follow,
        width=120,
    )
    return int(value)


def _head(run: Run, layer: int, head: int, eps: float) -> None:
    palette = current_palette()
    weights = run.weights(layer, head)
    tokens, importance = run.tokens(), run.importance(layer, head)
    chunk = ", first chunk" if run.samples > 1 and weights is not None else ""
    st.markdown(f"**Layer {layer}, head {head}**: who looks at whom{chunk}")
    if weights is None:
        figure = attention_head.importance_view(tokens, importance, (layer, head), eps, palette)
        draw(figure, "head_importance")
        st.caption(
            "This run keeps no maps; the importance of every key position was stored while they were "
            "computed."
        )
        return
    draw(attention_head.head_view(weights, tokens, importance, (layer, head), eps, palette), "head_map")
