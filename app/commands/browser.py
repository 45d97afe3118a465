"""Find a Chrome or Chromium for the tests, or install one: `python -m app.commands.browser`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from data.errors import CloudChamberError

VARIABLE = "CHROME"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
MAC_APPS = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Microsoft Edge.app/Contents/MacOS/Microsoft Edge",
)
# Package managers and how they install Chromium without a question.
MANAGERS = (
    ("apt-get", (("apt-get", "update"), ("apt-get", "install", "-y", "--no-install-recommends", "chromium"))),
    ("dnf", (("dnf", "install", "-y", "chromium"),)),
    ("zypper", (("zypper", "--non-interactive", "install", "chromium"),)),
    ("pacman", (("pacman", "-Sy", "--noconfirm", "chromium"),)),
    ("apk", (("apk", "add", "chromium"),)),
)


def find_browser() -> Path | None:
    """The browser to test with: $CHROME, else one on PATH or in /Applications, else Playwright's own.

    Raises CloudChamberError("chrome_invalid") when $CHROME names something that does not start.
    """
    if given := os.environ.get(VARIABLE):
        path = shutil.which(given)
        if path is None or version(Path(path)) is None:
            raise CloudChamberError(
                "chrome_invalid",
                f"{VARIABLE} names a browser that does not start.",
                f"Correct it, or unset {VARIABLE} to let one be found.",
                where=given,
            )
        return Path(path)
    return next((path for path in _candidates() if version(path) is not None), None)


def _candidates() -> Iterator[Path]:
    for name in NAMES:
        if found := shutil.which(name):
            yield Path(found)
    yield from (Path(app) for app in MAC_APPS if Path(app).is_file())
    if own := _playwrights_own():
        yield own


def _playwrights_own() -> Path | None:
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        return None

    def look() -> Path:
        with sync_playwright() as playwright:
            return Path(playwright.chromium.executable_path)

    # In a thread of its own, because the caller's may run an event loop, which this API refuses.
    with ThreadPoolExecutor(1) as thread:
        path = thread.submit(look).result()
    return path if path.is_file() else None


def version(path: Path) -> str | None:
    """What the browser says of itself; None when it does not start (a stub, a missing library)."""
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def provide_browser() -> Path:
    """A browser that starts, installed if need be: by Playwright, else by the system's package manager.

    Raises CloudChamberError("browser_missing") when none can be had, and says what to install.
    """
    if found := find_browser():
        return found
    print("No Chrome or Chromium found; fetching Playwright's own …", flush=True)
    _run([sys.executable, "-m", "playwright", "install", "chromium"])
    if found := find_browser():
        return found
    if os.geteuid() == 0:
        for manager, commands in MANAGERS:
            if shutil.which(manager):
                print(f"Installing Chromium with {manager} …", flush=True)
                for command in commands:
                    _run(list(command))
                break
        if found := find_browser():
            return found
    raise CloudChamberError(
        "browser_missing",
        "The browser tests need Chrome or Chromium, and none could be installed.",
        f"Install one (Debian, Ubuntu: sudo apt-get install chromium), or set {VARIABLE} to its path.",
    )


def _run(command: list[str]) -> None:
    """Run a step whose failure only means that the next way is tried."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        subprocess.run(command, check=False, timeout=900, stdin=subprocess.DEVNULL, env=environment)
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"{command[0]}: {error}", file=sys.stderr)


def main() -> int:
    """Print which browser the tests will use."""
    from app.commands.outcome import report

    try:
        path = provide_browser()
    except CloudChamberError as error:
        return report(error, as_json=False)
    print(f"Browser for the tests: {version(path)} ({path})")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
