"""`cloudchamber verify`: repeat stored runs and compare every number with what is stored."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from data.errors import CloudChamberError

if TYPE_CHECKING:
    import pandas as pd

    from precompute.verify import RunCheck


def verify(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="RUN", help="Runs to repeat; a prefix will do.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every stored run, however long it takes.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Repeat stored runs and compare every number.

    A run is repeated from its recorded configuration and compared column by column, within the
    tolerance that the column declares. Without RUN: the quickest run of every study and subject.
    Nothing is published. Ends with exit code 1 if a run differs.
    """
    import os

    from app.commands.output import errors, print_json
    from app.commands.runs import one_run
    from app.commands.stored import quiet_libraries, ready_store
    from data.paths import store_path
    from precompute.registry import STUDIES
    from precompute.verify import verify as repeat

    with ready_store() as store:
        frame = store.runs()
    done = frame[frame["status"] == "done"]
    if names:
        chosen = [one_run(done, name) for name in names]
    else:
        chosen = [str(name) for name in (done["run_id"] if every else quickest(done))]
    if not chosen:
        raise CloudChamberError(
            "runs_missing", "The store holds no finished run.", "Run `cloudchamber precompute` first."
        )
    if not as_json:
        seconds = float(done.set_index("run_id").loc[chosen, "seconds"].sum())
        errors().print(f"{len(chosen)} runs to repeat; they took {seconds:.0f} s.", soft_wrap=True)
    quiet_libraries()
    checks = repeat(
        store_path(), chosen, STUDIES, threads=os.cpu_count() or 1, on_check=None if as_json else _print_check
    )
    if as_json:
        print_json({"ok": all(check.ok for check in checks), "runs": [plain(check) for check in checks]})
    if not all(check.ok for check in checks):
        raise typer.Exit(1)


def quickest(done: pd.DataFrame) -> list[str]:
    """The quickest of the `done` runs of every study and subject."""
    ordered = done.sort_values("seconds")
    return [str(name) for name in ordered.drop_duplicates(["study", "subject"])["run_id"]]


def plain(check: RunCheck) -> dict[str, Any]:
    """A check as plain values, with its verdicts."""
    tables = [{**asdict(table), "ok": table.ok} for table in check.tables]
    changed = {name: list(pair) for name, pair in check.versions_changed.items()}
    return {**asdict(check), "tables": tables, "versions_changed": changed, "ok": check.ok}


def _print_check(check: RunCheck) -> None:
    from rich.markup import escape

    from app.commands.output import console, duration, number

    out = console()
    mark = "[green]agrees [/]" if check.ok else "[bold red]differs[/]"
    times = f"{duration(check.seconds)}, stored {duration(check.seconds_stored)}"
    out.print(f"{mark}  {check.run_id}  {check.study} {escape(check.subject)}  ({times})", soft_wrap=True)
    if check.error:
        out.print(f"         {escape(check.error.strip().splitlines()[0])}", soft_wrap=True)
    for table in check.tables:
        worst = max((c.max_abs for c in table.columns), default=0.0)
        if table.ok:
            text = f"{table.rows} rows, largest difference {number(worst)}"
            out.print(f"         [dim]{table.name}: {text}[/]", soft_wrap=True)
            continue
        if table.missing or table.extra:
            out.print(
                f"         {table.name}: {table.missing} rows missing, {table.extra} too many", soft_wrap=True
            )
        for column in (c for c in table.columns if not c.ok):
            text = f"off by {number(column.max_abs)} at {column.where}, accepted {number(column.tolerance)}"
            out.print(f"         {table.name}.{column.name}: {escape(text)}", soft_wrap=True)
    if check.source_changed:
        out.print("         [dim]computed by other sources than the present ones[/]")
    for name, (then, now) in check.versions_changed.items():
        out.print(
            f"         [dim]{name} {escape(then) or 'absent'} then, {escape(now) or 'absent'} now[/]",
            soft_wrap=True,
        )
