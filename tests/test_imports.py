"""The house's import rule, read from the sources: app -> precompute -> models; app, precompute -> data."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
OURS = ("app", "data", "models", "precompute")

# What each folder may import of ours, besides itself.
ALLOWED = {
    "models": set(),
    "data": set(),
    "precompute": {"models", "data"},
    "app": {"precompute", "models", "data"},
}
# Arrays in, arrays out: a method knows no store, no page, no clock.
FOREIGN = {
    "models": {"duckdb", "streamlit", "plotly", "typer", "rich", "time", "datetime"},
    "data": {"streamlit", "plotly", "torch", "transformers", "typer", "rich"},
}
SQL = re.compile(
    r"\s*(SELECT\s.+\sFROM|INSERT\s+INTO|CREATE\s+(TABLE|VIEW)|DELETE\s+FROM|ATTACH\s|COPY\s.+\sTO)\b", re.S
)


def imported(tree: ast.Module, package: str) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of everything a module imports, relative imports resolved."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{origin}.{alias.name}"


def page_of(name: str) -> str | None:
    """The page a dotted name lies in: `app.pages.scaling.draw` is in `scaling`."""
    parts = name.split(".")
    return parts[2] if parts[:2] == ["app", "pages"] and len(parts) > 2 else None


def violations(root: Path) -> list[str]:
    """Every import and statement under `root` that breaks the rule, as `file:line: what`."""
    found = []
    for layer in OURS:
        for file in sorted((root / layer).rglob("*.py")):
            relative = file.relative_to(root)
            tree = ast.parse(file.read_text("utf-8"), str(relative))
            here = ".".join(relative.with_suffix("").parts)
            package = here.rpartition(".")[0]
            for line, name in imported(tree, package):
                top = name.partition(".")[0]
                if top in OURS and top != layer and top not in ALLOWED[layer]:
                    found.append(f"{relative}:{line}: {layer} must not import {name}")
                if top == "tests":
                    found.append(f"{relative}:{line}: only tests import tests")
                if top in FOREIGN.get(layer, ()):
                    found.append(f"{relative}:{line}: {layer} must not know {top}")
                if page_of(here) and page_of(name) and page_of(here) != page_of(name):
                    found.append(f"{relative}:{line}: a page must not import the page {name}")
            if layer != "data":
                found += [
                    f"{relative}:{node.lineno}: SQL is written under data/"
                    for node in ast.walk(tree)
                    if isinstance(node, ast.Constant)
                    and isinstance(node.value, str)
                    and SQL.match(node.value)
                ]
    return found


def test_the_house_keeps_its_rule() -> None:
    assert violations(ROOT) == []


@pytest.mark.parametrize(
    ("file", "source", "said"),
    [
        ("models/a.py", "import data.store", "models must not import data.store"),
        ("models/a.py", "from precompute import study", "models must not import precompute.study"),
        ("models/sub/a.py", "from ...app import theme", "models must not import app.theme"),
        ("models/a.py", "import duckdb", "models must not know duckdb"),
        ("models/a.py", "def f():\n    import time", "models must not know time"),
        ("data/a.py", "from precompute.study import Study", "data must not import precompute.study.Study"),
        ("data/a.py", "if True:\n    from models.x import y", "data must not import models.x.y"),
        ("data/a.py", "import torch.nn", "data must not know torch"),
        ("precompute/a.py", "from app.theme import palette", "precompute must not import app.theme.palette"),
        (
            "app/pages/one.py",
            "from app.pages.two import draw",
            "a page must not import the page app.pages.two.draw",
        ),
        ("app/pages/one.py", "from app.pages import two", "a page must not import the page app.pages.two"),
        ("app/pages/one.py", "from . import two", "a page must not import the page app.pages.two"),
        ("app/a.py", "q = 'SELECT run_id FROM runs'", "SQL is written under data/"),
        ("app/a.py", "import tests.conftest", "only tests import tests"),
    ],
)
def test_a_planted_violation_is_found(tmp_path: Path, file: str, source: str, said: str) -> None:
    for layer in OURS:
        (tmp_path / layer).mkdir()
    planted = tmp_path / file
    planted.parent.mkdir(parents=True, exist_ok=True)
    planted.write_text(source, "utf-8")
    assert [v for v in violations(tmp_path) if v.startswith(file) and v.endswith(said)], violations(tmp_path)


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("app/pages/one.py", "from app.pages.one import helper"),
        ("app/a.py", "import precompute.study, models.x, data.store"),
        ("precompute/a.py", "import models.x, data.store"),
        ("data/a.py", "q = 'SELECT run_id FROM runs'"),
        ("app/a.py", "help = 'Select runs from the list'"),
    ],
)
def test_what_is_allowed_passes(tmp_path: Path, file: str, source: str) -> None:
    planted = tmp_path / file
    planted.parent.mkdir(parents=True)
    planted.write_text(source, "utf-8")
    assert violations(tmp_path) == []
