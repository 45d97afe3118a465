"""What the pointer reads on a head's map: the query, the key and the weight under it, to the pixel."""

from __future__ import annotations

import re

import pytest

from data.records import attention_sinks_queries as queries
from data.store import open_store
from tests.browser import figures
from tests.browser.chromium import settle
from tests.browser.fixtures import OpenPage
from tests.browser.server import Server

pytestmark = pytest.mark.browser

_PLACE = """
(figure, [x, y]) => {
  const {xaxis, yaxis} = figure._fullLayout, box = figure.getBoundingClientRect();
  return [box.left + xaxis._offset + xaxis.d2p(x), box.top + yaxis._offset + yaxis.d2p(y)];
}
"""
_RANGES = """
figure => ['xaxis', 'xaxis3', 'yaxis', 'yaxis3'].map(name => figure._fullLayout[name].range.map(Number))
"""


@pytest.mark.parametrize(("layer", "head", "query", "key"), [(3, 0, 40, 25), (13, 4, 63, 0), (20, 7, 10, 10)])
def test_hover_reads_the_cell_under_the_pointer(
    open_page: OpenPage, server: Server, layer: int, head: int, query: int, key: int
) -> None:
    page = open_page(f"attention_sinks?layer={layer}&head={head}")
    figure = figures.locate(page, "head_map")
    figure.scroll_into_view_if_needed()
    x, y = figure.evaluate(_PLACE, [key, query])
    page.mouse.move(x - 3, y - 3)
    page.wait_for_timeout(100)
    page.mouse.move(x, y)
    label = page.locator(".st-key-head_map .hoverlayer")
    with open_store(server.home / "traces.duckdb") as store:
        runs = queries.trace_runs(store)
        chosen = runs[
            (runs.subject == "smollm2-135m-instruct") & (runs.text == "kjv") & (runs.length == 64) & ~runs.bos
        ]
        weights = queries.attention_map(store, chosen.run_id.iloc[0], layer, head)
    assert weights is not None
    page.wait_for_function("node => node.textContent.includes('weight')", arg=label.element_handle())
    said = (label.text_content() or "").replace("\u200b", "")
    assert re.search(rf"query {query} ", said)
    assert re.search(rf"key {key} ", said)
    (read,) = re.findall(r"weight (\d+\.\d) %", said)
    assert float(read) == pytest.approx(100 * float(weights[query, key]), abs=0.06)


def test_zoom_keeps_tokens_and_cells_together(open_page: OpenPage) -> None:
    page = open_page("attention_sinks")
    figure = figures.locate(page, "head_map")
    figure.scroll_into_view_if_needed()
    for start, end in (((10, 30), (30, 50)), ((12, 66), (20, 66))):  # in the map, then along the strip
        from_x, from_y = figure.evaluate(_PLACE, list(start))
        to_x, to_y = figure.evaluate(_PLACE, list(end))
        page.mouse.move(from_x, from_y)
        page.mouse.down()
        page.mouse.move(to_x, to_y, steps=4)
        page.mouse.up()
        settle(page)
        columns, keys, rows, asked = figure.evaluate(_RANGES)
        assert columns == pytest.approx(keys, abs=0.02)
        assert rows == pytest.approx(asked, abs=0.02)
        assert columns[1] - columns[0] < 40
