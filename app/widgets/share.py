"""A link that reproduces the screen."""

from __future__ import annotations

from urllib.parse import urlencode

import streamlit as st

from app.widgets.controls import bound_values


def share_url() -> str:
    """The page's address with every bound control in it, those at their default too: defaults may
    change with new traces, a link should not."""
    address = (st.context.url or "").rstrip("/")
    values = bound_values()
    return f"{address}?{urlencode(values, doseq=True)}" if values else address


@st.fragment
def share_popover(note: str = "") -> None:
    """A button at the right that opens the link, with a copy button beside it. Place it after the controls.
    `note` says what the link cannot carry.

    The link is made when it is opened: until then controls in other fragments may have moved, and
    those run without this one.
    """
    with st.container(horizontal_alignment="right"):  # here: a fragment is a block of its own
        popover = st.popover("Share", icon=":material/link:", type="tertiary", key="share", on_change="rerun")
    if popover.open:
        with popover:
            st.markdown("This link opens the page as you see it now.")
            st.code(share_url(), language=None, wrap_lines=True)
            if note:
                st.caption(note)
