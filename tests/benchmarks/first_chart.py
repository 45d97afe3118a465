"""How long the attention page takes to its first chart, beside a Streamlit app with one small chart.

The browser is warm (scripts in its cache), the visitor new: each load is a session of its own.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from tests.benchmarks.harness import main, summary
from tests.benchmarks.home_load import load
from tests.browser.chromium import chromium, new_context, settle
from tests.browser.server import Server, seeded_home

LOADS = 15
GOAL_S = 3.0

# Marks stand in a chart, not only its empty frame.
DRAWN = """() => !!document.querySelector(
  '.js-plotly-plot .heatmaplayer image, .js-plotly-plot .scatterlayer .trace path')"""


def measure() -> dict[str, Any]:
    """Loads of both pages in turn, after one load each that fills the caches."""
    bare = Path(__file__).with_name("bare_chart.py")
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        home = Path(folder)
        with Server(seeded_home(home / "ours")) as ours, Server(home / "bare", script=bare) as floor:
            page = new_context(browser).new_page()
            times: dict[str, list[float]] = {f"{ours.url}/attention_sinks": [], floor.url: []}
            for url in times:
                load(page, url, DRAWN)
                settle(page)
            for _ in range(LOADS):
                for url, measured in times.items():
                    measured.append(load(page, url, DRAWN))
                    settle(page)
        mine, plain = (summary(measured) for measured in times.values())
        return {
            "what": "attention page, warm browser, to its first chart (s)",
            "ours": mine,
            "floor": plain,
            "ratio": round(mine["p50"] / plain["p50"], 2),
            "goal": f"p50 <= {GOAL_S} s",
            "holds": mine["p50"] <= GOAL_S,
            "environment": {"chromium": browser.version},
        }


if __name__ == "__main__":
    raise SystemExit(main("first_chart", measure))
