"""Shared widgets.

Streamlit takes the folder `pages` beside the main script for its older multipage mode, until
`st.navigation` was called once in the process: a first visit that goes straight to /ledger would run
that page alone, without the entry. The first import of this package ends that mode and starts again.
"""

from __future__ import annotations

import streamlit as st
from streamlit.runtime import exists
from streamlit.runtime.pages_manager import PagesManager

if exists() and PagesManager.uses_pages_directory:
    PagesManager.uses_pages_directory = False
    st.rerun()
