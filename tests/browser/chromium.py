"""A Chromium that draws the same pixels every time, and the wait until a page has come to rest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from app.commands.browser import find_browser

Scheme = Literal["light", "dark"]

FLAGS = (
    "--no-sandbox",  # CI runs as root, where Chromium's sandbox refuses to start; only our own app is opened
    "--disable-gpu",
    "--font-render-hinting=none",
    "--force-color-profile=srgb",
    "--disable-skia-runtime-opts",  # the same rasteriser on every processor
    "--disable-lcd-text",
    "--hide-scrollbars",
    # Nothing but the app is asked for anything.
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-default-apps",
)

# A page has come to rest when this has been true without a break for HOLD milliseconds.
HOLD = 300
_REST = """
() => {
  const app = document.querySelector('[data-testid="stApp"]');
  const plots = [...document.querySelectorAll('.js-plotly-plot')];
  const rest = app
    && app.getAttribute('data-test-connection-state') === 'CONNECTED'
    && app.getAttribute('data-test-script-state') === 'notRunning'
    && !document.querySelector(
      '[data-testid="stSkeleton"], [data-testid="stAppSkeleton"], [data-stale="true"]')
    && document.fonts.status === 'loaded'
    && [...document.images].every(image => image.complete)
    && plots.every(plot => plot.querySelector('.main-svg'));
  if (!rest) { window.__restSince = undefined; return false; }
  window.__restSince ??= performance.now();
  return performance.now() - window.__restSince >= HOLD;
}
""".replace("HOLD", str(HOLD))


@contextmanager
def chromium() -> Iterator[Browser]:
    """A headless Chromium, the one that `cloudchamber doctor` names."""
    path = find_browser()
    if path is None:
        raise RuntimeError("no Chrome or Chromium; `make test` provides one")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


def new_context(
    browser: Browser, *, scheme: Scheme = "light", width: int = 1280, height: int = 900
) -> BrowserContext:
    """A visitor: own cookies and cache, fixed locale, timezone and scale, no motion."""
    return browser.new_context(
        viewport={"width": width, "height": height},
        device_scale_factor=1,
        color_scheme=scheme,
        reduced_motion="reduce",
        locale="en-GB",
        timezone_id="UTC",
        accept_downloads=True,
    )


def settle(page: Page, timeout: float = 30_000) -> None:
    """Wait until the script has run, fonts and images are there and figures are drawn."""
    page.evaluate("() => { window.__restSince = undefined; }")
    page.wait_for_function(_REST, timeout=timeout)


def visit(page: Page, url: str, timeout: float = 30_000) -> None:
    """Open `url` and wait until it has come to rest."""
    page.goto(url, wait_until="domcontentloaded")
    settle(page, timeout)
