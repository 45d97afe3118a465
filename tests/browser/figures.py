"""Figures as they stand in the browser: what Plotly drew, and where its points are on the screen."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from playwright.sync_api import Locator, Page

_DATA = "(figure) => JSON.parse(JSON.stringify(figure.data))"
_POINT = """
(figure, [x, y]) => {
  const {xaxis, yaxis} = figure._fullLayout, box = figure.getBoundingClientRect();
  return [box.left + xaxis._offset + xaxis.d2p(x), box.top + yaxis._offset + yaxis.d2p(y)];
}
"""


def locate(page: Page, key: str) -> Locator:
    """The figure with that key."""
    return page.locator(f".st-key-{key} .js-plotly-plot")


def data(page: Page, key: str) -> list[dict[str, Any]]:
    """The traces of the figure with that key, as Plotly holds them; arrays as numpy arrays."""
    return [
        {name: _array(value) for name, value in trace.items()} for trace in locate(page, key).evaluate(_DATA)
    ]


def _array(value: Any) -> Any:
    if not (isinstance(value, dict) and "bdata" in value):
        return value
    flat = np.frombuffer(base64.b64decode(value["bdata"]), np.dtype(value["dtype"]))
    shape = str(value["shape"]).split(",") if "shape" in value else [flat.size]
    return flat.reshape([int(n) for n in shape])


def click(page: Page, key: str, x: float, y: float) -> None:
    """Click the point (x, y), in the units of the figure's first axes, with the mouse."""
    figure = locate(page, key)
    figure.scroll_into_view_if_needed()
    at = figure.evaluate(_POINT, [x, y])
    page.mouse.move(*at)
    page.mouse.click(*at)
