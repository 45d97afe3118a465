"""`cloudchamber new-study`: a skeleton that fails until it is filled, in a copy of the sources."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from app.commands import new_study
from app.commands.outcome import WRONG_USE
from data.errors import CloudChamberError
from tests.cli.conftest import Command

ROOT = Path(__file__).resolve().parents[2]
SLUG = "mean_of_noise"

# What a person would write in the place of a FILL that is code, file by file.
FILLED = {
    f"models/{SLUG}.py": [
        (r"raise NotImplementedError\(.*\)", "return float(values.mean())"),
    ],
    f"precompute/studies/{SLUG}.py": [
        (r"raise NotImplementedError\(.*\)", 'return ClaimResult(Verdict.reproduced, 0.0, "", "It is.")'),
        (r"https://FILL", "https://example.org/paper"),
    ],
    f"tests/studies/test_{SLUG}.py": [
        (r'pytest\.approx\(float\("nan"\)\).*', "pytest.approx(2.0)"),
    ],
}


@pytest.mark.parametrize(
    "name", ["", "Caps", "two-words", "1st", "_x", "x_", "a__b", "class", "x" * 31, "../up", "a b", "é"]
)
def test_names_that_cannot_be_a_module(name: str, command: Command) -> None:
    said = command("new-study", name)
    assert said.code == WRONG_USE
    assert "cannot name a study" in said.err


@pytest.mark.parametrize("name", ["attention_sinks", "home"])
def test_names_that_are_taken(name: str, command: Command) -> None:
    said = command("new-study", name)
    assert said.code == WRONG_USE
    assert "is taken" in said.err


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("_S = (a.STUDY,)", "_S = (\n    a.STUDY,\n    b.STUDY,\n)"),
        ("_S = (\n    a.STUDY,  # first\n)", "_S = (\n    a.STUDY,\n    b.STUDY,\n)"),
    ],
)
def test_the_registry_grows_by_one_line(before: str, after: str) -> None:
    head = '"""Sätze."""\nfrom precompute.studies import {}\nfrom precompute.study import Study\n{}\nX = 1\n'
    assert new_study.register("b", head.format("a", before)) == head.format("a, b", after)


def test_a_registry_that_looks_otherwise_is_left_alone() -> None:
    with pytest.raises(CloudChamberError) as refused:
        new_study.register("b", "STUDIES = {}\n")
    assert refused.value.kind == "registry_unreadable" and "b.STUDY" in refused.value.remedy


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources and the tests of the house, with a new study in them."""
    root = tmp_path_factory.mktemp("copy")
    for folder in ("app", "models", "precompute", "data"):
        skipped = shutil.ignore_patterns("__pycache__", "published", "fonts")
        shutil.copytree(ROOT / folder, root / folder, ignore=skipped)
    (root / "tests").mkdir()
    for file in ("pyproject.toml", "README.md", "requirements-models.txt", "tests/test_registry.py"):
        shutil.copy(ROOT / file, root / file)
    done = run(root, "-m", "app.cli", "new-study", SLUG)
    assert done.returncode == 0, done.stderr
    return root


def run(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python in the copy, which must not see the sources it was copied from."""
    environment = {**os.environ, "PYTHONPATH": str(root), "CLOUDCHAMBER_HOME": str(root / "home")}
    environment["CLOUDCHAMBER_DEVICE"] = "cpu"
    return subprocess.run(
        [sys.executable, *arguments], cwd=root, capture_output=True, text=True, check=False, env=environment
    )


def outcomes(root: Path) -> dict[str, str]:
    """Test -> passed or failed, of the tests of the new study."""
    done = run(
        root,
        "-m",
        "pytest",
        "tests",
        "-k",
        SLUG,
        "--ignore=tests/screenshots",
        "-rA",
        "-p",
        "no:cacheprovider",
    )
    return {
        name: word.lower() for word, name in re.findall(r"^(PASSED|FAILED) \S*::(\w+)", done.stdout, re.M)
    }


def test_the_skeleton_is_clean_and_fails_until_it_is_filled(copy: Path) -> None:
    written = [copy / place.replace("$slug", SLUG) for place in new_study.LAYERS.values()]
    assert all(path.is_file() for path in written)
    for check in (["check"], ["format", "--check"]):
        done = run(copy, "-m", "ruff", *check, *map(str, [*written, copy / "precompute" / "registry.py"]))
        assert done.returncode == 0, done.stdout
    first = outcomes(copy)
    assert {name for name, outcome in first.items() if outcome == "failed"} == {
        "test_nothing_is_left_to_fill",
        "test_it_has_screenshots",
        "test_it_has_its_row_in_the_readme",
        "test_the_method_gives_the_known_value",
    }

    fill(copy, written)
    assert set(outcomes(copy).values()) == {"passed"}

    # The filled study works from end to end: computed, stored, and shown on its page.
    done = run(copy, "-m", "app.cli", "precompute", SLUG, "--profile", "smoke", "--json")
    assert done.returncode == 0, done.stderr
    shown = run(
        copy,
        "-c",
        "from streamlit.testing.v1 import AppTest\n"
        "at = AppTest.from_file('app/main.py', default_timeout=60).run()\n"
        f"at.switch_page('pages/{SLUG}.py').run()\n"
        "assert not at.exception, at.exception\n"
        "print([title.value for title in at.title])",
    )
    assert shown.stdout == "['Mean of noise']\n", shown.stderr


def fill(root: Path, written: list[Path]) -> None:
    """Do by rule what a person does by hand."""
    for path in written:
        text = path.read_text("utf-8")
        for pattern, replacement in FILLED.get(str(path.relative_to(root)), []):
            text, count = re.subn(pattern, replacement, text)
            assert count == 1, (path, pattern)
        path.write_text(re.sub(r"\bFILL\b[-:, ]*", "filled ", text).replace('"filled ', '"'), "utf-8")
    baselines = root / "tests" / "screenshots" / "baselines"
    baselines.mkdir(parents=True)
    for view in ("light-1280", "dark-1280", "light-390", "dark-390"):
        (baselines / f"{SLUG}-default-{view}.png").touch()  # drawn by a browser, which has its own tests
    with (root / "README.md").open("a", encoding="utf-8") as readme:
        readme.write(f"\n| `{SLUG}` | the question? | [paper](https://example.org/paper) |\n")
