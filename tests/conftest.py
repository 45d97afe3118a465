"""What all tests share: the option that draws new baselines, and the browser's fixtures."""

from __future__ import annotations

import pytest

pytest_plugins = ("tests.browser.fixtures",)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of our own."""
    parser.addoption(
        "--update-screenshots", action="store_true", help="draw the baselines of tests/screenshots anew"
    )
