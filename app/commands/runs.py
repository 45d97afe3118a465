"""`cloudchamber runs`: what was run, with which outcome, and where its numbers come from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

NARROW = 130  # columns of a terminal; below, a run's row shows what matters most

if TYPE_CHECKING:
    import pandas as pd


def runs(
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help="Show one run in full; a prefix will do.")
    ] = None,
    study: Annotated[str | None, typer.Option(help="Only runs of this study.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only runs that failed.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """The runs in the store: status, time, provenance.

    With RUN: its whole configuration, the versions it was made with, and the error if it failed.
    """
    from app.commands.output import print_json
    from app.commands.stored import chosen_studies, ready_store

    if study is not None:
        chosen_studies([study])
    with ready_store() as store:
        frame = store.runs(study)
    if run is not None:
        frame = frame[frame["run_id"] == one_run(frame, run)]
    if failed:
        frame = frame[frame["status"] == "failed"]
    rows = [_plain(row) for row in frame.to_dict("records")]
    if as_json:
        print_json({"runs": rows})
    elif run is not None:
        _print_run(rows[0])
    else:
        _print_runs(rows)


def one_run(frame: pd.DataFrame, prefix: str) -> str:
    """The id of the only run that starts with `prefix`; run_unknown otherwise."""
    from data.errors import CloudChamberError

    found = [str(run_id) for run_id in frame["run_id"] if str(run_id).startswith(prefix)]
    if len(found) == 1:
        return found[0]
    what = f"{len(found)} runs start with {prefix!r}." if found else f"There is no run {prefix!r}."
    raise CloudChamberError("run_unknown", what, "`cloudchamber runs` lists them all.", where="RUN")


def summary(config: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
    """What a run did, in a few words: the settings that differ from the defaults, but the subject."""
    words = []
    for key, value in config.items():
        if key == "subject" or (key in defaults and defaults[key] == value):
            continue
        text = str(value)
        words.append(key if value is True else f"{key}={text if len(text) <= 24 else text[:23] + '…'}")
    return " ".join(words)


def defaults_of(study: str) -> dict[str, Any]:
    """The default settings of a study's runs; none of a study that is not registered."""
    from precompute.registry import STUDIES

    if study not in STUDIES:
        return {}
    fields = STUDIES[study].config.model_fields
    return {name: field.default for name, field in fields.items() if not field.is_required()}


def _plain(row: Mapping[Any, Any]) -> dict[str, Any]:
    """A row of the runs table with its JSON columns opened and a missing error as None."""
    error = row["error"] if isinstance(row["error"], str) else None
    opened = {key: json.loads(row[key]) for key in ("config", "versions", "notices")}
    return {**row, **opened, "error": error}


def _print_runs(rows: list[dict[str, Any]]) -> None:
    from rich.markup import escape

    from app.commands.output import console, duration, print_table

    colours = {"done": "[green]done[/]", "failed": "[red]failed[/]"}
    columns: dict[str, list[str]] = {
        "run": [row["run_id"] for row in rows],
        "study": [row["study"] for row in rows],
        "subject": [row["subject"] for row in rows],
        "settings": [escape(summary(row["config"], defaults_of(row["study"]))) for row in rows],
        "profile": [row["profile"] for row in rows],
        "status": [colours[row["status"]] for row in rows],
        "time": [duration(row["seconds"]) for row in rows],
        "on": [row["device"] for row in rows],
        "started": [row["started"][:16].replace("T", " ") for row in rows],
        "source": [row["source_hash"][:8] for row in rows],
    }
    if console().width < NARROW:
        for name in ("study", "profile", "on", "started", "source"):
            del columns[name]
    names = list(columns)
    print_table(
        names,
        list(zip(*columns.values(), strict=True)),
        right=(names.index("time"),),
        whole=(0, names.index("status"), names.index("time")),
    )
    done = sum(row["status"] == "done" for row in rows)
    said = f"\n{done} done, {len(rows) - done} failed. `cloudchamber runs RUN` shows one in full."
    console().print(said, style="dim")


def _print_run(row: dict[str, Any]) -> None:
    from rich.markup import escape

    from app.commands.output import console, duration

    out = console()
    for key, value in row.items():
        if key == "error":
            continue
        if isinstance(value, dict):
            out.print(f"[bold]{key}[/]")
            for name, item in value.items():
                out.print(f"  {name:<22}{escape(str(item))}", soft_wrap=True)
        else:
            text = duration(value) if key == "seconds" else str(value)
            out.print(f"[bold]{key:<24}[/]{escape(text)}", soft_wrap=True)
    if row["error"]:
        out.print("[bold red]error[/]")
        out.print(escape(row["error"]), soft_wrap=True)
