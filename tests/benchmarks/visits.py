"""Fifty visitors come, look, bring a file and go: what stays behind? Beside a bare Streamlit app.

Every visit opens the attention page in a browser of its own, moves to another head, uploads maps of
8 MB and sees what is in them; every fifth traces them and a text of its own. Memory is that of the
app's process, after ten visits that warm it up and after fifty more.
"""

from __future__ import annotations

import importlib.util
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from playwright.sync_api import Browser, Page, expect

from tests.benchmarks.harness import main
from tests.browser.chromium import chromium, new_context, settle, visit
from tests.browser.controls import choose
from tests.browser.server import Server, seeded_home

WARM_UP, VISITS, TRACE_EVERY = 10, 50, 5
LAYERS, HEADS, LENGTH = 4, 8, 256  # of the maps, which are float32
TTL_S = 2
GOAL_PERCENT = 5.0
MODEL = "all-MiniLM-L6-v2"


def look(page: Page, number: int, maps: Path) -> None:
    """Move to another head, upload, and now and then trace."""
    layer = page.get_by_role("spinbutton", name="Layer")
    layer.fill(str(number % 30))
    layer.press("Enter")
    expect(page.get_by_text(f"Layer {number % 30}, head").first).to_be_visible(timeout=30_000)
    page.get_by_role("tab", name="Bring your own").click()
    page.locator("[data-testid=stFileUploader] input[type=file]").first.set_input_files(maps)
    expect(page.get_by_text(f"{LAYERS} × {HEADS}")).to_be_visible(timeout=60_000)
    if number % TRACE_EVERY == 0 and importlib.util.find_spec("torch") is not None:
        settle(page)
        page.get_by_role("button", name="Trace it").click()
        expect(page.get_by_text("Traced in")).to_be_visible(timeout=120_000)
        page.get_by_role("tab", name="Bring your own").click()
        page.get_by_role("radio", name="A reference model").click()
        box = page.get_by_role("textbox", name="Your text")
        expect(box).to_be_visible()
        choose(page, "Model that reads it", MODEL)
        box.fill(f"Visitor number {number} was here.")
        box.press("Control+Enter")
        settle(page)
        page.get_by_role("button", name="Trace it").click()
        expect(page.get_by_text("Traced in")).to_be_visible(timeout=120_000)
    settle(page)


def come_and_go(
    browser: Browser, url: str, first: int, count: int, stay: Callable[[Page, int], None]
) -> None:
    """`count` visitors one after the other."""
    for number in range(first, first + count):
        context = new_context(browser)
        page = context.new_page()
        visit(page, url)
        stay(page, number)
        context.close()
    time.sleep(TTL_S + 5)  # sessions end, visits are swept


def footprint(server: Server) -> dict[str, int]:
    """What the app holds: its own memory in MB, open files, child processes, files of visits."""
    process = psutil.Process(server.process.pid)
    roots = (server.home / "tmp").glob("cloudchamber-*/*/*")
    return {
        "rss_mb": round(process.memory_info().rss / 2**20),
        "open_files": process.num_fds(),
        "processes": len(process.children(recursive=True)),
        "threads": process.num_threads(),
        "visit_files": sum(path.name != "owner.lock" for path in roots),
    }


def measure() -> dict[str, Any]:
    """Footprints of both apps after the warm-up and after the visits."""
    found: dict[str, tuple[dict[str, int], dict[str, int]]] = {}
    bare = Path(__file__).with_name("bare_app.py")
    options = {"server.disconnectedSessionTTL": str(TTL_S)}
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        home = seeded_home(Path(folder) / "ours")
        maps = Path(folder) / "maps.npy"
        even = np.tril(np.ones((LAYERS, HEADS, LENGTH, LENGTH), np.float32))
        np.save(maps, even / even.sum(-1, keepdims=True))
        apps: dict[str, tuple[Path, dict[str, Any], str, Callable[[Page, int], None]]] = {
            "ours": (home, {}, "/attention_sinks", lambda page, number: look(page, number, maps)),
            "bare": (Path(folder) / "bare", {"script": bare}, "", lambda page, number: None),
        }
        for name, (place, script, path, stay) in apps.items():
            with Server(place, options=options, **script) as server:
                come_and_go(browser, server.url + path, 0, WARM_UP, stay)
                before = footprint(server)
                come_and_go(browser, server.url + path, WARM_UP, VISITS, stay)
                found[name] = before, footprint(server)
    growth = {name: 100 * (after["rss_mb"] / before["rss_mb"] - 1) for name, (before, after) in found.items()}
    before, after = found["ours"]
    kept = {key: after[key] - before[key] for key in ("processes", "threads", "visit_files", "open_files")}
    return {
        "what": f"{VISITS} visits with an upload each: growth of the app's memory (%), and what was left",
        "ours": {
            "growth_percent": round(growth["ours"], 1),
            **after,
            **{f"new_{k}": v for k, v in kept.items()},
        },
        "floor": {"growth_percent": round(growth["bare"], 1), **found["bare"][1]},
        "ratio": None,
        "goal": f"<= {GOAL_PERCENT:g} % growth, no file, process or thread left",
        "holds": growth["ours"] <= GOAL_PERCENT
        and max(kept["processes"], kept["threads"]) <= 0
        and after["visit_files"] == 0,
    }


if __name__ == "__main__":
    raise SystemExit(main("visits", measure))
