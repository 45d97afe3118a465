"""`cloudchamber serve`: the port, the address, the traces, and a real start and end."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from app.commands import serve
from data.errors import CloudChamberError
from data.store import open_store
from tests.app.small_store import run_row
from tests.cli.conftest import Command

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def busy() -> Iterator[int]:
    """A port that something listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield int(listener.getsockname()[1])


def kind_of(host: str, port: int) -> str:
    with pytest.raises(CloudChamberError) as refused:
        serve.usable_port(host, port)
    return refused.value.kind


def test_a_port_in_use_names_the_next_free_one(command: Command, busy: int) -> None:
    said = command("serve", "--port", str(busy))
    assert said.code == 2 and said.out == ""
    sentence, remedy = said.err.strip().splitlines()
    assert sentence == f"Port {busy} is in use."
    proposed = re.fullmatch(
        r"Choose another: `cloudchamber serve --port (\d+)`, or `make demo PORT=\1`\.", remedy
    )
    assert proposed
    with socket.socket() as probe:  # the remedy works
        probe.bind(("127.0.0.1", int(proposed[1])))


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "0.0.0.0"])
def test_a_port_in_use_is_seen_from_every_address(host: str, busy: int) -> None:
    assert kind_of(host, busy) == "port_in_use"


def test_port_0_takes_a_free_one() -> None:
    assert 1024 <= serve.usable_port("127.0.0.1", 0) <= 65_535


@pytest.mark.parametrize(
    ("host", "port", "kind"),
    [
        ("localhost", 70_000, "port_invalid"),
        ("localhost", -1, "port_invalid"),
        ("203.0.113.7", 8501, "host_unknown"),  # an address that no machine has
        ("no host", 8501, "host_unknown"),
        ("a" * 300, 8501, "host_unknown"),
    ],
)
def test_what_cannot_be_listened_on(host: str, port: int, kind: str) -> None:
    assert kind_of(host, port) == kind


@pytest.mark.parametrize(
    ("host", "printed", "asked"),
    [
        ("localhost", "http://localhost:80", "localhost"),
        ("0.0.0.0", "http://localhost:80", "127.0.0.1"),
        ("::", "http://localhost:80", "::1"),
        ("192.0.2.1", "http://192.0.2.1:80", "192.0.2.1"),
        ("fe80::1", "http://[fe80::1]:80", "fe80::1"),
    ],
)
def test_addresses(host: str, printed: str, asked: str) -> None:
    assert (serve.address(host, 80), serve.local(host)) == (printed, asked)


@pytest.mark.parametrize(
    ("environment", "opens"),
    [
        ({"DISPLAY": ":0"}, True),
        ({"WAYLAND_DISPLAY": "wayland-0"}, True),
        ({"DISPLAY": ":0", "CI": "true"}, False),
        ({"DISPLAY": ":0", "SSH_CONNECTION": "1 2 3 4"}, False),
        ({}, sys.platform == "darwin"),
    ],
)
def test_a_browser_opens_only_where_it_can_be_seen(
    environment: dict[str, str], opens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "CI", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert serve.has_display() is opens


def test_exported_traces_are_shown_beside_the_shipped_ones(
    command: Command, filled: Path, tmp_path: Path
) -> None:
    exported = tmp_path / "exported"
    assert command("export", run_row().run_id, "--to", str(exported)).code == 0
    state = serve.home_with(exported)
    assert state != filled.parent  # one's own store is left alone
    with open_store(state / "traces.duckdb") as store:
        assert list(store.runs()["run_id"]) == [run_row().run_id]
        assert store.meta.imported == ()
    assert serve.home_with(exported) == state  # again: the same folder, made anew


def test_a_folder_with_a_store_is_shown_as_it_is(filled: Path) -> None:
    assert serve.home_with(filled.parent) == filled.parent


def test_a_folder_without_traces_is_refused(command: Command, tmp_path: Path) -> None:
    said = command("serve", "--port", "0", "--traces", str(tmp_path / "nothing"))
    assert said.code == 3 and "There are no traces in this folder." in said.err


def lines_until(process: subprocess.Popen[str], wanted: str, seconds: float) -> list[str]:
    """What the process prints, up to a line that holds `wanted`."""
    assert process.stdout is not None
    lines: list[str] = []
    watchdog = threading.Timer(seconds, process.kill)
    watchdog.start()
    try:
        for line in process.stdout:
            lines.append(line)
            if wanted in line:
                return lines
    finally:
        watchdog.cancel()
    raise AssertionError(f"{wanted!r} never came: {lines}")


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_serve_prints_its_address_once_it_serves_and_ends_without_a_trace(
    filled: Path, ending: signal.Signals
) -> None:
    if ending is signal.SIGTERM:
        filled.write_bytes(b"damaged")  # then too: the app is there to say so
    command = [sys.executable, "-m", "app.cli", "serve", "--port", "0", "--no-open"]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ}
    )
    try:
        lines = lines_until(process, "Cloud Chamber is at", 60)
        url = lines[-1].split()[-1]
        with urllib.request.urlopen(url, timeout=10) as reply:  # at once, without waiting
            assert reply.status == 200 and b"<title>" in reply.read()
        if ending is signal.SIGTERM:
            assert "The trace store is damaged" in "".join(lines)
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(ending)
        assert process.wait(timeout=20) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []
    with pytest.raises(OSError):
        urllib.request.urlopen(url, timeout=2)
