"""Five visitors upload 150 MB each at the same time: the app's memory, and what a sixth one feels.

`python -m tests.benchmarks.uploads --json`. The sixth visitor moves from head to head on the attention
page all the while; a move counts from the key press to the new reading. The peer is Streamlit itself: an
app with a file uploader and nothing else, which gets the same files from the same browser. Memory is
the resident set of the app's process, sampled twenty times a second, over what it held before.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from playwright.sync_api import Browser, Page, expect

from tests.benchmarks.harness import main, summary
from tests.benchmarks.inspector import make
from tests.browser.chromium import chromium, new_context, settle, visit
from tests.browser.server import Server, seeded_home

VISITORS, MB, ROUNDS = 5, 150, 3
TENSORS = 240
GOAL_S = 1.0
# Streamlit's server gathers every body and hands it on as one piece, at worst twice each file; copies to
# the shelf are 1 MB at a time.
BOUND_MB = 2 * VISITORS * MB + 100
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 256,
    "num_hidden_layers": 30,
    "num_attention_heads": 4,
    "intermediate_size": 512,
    "vocab_size": 1_000,
}


@contextmanager
def watched(server: Server) -> Iterator[dict[str, float]]:
    """The app's resident set: `before`, `peak` and `after`, in MB."""
    process = psutil.Process(server.process.pid)
    found = {"before": process.memory_info().rss / 2**20}
    found["peak"] = found["before"]
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.05):
            found["peak"] = max(found["peak"], process.memory_info().rss / 2**20)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join()
        found["after"] = process.memory_info().rss / 2**20


def move(page: Page, layer: int) -> float:
    """Seconds from the key press to the reading of another layer's head."""
    field = page.get_by_role("spinbutton", name="Layer")
    field.fill(str(layer))
    started = time.perf_counter()
    field.press("Enter")
    expect(page.get_by_text(f"Layer {layer}, head").first).to_be_visible(timeout=30_000)
    return time.perf_counter() - started


def upload(pages: list[Page], files: list[Path]) -> None:
    """Hand the files to every page's uploader; the browser sends them in the background."""
    for page in pages:
        page.locator("[data-testid=stFileUploader] input[type=file]").first.set_input_files(files)


def visitors(browser: Browser, url: str) -> list[Page]:
    """Pages of new visitors."""
    pages = [new_context(browser).new_page() for _ in range(VISITORS)]
    for page in pages:
        visit(page, url)
    return pages


def on_page(browser: Browser, url: str, files: list[Path], watch: Callable[[], Any]) -> dict[str, Any]:
    """Uploads to the attention page beside a visitor of it: what that one felt, how long it took."""
    bystander = new_context(browser).new_page()
    visit(bystander, f"{url}/attention_sinks")
    felt: list[float] = []
    elapsed: list[float] = []
    quiet = [move(bystander, turn % 30) for turn in range(1, 21)]
    with watch() as memory:
        for _ in range(ROUNDS):
            pages = waiting = visitors(browser, f"{url}/attention_sinks?view=Bring+your+own")
            started = time.perf_counter()
            upload(pages, files)
            while waiting:
                felt.append(move(bystander, len(felt) % 30))
                waiting = [p for p in waiting if not p.get_by_text("LlamaForCausalLM (llama)").is_visible()]
                if time.perf_counter() - started > 300:
                    raise RuntimeError(f"{len(waiting)} uploads did not end")
            elapsed.append(time.perf_counter() - started)
            settle(bystander)
            for page in pages:
                page.context.close()
    return {"felt": summary(felt), "quiet": summary(quiet), "seconds": statistics.median(elapsed), **memory}


def on_bare_app(browser: Browser, url: str, files: list[Path], watch: Callable[[], Any]) -> dict[str, Any]:
    """The same uploads to a bare app."""
    pages = visitors(browser, url)
    with watch() as memory:
        started = time.perf_counter()
        upload(pages, files)
        for page in pages:
            expect(page.get_by_text("taken: 2")).to_be_visible(timeout=300_000)
        elapsed = time.perf_counter() - started
    for page in pages:
        page.context.close()
    return {"seconds": elapsed, **memory}


def told(found: dict[str, Any]) -> dict[str, Any]:
    """Megabytes over what was held before, at the peak and at the end."""
    over = {key: round(found[key] - found["before"]) for key in ("peak", "after")}
    rest = {key: found[key] for key in ("felt", "quiet") if key in found}
    return {"peak_MB": over["peak"], "after_MB": over["after"], "seconds": round(found["seconds"], 1), **rest}


def measure() -> dict[str, Any]:
    """Both apps, one after the other, with the same files."""
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        place = Path(folder)
        weights, config = place / "model.safetensors", place / "config.json"
        make(weights, TENSORS, MB * 10**6)
        config.write_text(json.dumps(CONFIG))
        files = [config, weights]
        with Server(seeded_home(place / "ours")) as server:
            ours = on_page(browser, server.url, files, lambda: watched(server))
        (place / "bare").mkdir()
        bare = Path(__file__).with_name("_bare_uploads.py")
        with Server(place / "bare", script=bare) as server:
            floor = on_bare_app(browser, server.url, files, lambda: watched(server))
    grown = ours["peak"] - ours["before"]
    return {
        "what": f"{VISITORS} uploads of {MB} MB at once: the app's memory, and moves of another visitor (s)",
        "ours": told(ours),
        "peer": {"Streamlit's uploader alone": told(floor)},
        "ratio": round(grown / (floor["peak"] - floor["before"]), 2),
        "goal": f"memory <= {BOUND_MB:,} MB over what it was, another visitor's p95 < {GOAL_S:g} s",
        "holds": grown <= BOUND_MB and ours["felt"]["p95"] < GOAL_S,
    }


if __name__ == "__main__":
    raise SystemExit(main("uploads", measure))
