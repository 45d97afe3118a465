"""A click on another head until its map is drawn: the page, beside an app that shows ready-made PNGs.

`python -m tests.benchmarks.head_change --json`. Both are measured in the browser, from the mouse
button going down to the frame after the map's image was replaced and decoded, in turn, on the same
maps: drawn at random, with a sink, as large on the wire as SmolLM2's own. The page's click
also moves the frame on the map of heads and recomputes importance, reading and hover weights. That
nothing but the fragment ran is read from the messages of the server.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
from playwright.sync_api import Page, WebSocket
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

from app.figures.base import matrix_png
from app.theme import LIGHT
from data.publish import publish
from data.records.attention_sinks import TABLES
from tests.app.attention_store import config, map_of, trace
from tests.benchmarks.harness import main, summary
from tests.browser.chromium import chromium, new_context, settle
from tests.browser.server import Server

GOALS_MS = {512: 250, 1_024: 300, 2_048: 700}
TEXTS = {512: "kjv", 1_024: "prose", 2_048: "code"}
NAMES = {512: "Genesis (King James)", 1_024: "Encyclopaedia prose", 2_048: "Python code"}
LAYERS, HEADS, CLICKS = 3, 2, 16
SINKS = np.linspace(0.3, 0.9, LAYERS * HEADS).reshape(LAYERS, HEADS).tolist()

# Resolves with the milliseconds from the next mouse press to the frame that shows another image.
_ARM = """
() => {
  const source = image => image.getAttribute('href') ?? image.getAttribute('xlink:href') ?? '';
  const images = () => [...document.querySelectorAll('.st-key-head_map .imagelayer image')].map(source);
  const seen = () => images().map(href => href.length + href.slice(-96)).join('|');
  const before = seen();
  let start = 0;
  document.addEventListener('mousedown', () => { start = performance.now(); }, { once: true, capture: true });
  window.__changed = new Promise(resolve => {
    const look = async () => {
      const now = seen();
      if (!start || now === before || !now) return requestAnimationFrame(look);
      await Promise.all(images().map(href => {
        const copy = new Image();
        copy.src = href;
        return copy.decode().catch(() => undefined);
      }));
      requestAnimationFrame(() => requestAnimationFrame(() => resolve(performance.now() - start)));
    };
    requestAnimationFrame(look);
  });
}
"""


class Wire:
    """What the server sent since `reset`: bytes, and whether any run was of the whole page."""

    def __init__(self, page: Page) -> None:
        self.reset()
        page.on("websocket", self._listen)

    def reset(self) -> None:
        """Forget what was sent so far."""
        self.bytes, self.full_runs = 0, 0

    def _listen(self, socket: WebSocket) -> None:
        socket.on("framereceived", self._received)

    def _received(self, payload: bytes | str) -> None:
        raw = payload if isinstance(payload, bytes) else payload.encode()
        self.bytes += len(raw)
        message = ForwardMsg.FromString(raw)
        ended = message.WhichOneof("type") == "script_finished"
        if ended and message.script_finished == ForwardMsg.FINISHED_SUCCESSFULLY:
            self.full_runs += 1


def prepare(home: Path) -> None:
    """A store with one run per length, and the same maps as ready-made PNGs."""
    runs, ready = [], {}
    for length, text in TEXTS.items():
        settings = config(text=text, length=length, samples=1)
        runs.append(trace(home / "staged", settings, SINKS, seed=length))
        maps = [map_of(length, SINKS[i][j], seed=length + 97 * i + j) for i, j in np.ndindex(LAYERS, HEADS)]
        ready[length] = [matrix_png(np.sqrt(weights), LIGHT, 0.0, 1.0).uri for weights in maps]
    publish(home / "traces.duckdb", runs, TABLES)
    (home / "maps.json").write_text(json.dumps(ready))


def clicks(page: Page, press: Callable[[int], None], wire: Wire) -> tuple[list[float], int]:
    """Milliseconds of every click, the first ones left out, and the most bytes one of them took."""
    times, most = [], 0
    for turn in range(CLICKS + 2):
        settle(page)
        wire.reset()
        page.evaluate(_ARM)
        press(turn)
        elapsed = page.evaluate("() => window.__changed")
        settle(page)
        if wire.full_runs:
            raise RuntimeError("a click ran the whole page")
        if turn >= 2:
            times.append(float(elapsed))
            most = max(most, wire.bytes)
    return times, most


def cell(page: Page, layer: int, head: int) -> None:
    """Press the middle of a cell of the map of heads."""
    box = page.locator(".st-key-heads .nsewdrag").first.bounding_box()
    assert box is not None
    x = box["x"] + box["width"] * (layer + 0.5) / LAYERS
    y = box["y"] + box["height"] * (head + 0.5) / HEADS
    page.mouse.move(x, y)
    page.wait_for_timeout(100)  # Plotly takes the point from the hover before the click
    page.mouse.down()
    page.mouse.up()


def on_page(page: Page, url: str, length: int) -> dict[str, float]:
    """Clicks on cells of the attention page."""
    text = f"{NAMES[length]}, no BOS, {length} tokens"
    wire = Wire(page)
    page.goto(f"{url}/attention_sinks?{urlencode({'text': text})}")
    page.wait_for_selector(".st-key-head_map .imagelayer image", timeout=60_000)
    times, most = clicks(page, lambda turn: cell(page, turn % LAYERS, turn // LAYERS % HEADS), wire)
    return {**summary(times, 0), "wire_kB": round(most / 1_000)}


def on_bare_app(page: Page, url: str, length: int) -> dict[str, float]:
    """Clicks on the button of the bare app."""
    wire = Wire(page)
    page.goto(f"{url}/?length={length}")
    page.wait_for_selector(".st-key-head_map .imagelayer image", timeout=60_000)
    button = page.get_by_role("button", name="next")
    times, most = clicks(page, lambda turn: button.click(), wire)
    return {**summary(times, 0), "wire_kB": round(most / 1_000)}


def measure() -> dict[str, Any]:
    """Clicks at every length on the page and on the bare app, after two each that fill the caches."""
    ours: dict[str, Any] = {}
    floor: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        home = Path(folder)
        prepare(home)
        bare = Path(__file__).with_name("_bare_maps.py")
        with Server(home) as app, Server(home, script=bare) as plain:
            for length in GOALS_MS:
                page = new_context(browser).new_page()
                ours[f"T={length}"] = on_page(page, app.url, length)
                floor[f"T={length}"] = on_bare_app(page, plain.url, length)
                page.context.close()
        version = browser.version
    ratios = {name: round(ours[name]["p50"] / floor[name]["p50"], 2) for name in ours}
    return {
        "what": "click on another head until its map is drawn, p50 (ms)",
        "ours": ours,
        "floor": floor,
        "ratio": ratios,
        "goal": {f"T={length}": f"p50 <= {goal} ms" for length, goal in GOALS_MS.items()},
        "holds": all(ours[f"T={length}"]["p50"] <= goal for length, goal in GOALS_MS.items()),
        "environment": {"chromium": version},
    }


if __name__ == "__main__":
    raise SystemExit(main("head_change", measure))
