"""The overview of 144 heads at T = 512, from the click on its tab until its picture is drawn.

`python -m tests.benchmarks.overview --json`. Ours is the first opening of a run: every stored map is
read, unpacked and pooled. The floor is the same click once the stamps are in memory. The bytes are
all that the server sent for it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
from playwright.sync_api import Browser

from data.publish import publish
from data.records.attention_sinks import TABLES
from tests.app.attention_store import config, trace
from tests.benchmarks.harness import main, summary
from tests.benchmarks.head_change import Wire
from tests.browser.chromium import chromium, new_context, settle
from tests.browser.server import Server

TEXTS = {"kjv": "Genesis (King James)", "prose": "Encyclopaedia prose", "code": "Python code"}
LAYERS, HEADS, LENGTH = 12, 12, 512
GOAL_S, GOAL_MB = 1.5, 2.0

_ARM = """
() => {
  let start = 0;
  document.addEventListener('mousedown', () => { start = performance.now(); }, { once: true, capture: true });
  window.__drawn = new Promise(resolve => {
    const look = async () => {
      const image = document.querySelector('.st-key-stamps .imagelayer image');
      const href = image?.getAttribute('href') ?? image?.getAttribute('xlink:href');
      if (!href) return requestAnimationFrame(look);
      const copy = new Image();
      copy.src = href;
      await copy.decode().catch(() => undefined);
      requestAnimationFrame(() => requestAnimationFrame(() => resolve(performance.now() - start)));
    };
    requestAnimationFrame(look);
  });
}
"""


def open_overview(browser: Browser, url: str, name: str) -> tuple[float, int]:
    """Seconds and bytes of opening the tab in a new visit."""
    page = new_context(browser).new_page()
    wire = Wire(page)
    page.goto(f"{url}/attention_sinks?{urlencode({'text': f'{name}, no BOS, {LENGTH} tokens'})}")
    page.wait_for_selector(".st-key-head_map .imagelayer image", timeout=60_000)
    settle(page)
    wire.reset()
    page.evaluate(_ARM)
    page.get_by_role("tab", name="All heads").click()
    seconds = float(page.evaluate("() => window.__drawn")) / 1_000
    settle(page)
    page.context.close()
    return seconds, wire.bytes


def measure() -> dict[str, Any]:
    """Two runs, each opened cold and then warm, after a third that fills the other caches."""
    sinks = np.linspace(0.1, 0.9, LAYERS * HEADS).reshape(LAYERS, HEADS).tolist()
    cold, warm = [], []
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        home = Path(folder)
        for seed, text in enumerate(TEXTS):
            run = trace(
                home / "staged", config(text=text, length=LENGTH, samples=1), sinks, seed=1_000 * seed
            )
            publish(home / "traces.duckdb", [run], TABLES)
        with Server(home) as app:
            open_overview(browser, app.url, TEXTS["kjv"])
            for name in list(TEXTS.values())[1:]:
                cold.append(open_overview(browser, app.url, name))
                warm.append(open_overview(browser, app.url, name))
        version = browser.version
    ours = summary([seconds for seconds, _ in cold])
    ours["MB"] = round(max(size for _, size in cold) / 1e6, 2)
    floor = summary([seconds for seconds, _ in warm])
    return {
        "what": f"overview of {LAYERS * HEADS} heads at T={LENGTH}, click to picture (s), and MB on the wire",
        "ours": ours,
        "floor": floor,
        "ratio": round(ours["p50"] / floor["p50"], 2),
        "goal": f"<= {GOAL_S} s, <= {GOAL_MB} MB",
        "holds": ours["p50"] <= GOAL_S and ours["MB"] <= GOAL_MB,
        "environment": {"chromium": version},
    }


if __name__ == "__main__":
    raise SystemExit(main("overview", measure))
