"""How long the home page takes to show in a warm browser, beside a Streamlit app with one sentence."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Page

from tests.benchmarks.harness import main, summary
from tests.browser.chromium import chromium, new_context, settle
from tests.browser.server import Server, seeded_home

LOADS = 20
GOAL_S = 1.0

SHOWN = """() => {
  const app = document.querySelector('[data-testid="stApp"]');
  return app?.getAttribute('data-test-script-state') === 'notRunning'
    && document.querySelector('h1')?.getClientRects().length > 0
    && document.fonts.status === 'loaded'
    && [...document.images].every(image => image.complete);
}"""


def load(page: Page, url: str, shown: str = SHOWN) -> float:
    """Seconds from asking for the page until `shown` holds in it.

    By default: title, pictures and fonts are there and the script is done.
    """
    page.goto("about:blank")
    started = time.perf_counter()
    page.goto(url, wait_until="commit")
    page.wait_for_function(shown)
    return time.perf_counter() - started


def measure() -> dict[str, Any]:
    """Loads of the home page and of a bare app in turn, after one load each that fills the caches."""
    bare = Path(__file__).with_name("bare_app.py")
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        home = Path(folder)
        with Server(seeded_home(home / "ours")) as ours, Server(home / "bare", script=bare) as floor:
            page = new_context(browser).new_page()
            times: dict[str, list[float]] = {ours.url: [], floor.url: []}
            for url in times:
                load(page, url)
                settle(page)
            for _ in range(LOADS):
                for url, measured in times.items():
                    measured.append(load(page, url))
        mine, bare_times = summary(times[ours.url]), summary(times[floor.url])
        return {
            "what": "home page, warm browser, until title, pictures and fonts are there (s)",
            "ours": mine,
            "floor": bare_times,
            "ratio": round(mine["p95"] / bare_times["p95"], 2),
            "goal": f"p95 <= {GOAL_S} s",
            "holds": mine["p95"] <= GOAL_S,
            "environment": {"chromium": browser.version},
        }


if __name__ == "__main__":
    raise SystemExit(main("home_load", measure))
