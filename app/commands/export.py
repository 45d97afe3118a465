"""`cloudchamber export`: write stored runs into data/published, for those who ship them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def export(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="RUN", help="Runs to ship; all planned ones by default.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where to write; data/published by default.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Write stored runs as the traces that ship.

    They take the place of those in data/published. By default: the done runs that the full plans of
    the registered studies hold, at their present version. What a visitor brought is never among them.
    """
    from app.commands.output import console, print_json, size
    from app.commands.runs import one_run
    from data.paths import published_dir, store_path
    from data.shipped import export_published
    from data.store import open_store

    path, folder = store_path(), to or published_dir()
    with open_store(path) as store:
        frame = store.runs()
    chosen = (
        [one_run(frame, name) for name in names]
        if names
        else planned(set(frame["run_id"][frame["status"] == "done"]))
    )
    written = export_published(path, folder, chosen)
    total = sum(file.stat().st_size for file in written)
    if as_json:
        print_json({"runs": chosen, "files": [str(file) for file in written], "bytes": total})
    else:
        console().print(
            f"{len(chosen)} runs in {len(written)} files, {size(total)}: {folder}",
            markup=False,
            soft_wrap=True,
        )


def planned(done: set[str]) -> list[str]:
    """Those of the `done` runs that the full plans of the registered studies hold."""
    from data.runs import run_id
    from precompute.registry import STUDIES
    from precompute.study import Profile

    ids = [
        run_id(study.slug, study.version, config.model_dump(mode="json"))
        for study in STUDIES.values()
        for config in study.plan(Profile.full)
    ]
    return [name for name in ids if name in done]
