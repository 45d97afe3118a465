"""What all tests share: the option that draws new baselines, and the browser's fixtures."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

pytest_plugins = ("tests.browser.fixtures",)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of our own."""
    parser.addoption(
        "--update-screenshots", action="store_true", help="draw the baselines of tests/screenshots anew"
    )


@pytest.fixture(autouse=True)
def own_main() -> Iterator[None]:
    """AppTest leaves its script behind as `__main__`, which the next spawned process would run."""
    main = sys.modules["__main__"]
    yield
    sys.modules["__main__"] = main
