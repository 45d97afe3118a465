"""The main figure: every head of the model, and the chosen one beside it. One fragment."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pandas as pd
import streamlit as st

from app.figures import attention_head, attention_patches, attention_sinks, attention_windows
from app.figures.assemble import CellFrame
from app.figures.attention_metrics import Metric
from app.figures.base import Figure
from app.theme import current_mode, current_palette
from app.views.attention_frames import default_head, heads_figure
from app.views.attention_runs import Run
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
    """Called when the head changed. The main figure's own fragment runs by itself; a tab that shows the
    head runs with it, and never the whole page."""
    if st.session_state.get(TABS) in FOLLOW_HEAD:
        st.rerun([KEY, VIEWS])


def clicked(chart: str) -> None:
    """A cell of `chart` was clicked: its layer and head become the controls' values.

    A click on the cell that Plotly still holds selected takes the selection away and names no point;
    it means that same cell, which another control may have left meanwhile.
    """
    points = st.session_state[chart]["selection"]["points"]
    memory = f"_{chart}_cell"
    if points:
        named = points[0].get("customdata") or []
        x, y = points[0]["x"], points[0]["y"]
        st.session_state[memory] = (named[0], named[1]) if len(named) > 2 else (x, y)
    if memory not in st.session_state:
        return
    layer, head = st.session_state[memory]
    st.session_state["layer"], st.session_state["head"] = float(layer), float(head)
    follow()


def draw_cells(figure: Figure, key: str, frame: CellFrame | None, *, clicks: bool = True) -> None:
    """A figure of cells with a frame around the chosen one, which lies over it.

    The figure stays the same when another cell is chosen, so the browser leaves it as it stands.
    """
    settings = {"on_select": partial(clicked, key), "selection_mode": "points"} if clicks else {}
    with st.container(key=f"framed_{key}"):
        draw(figure, key, reading=False, **settings)
        if frame is not None:
            st.html(frame.html(current_palette()))


@st.fragment(key=KEY)
def explorer(run: Run, metric: Metric, eps: float) -> None:
    """Left: all heads, the controls of the chosen one, the reading. Right: the chosen head."""
    heads, layers = run.heads(eps), run.by_layer(eps)
    left, right = st.columns([0.45, 0.55], gap="medium")
    with left:
        st.markdown(f"**Every head** of {run.model}: {metric.title.lower()}")
        figure = st.container()
        layer, head = _head_controls(heads)
    with right:  # first, because it is what a click waits for
        _head(run, layer, head, eps)
    with left:
        drawn = run.read(heads_figure, run.id, metric.slug, eps, current_mode())
        with figure:
            draw_cells(drawn, "heads", attention_sinks.cell_frame(heads, (layer, head)))
        st.markdown(attention_sinks.sink_reading(layers, len(heads), run.samples, eps))
        if narrow := attention_windows.window_reading(run.windows(), eps, len(run.tokens())):
            st.markdown(narrow)
        if metric.slug != "sink":
            st.markdown(drawn.reading)


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
    palette, sight = current_palette(), run.sight(layer)
    weights = run.weights(layer, head)
    tokens, importance = run.tokens(), run.importance(layer, head)
    chunk = ", first chunk" if run.samples > 1 and weights is not None else ""
    st.markdown(f"**Layer {layer}, head {head}**: who looks at whom{chunk}")
    if weights is None:
        figure = attention_head.importance_view(tokens, importance, (layer, head), eps, palette, sight)
        draw(figure, "head_importance")
        st.caption(
            "This run keeps no maps; the importance of every key position was stored while they were "
            "computed."
        )
        return
    figure = attention_head.head_view(weights, tokens, importance, (layer, head), eps, palette, sight=sight)
    draw(figure, "head_map")
    picture = attention_patches.patches_view(tokens, importance, (layer, head), palette)
    if picture is not None:
        st.markdown("**In the picture**: how much each patch is looked at")
        draw(picture, "head_patches")
