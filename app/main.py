"""Entry of the app: `streamlit run app/main.py`, or `cloudchamber serve`."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from app.navigation import pages
from app.widgets.follow_theme import follow_theme

HERE = Path(__file__).parent

st.set_page_config(
    page_title="Cloud Chamber",
    page_icon=HERE / "static" / "mark.svg",
    layout="wide",
    menu_items={"About": "Cloud Chamber makes the inside of models visible, from their own traces."},
)
st.html(HERE / "style.css")
page = st.navigation(pages(), expanded=True)
follow_theme()
page.run()
