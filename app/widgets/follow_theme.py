"""Draw anew when the visitor changes between light and dark.

Streamlit recolours its own elements at once, but a figure is made of colours chosen on the server,
and changing the theme starts no run. This component has nothing to show: it watches the app's
background and asks for a run when it turns.
"""

from __future__ import annotations

import streamlit as st

from app.theme import current_mode

_JS = """
export default function ({ data, setTriggerValue }) {
  const app = document.querySelector('[data-testid="stApp"]');
  if (!app) return;
  const mode = () => {
    const [r, g, b] = getComputedStyle(app).backgroundColor.match(/\\d+/g).map(Number);
    return r + g + b < 384 ? "dark" : "light";
  };
  let shown = data.mode, timer = 0;
  const look = () => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      if (mode() === shown) return;
      shown = mode();
      setTriggerValue("mode", shown);
    }, 60);
  };
  const observer = new MutationObserver(look);
  observer.observe(app, { attributes: true, attributeFilter: ["class", "style"] });
  return () => { clearTimeout(timer); observer.disconnect(); };
}
"""


def follow_theme() -> None:
    """Watch the theme; once per page."""
    component = st.components.v2.component("follow_theme", js=_JS)
    component(key="follow_theme", data={"mode": current_mode()}, on_mode_change=lambda: None, height=1)
