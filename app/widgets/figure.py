"""A figure on a page: the chart with its alt text, then its reading."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import streamlit as st

if TYPE_CHECKING:
    from app.figures.base import Figure

FORMATS = ("PNG", "SVG")
_FORMAT = "figure_format"  # of this visit; a widget's own state goes when its tab closes


def plot_config(name: str) -> dict[str, Any]:
    """Plotly's settings: a quiet toolbar on hover, whose camera saves the figure as `name`."""
    chosen = str(st.session_state.get(_FORMAT, FORMATS[0])).lower()
    return {
        "displaylogo": False,
        "displayModeBar": "hover",
        "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d", "zoomIn2d", "zoomOut2d"],
        "toImageButtonOptions": {"format": chosen, "filename": f"cloudchamber-{name}", "scale": 2},
        "scrollZoom": False,
    }


def draw(figure: Figure, key: str, *, reading: bool = True, **settings: Any) -> Any:
    """Draw a figure under a stable key and its reading below; returns the selection if there is one.

    `settings` go to `st.plotly_chart` (on_select, selection_mode).
    """
    event = st.plotly_chart(
        figure.fig, theme=None, key=key, alt=figure.alt, config=plot_config(key.replace("_", "-")), **settings
    )
    if reading and figure.reading:
        st.markdown(figure.reading)
    return event


def format_control() -> None:
    """PNG or SVG: what the camera in a figure's toolbar saves, on every page of this visit."""
    before = st.session_state.get(_FORMAT, FORMATS[0])
    chosen = st.segmented_control(
        "Figures as",
        FORMATS,
        default=before,
        required=True,
        key=f"{_FORMAT}_control",
        help="The camera in a figure's toolbar saves it in this format.",
    )
    if chosen != before:
        st.session_state[_FORMAT] = chosen
        st.rerun()  # the whole page: figures outside this fragment have cameras too
