"""Finding a browser for the tests, and providing one where there is none."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from app.commands import browser
from data.errors import CloudChamberError

SH = shutil.which("sh") or "/bin/sh"  # before a test takes PATH away


def program(folder: Path, name: str, body: str) -> Path:
    """A small program in `folder`."""
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.write_text(f"#!{SH}\n{body}\n")
    file.chmod(0o755)
    return file


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any browser, and whose downloads all fail; returns its folder of programs."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CHROME", raising=False)
    monkeypatch.setattr(browser, "MAC_APPS", ())
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path / "browsers"))
    monkeypatch.setenv("PLAYWRIGHT_DOWNLOAD_HOST", "http://127.0.0.1:9")  # nothing listens there
    return folder


def test_an_installed_browser_is_found(bare: Path) -> None:
    assert browser.find_browser() is None
    found = program(bare, "google-chrome", "echo Google Chrome 140.0")
    assert browser.find_browser() == found
    assert browser.version(found) == "Google Chrome 140.0"


def test_a_stub_that_does_not_start_is_passed_over(bare: Path) -> None:
    # Ubuntu ships a chromium-browser that only says to install a snap.
    program(bare, "chromium-browser", "echo 'requires the chromium snap' >&2; exit 1")
    assert browser.find_browser() is None
    found = program(bare, "google-chrome", "echo Google Chrome 140.0")
    assert browser.find_browser() == found


def test_chrome_in_the_environment_comes_first(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(bare, "chromium", "echo Chromium 1")
    mine = program(bare, "mine", "echo Chromium 2")
    monkeypatch.setenv("CHROME", str(mine))
    assert browser.find_browser() == mine


@pytest.mark.parametrize("given", ["nowhere", "/dev/null"])
def test_a_wrong_chrome_is_refused_not_replaced(
    given: str, bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(bare, "chromium", "echo Chromium 1")
    monkeypatch.setenv("CHROME", given)
    with pytest.raises(CloudChamberError) as refused:
        browser.find_browser()
    assert refused.value.kind == "chrome_invalid" and refused.value.where == given


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root asks the system")
@pytest.mark.skipif(sys.platform == "darwin", reason="macOS has none of these package managers")
def test_root_installs_it_with_the_system_package_manager(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")  # Playwright's own way fails at once
    log = bare.parent / "asked"
    installed = bare / "chromium"
    program(
        bare,
        "apt-get",
        f'echo "$*" >> {log}; [ "$1" = install ] || exit 0; '
        f"printf '#!{SH}\\necho Chromium 3\\n' > {installed}; "
        f"/bin/chmod 755 {installed}",
    )
    assert browser.provide_browser() == installed
    assert log.read_text().splitlines() == ["update", "install -y --no-install-recommends chromium"]


def test_without_any_way_one_line_says_what_to_install(bare: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert browser.main() == 5
    said = capfd.readouterr()
    assert said.err.splitlines()[-2:] == [
        "The browser tests need Chrome or Chromium, and none could be installed.",
        "Install one (Debian, Ubuntu: sudo apt-get install chromium), or set CHROME to its path.",
    ]
