"""A command line on a home of its own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import data.paths
from app import cli
from data.publish import publish
from data.records.attention_sinks import TABLES
from tests.app.small_store import publish_small, run_row, stage


@dataclass(frozen=True)
class Said:
    """What a command said, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as JSON: the whole of it, or it fails."""
        return json.loads(self.out)


Command = Callable[..., Said]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, and no shipped traces."""
    folder = tmp_path / "home"
    monkeypatch.setenv("CLOUDCHAMBER_HOME", str(folder))
    monkeypatch.delenv("CLOUDCHAMBER_DEBUG", raising=False)
    monkeypatch.delenv("CLOUDCHAMBER_DEVICE", raising=False)
    nothing = tmp_path / "published"
    nothing.mkdir()
    monkeypatch.setattr(data.paths, "published_dir", lambda: nothing)
    folder.mkdir()
    return folder


@pytest.fixture
def command(home: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command line in this process: `command("runs", "--json")`."""

    def command(*arguments: str) -> Said:
        capsys.readouterr()
        code = cli.run(list(arguments))
        captured = capsys.readouterr()
        return Said(code, captured.out, captured.err)

    return command


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one done run and one failed run, made once."""
    folder = tmp_path_factory.mktemp("made")
    path = folder / "traces.duckdb"
    publish_small(path)
    failed = run_row("code", status="failed", error="ValueError: no [bold]code[/] here\n\nTraceback …")
    publish(path, [stage(folder / "staged-failed", failed, {})], TABLES)
    return path


@pytest.fixture
def filled(home: Path, made: Path) -> Path:
    """A home with a store of one done run and one failed run; returns the store's path."""
    return Path(shutil.copy(made, home / made.name))
