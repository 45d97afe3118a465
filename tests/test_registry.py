"""Every registered study is complete: a file in each layer, described, drawn with words, listed, pictured."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from data.runs import run_id
from precompute.registry import STUDIES
from precompute.study import Profile, Study

ROOT = Path(__file__).resolve().parent.parent
PLACEHOLDER = "FILL"

each_study = pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES.keys())


def files_of(study: Study) -> list[Path]:
    """The files that bear the study's name, in every layer."""
    layers = ("models", "data/records", "precompute/studies", "precompute/runs", "app", "tests")
    return sorted(path for layer in layers for path in (ROOT / layer).rglob(f"*{study.slug}*.py"))


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), str(path))


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def calls(tree: ast.AST, name: str) -> list[ast.Call]:
    """Every call of a function or class called `name`."""
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
    ]


def test_every_declared_study_is_registered() -> None:
    files = (ROOT / "precompute" / "studies").glob("*.py")
    declared = {path.stem for path in files if "STUDY = " in path.read_text("utf-8")}
    assert declared == set(STUDIES)


@each_study
def test_nothing_is_left_to_fill(study: Study) -> None:
    left = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in files_of(study)
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if re.search(rf"\b{PLACEHOLDER}\b", line)
    ]
    assert not left, "\n".join(["still to fill:", *left])


@each_study
def test_it_has_a_method_that_its_run_uses(study: Study) -> None:
    module, function = study.run.split(":")
    path = ROOT / (module.replace(".", "/") + ".py")
    assert path.is_file(), f"{study.run} has no file"
    used = [name for name in imports(path) if name.split(".")[0] == "models"]
    assert used, f"{path.relative_to(ROOT)} imports nothing from models: the method lives there"
    defined = {n.name: n for n in ast.walk(parsed(path)) if isinstance(n, ast.FunctionDef)}
    assert function in defined
    assert [a.arg for a in defined[function].args.args] == ["config", "recorder", "device"]


@each_study
def test_it_has_a_page(study: Study) -> None:
    page = ROOT / "app" / "pages" / f"{study.slug}.py"
    assert page.is_file()
    lines = page.read_text("utf-8").count("\n")
    assert lines <= 250, f"a page is layout: {lines} lines"


@each_study
def test_its_figures_have_alt_text_and_a_reading(study: Study) -> None:
    folder = ROOT / "app" / "figures"  # files are named by the slug or by its first word
    files = sorted({*folder.glob(f"{study.slug}*.py"), *folder.glob(f"{study.slug.split('_')[0]}_*.py")})
    made = [(path, call) for path in files for call in calls(parsed(path), "Figure")]
    assert made, f"no Figure is made in app/figures/{study.slug}.py"
    for path, call in made:
        words = dict(zip(("fig", "alt", "reading"), call.args, strict=False))
        words |= {str(k.arg): k.value for k in call.keywords}
        place = f"{path.relative_to(ROOT)}:{call.lineno}"
        assert {"alt", "reading"} <= set(words), f"{place}: a figure is handed over with its words"
        alt = words["alt"]
        assert not (isinstance(alt, ast.Constant) and not str(alt.value).strip()), f"{place}: no alt text"


@each_study
def test_every_table_and_column_is_described(study: Study) -> None:
    assert study.tables
    for name, table in study.tables.items():
        assert name == table.name
        assert table.meaning.strip().endswith("."), f"{name}: its meaning is a sentence"
        for column in table.columns:
            assert len(column.meaning.split()) >= 2, f"{name}.{column.name} is not described"
            numeric = any(word in str(column.type) for word in ("int", "float", "double"))
            assert column.unit or not numeric, f"{name}.{column.name} is a number without a unit"


@each_study
def test_its_papers_and_claims_belong_together(study: Study) -> None:
    keys = [paper.key for paper in study.papers]
    assert len(set(keys)) == len(keys) > 0
    assert all(paper.url.startswith("https://") and 1900 < paper.year < 2100 for paper in study.papers)
    slugs = [claim.slug for claim in study.claims]
    assert len(set(slugs)) == len(slugs) > 0
    for claim in study.claims:
        assert claim.paper in keys, f"{claim.slug}: no paper {claim.paper!r}"
        assert claim.text.endswith("."), claim.slug
        assert claim.reported.strip() and claim.criterion.strip(), claim.slug


@each_study
def test_its_plan_is_sound(study: Study) -> None:
    ids: dict[Profile, set[str]] = {}
    for profile in Profile:
        configs = [config.model_dump(mode="json") for config in study.plan(profile)]
        assert configs, f"{profile} plans nothing"
        assert {config["subject"] for config in configs} <= set(study.subjects)
        ids[profile] = {run_id(study.slug, study.version, config) for config in configs}
        assert len(ids[profile]) == len(configs), f"{profile} plans a run twice"
        for config in configs:  # what is stored can be read back
            assert study.config.model_validate(config).model_dump(mode="json") == config
    assert ids[Profile.smoke] <= ids[Profile.laptop] <= ids[Profile.full]


@each_study
def test_its_subjects_can_be_installed(study: Study) -> None:
    lines = (ROOT / "requirements-models.txt").read_text("utf-8").splitlines()
    pinned = {line.split("==")[0] for line in lines if "==" in line}
    for subject in study.subjects.values():
        assert subject.licence and subject.source and subject.description.endswith(".")
        assert set(subject.packages) <= pinned, f"{subject.slug}: not in requirements-models.txt"


@each_study
def test_it_has_screenshots(study: Study) -> None:
    """As the page opens: light and dark, wide and narrow; named by the slug or its first word."""
    folder = ROOT / "tests" / "screenshots" / "baselines"
    names = (study.slug, study.slug.split("_")[0])
    for view in ("light-1280", "dark-1280", "light-390", "dark-390"):
        found = [name for name in names if (folder / f"{name}-default-{view}.png").is_file()]
        assert found, f"no {study.slug}-default-{view}.png; pytest --update-screenshots draws it"


@each_study
def test_it_has_its_row_in_the_readme(study: Study) -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    row = re.search(rf"^\|.*`{study.slug}`.*\|$", readme, re.M)
    assert row, f"README.md has no table row with `{study.slug}`"
    assert study.question in row.group(), "the row gives the study's question"
    for paper in study.papers:
        assert paper.url in row.group(), f"the row links {paper.url}"
