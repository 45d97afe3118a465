"""Fixtures of the tests that look at the app through a browser; loaded by tests/conftest.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page

    from tests.browser.chromium import Scheme
    from tests.browser.server import Server

ARTIFACTS = Path(__file__).resolve().parents[1] / "artifacts"


class OpenPage(Protocol):
    """Opens the app for a new visitor and waits for rest; `path` is "", "attention_sinks?layer=3", …"""

    def __call__(
        self,
        path: str = "",
        *,
        scheme: Scheme = "light",
        width: int = 1280,
        height: int = 900,
        server: Server | None = None,
    ) -> Page: ...


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One Chromium for all tests of this process."""
    from tests.browser.chromium import chromium

    with chromium() as browser:
        yield browser


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The app on the traces that ship."""
    from tests.browser.server import Server, seeded_home

    with Server(seeded_home(tmp_path_factory.mktemp("home"))) as server:
        yield server


@pytest.fixture
def problems() -> list[str]:
    """What pages complained of on their console; a test that expects some empties it."""
    return []


@pytest.fixture
def open_page(request: pytest.FixtureRequest, browser: Browser, problems: list[str]) -> Iterator[OpenPage]:
    """A function that opens pages. Fails the test when a page threw or logged an error."""
    from tests.browser.chromium import new_context, visit

    contexts = []
    logs: dict[Server, int] = {}

    def open_page(
        path: str = "",
        *,
        scheme: Scheme = "light",
        width: int = 1280,
        height: int = 900,
        server: Server | None = None,
    ) -> Page:
        server = server or request.getfixturevalue("server")
        if server not in logs:
            logs[server] = server.tracebacks()
        context = new_context(browser, scheme=scheme, width=width, height=height)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(f"page error: {error}"))
        page.on("console", lambda message: problems.extend(_complaints(message)))
        visit(page, f"{server.url}/{path}")
        return page

    yield open_page
    for number, context in enumerate(contexts):
        if _failed(request):
            for page in context.pages:
                ARTIFACTS.mkdir(exist_ok=True)
                name = "".join(c if c.isalnum() else "-" for c in request.node.name)
                page.screenshot(path=ARTIFACTS / f"{name}-{number}.png")
        context.close()
    problems += [
        f"traceback in {server.log}" for server, before in logs.items() if server.tracebacks() > before
    ]
    assert problems == []


def _complaints(message: ConsoleMessage) -> list[str]:
    url = str(message.location.get("url", ""))
    # At a page's address Streamlit's client first looks for its server below that address.
    probe = "404" in message.text and url.endswith(("/_stcore/health", "/_stcore/host-config"))
    return [] if message.type != "error" or probe else [f"console: {message.text} ({url})"]


def _failed(request: pytest.FixtureRequest) -> bool:
    report = getattr(request.node, "call_report", None)
    return report is not None and report.failed


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):  # type: ignore[no-untyped-def]
    """Keep the outcome of the test itself where its fixtures can see it."""
    report = yield
    if report.when == "call":
        item.call_report = report  # type: ignore[attr-defined]
    return report


@pytest.fixture
def assert_screenshot(request: pytest.FixtureRequest, browser: Browser) -> Callable[..., None]:
    """`assert_screenshot(page, name, full=True)`: the page looks as its baseline does."""
    from tests.screenshots.shots import Screenshots

    update = bool(request.config.getoption("--update-screenshots"))
    return Screenshots(browser.version, update=update, artifacts=ARTIFACTS).check
