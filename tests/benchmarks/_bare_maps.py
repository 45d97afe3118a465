"""The floor of a head change: a Streamlit app that shows one PNG image trace after the other.

The same maps as the page, drawn ahead, read from the home folder.
"""

import json
import os
from pathlib import Path

import plotly.graph_objects as go
import streamlit as st

MAPS = json.loads((Path(os.environ["CLOUDCHAMBER_HOME"]) / "maps.json").read_text())
uris = MAPS[st.query_params["length"]]


@st.fragment
def one() -> None:
    """A button and the map whose turn it is."""
    st.session_state.setdefault("turn", 0)
    if st.button("next"):
        st.session_state["turn"] += 1
    figure = go.Figure(go.Image(source=uris[st.session_state["turn"] % len(uris)]))
    figure.update_layout(height=640)
    st.plotly_chart(figure, key="head_map", theme=None)


one()
