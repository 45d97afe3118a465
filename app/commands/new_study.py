"""`cloudchamber new-study NAME`: the skeleton of a study, one small file in each layer."""

from __future__ import annotations

import ast
import keyword
import re
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from data.errors import CloudChamberError

ROOT = Path(__file__).resolve().parent.parent.parent
TEMPLATES = ROOT / "app" / "scaffold"
REGISTRY = Path("precompute") / "registry.py"
LONGEST = 30
NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")

# Template -> where its file goes, in the order in which one fills them.
LAYERS = {
    "models.py.txt": "models/$slug.py",
    "records.py.txt": "data/records/$slug.py",
    "study.py.txt": "precompute/studies/$slug.py",
    "run.py.txt": "precompute/runs/$slug.py",
    "figures.py.txt": "app/figures/$slug.py",
    "stills.py.txt": "app/figures/stills/$slug.py",
    "page.py.txt": "app/pages/$slug.py",
    "test.py.txt": "tests/studies/test_$slug.py",
    "screenshots.py.txt": "tests/screenshots/test_$slug.py",
}


def new_study(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Lower case with underscores, as in attention_sinks.")
    ],
) -> None:
    """Write the skeleton of a study.

    That is a small file in each layer, and its line in the registry. Its tests fail until every FILL
    is filled, and say what is left.
    """
    from app.commands.output import console

    written = write_skeleton(name, ROOT)
    out = console()
    for path in written:
        out.print(f"  {path.relative_to(ROOT)}", markup=False)
    out.print(
        f"\nFill every FILL in these files, top to bottom; `pytest tests -k {name}` says what is left.",
        markup=False,
    )


def write_skeleton(name: str, root: Path) -> list[Path]:
    """Write the files of a new study under `root`; returns them, the registry last.

    Raises CloudChamberError: name_invalid, or name_taken when one of the files exists. Nothing is
    written then.
    """
    if not NAME.fullmatch(name) or keyword.iskeyword(name) or len(name) > LONGEST:
        raise CloudChamberError(
            "name_invalid",
            f"{name!r} cannot name a study.",
            f"Use lower-case words joined by underscores, at most {LONGEST} letters: entropy_window.",
            where="NAME",
        )
    values = {
        "slug": name,
        "title": name.replace("_", " ").capitalize(),
        "class_name": "".join(word.capitalize() for word in name.split("_")),
    }
    targets = {template: root / Template(place).substitute(values) for template, place in LAYERS.items()}
    for path in targets.values():
        if path.exists():
            raise CloudChamberError(
                "name_taken", f"{name!r} is taken.", "Choose another name.", where=str(path.relative_to(root))
            )
    registry = root / REGISTRY
    registered = register(name, registry.read_text("utf-8"))
    for template, path in targets.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(Template((TEMPLATES / template).read_text("utf-8")).substitute(values), "utf-8")
    registry.write_text(registered, "utf-8")
    return [*targets.values(), registry]


def register(name: str, source: str) -> str:
    """The registry's source with the study's import and line added, last in order.

    Raises CloudChamberError("registry_unreadable") when it has no import or tuple of studies.
    """
    tree = ast.parse(source)
    imports = [n for n in tree.body if isinstance(n, ast.ImportFrom) and n.module == "precompute.studies"]
    tuples = [
        n for n in ast.walk(tree) if isinstance(n, ast.Tuple) and n.elts and all(map(_is_study, n.elts))
    ]
    if len(imports) != 1 or len(tuples) != 1:
        raise CloudChamberError(
            "registry_unreadable",
            "The registry does not look as expected.",
            f"Add `from precompute.studies import {name}` and `{name}.STUDY` to it by hand.",
            where=REGISTRY.as_posix(),
        )
    studies = [ast.unparse(element) for element in tuples[0].elts] + [f"{name}.STUDY"]
    names = sorted({alias.name for alias in imports[0].names} | {name})
    line = f"from precompute.studies import {', '.join(names)}"
    if len(line) > 110:
        line = "from precompute.studies import (\n" + "".join(f"    {word},\n" for word in names) + ")"
    listed = "(\n" + "".join(f"    {study},\n" for study in studies) + ")"
    # From the end to the start, so that the places found first stay right.
    return _replaced(_replaced(source, tuples[0], listed), imports[0], line)


def _is_study(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "STUDY"


def _replaced(source: str, node: ast.expr | ast.stmt, text: str) -> str:
    """`source` with the code of `node` replaced by `text`."""
    lines = source.splitlines(keepends=True)
    assert node.end_lineno is not None
    # Columns count bytes of UTF-8.
    before = "".join(lines[: node.lineno - 1]) + lines[node.lineno - 1].encode()[: node.col_offset].decode()
    after = lines[node.end_lineno - 1].encode()[node.end_col_offset :].decode() + "".join(
        lines[node.end_lineno :]
    )
    return before + text + after
