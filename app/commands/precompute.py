"""`cloudchamber precompute`: run what the studies plan, and publish it to the store."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.commands.outcome import CANCELLED, DONE, LIMIT, MISSING, OUR_FAULT
from data.errors import CloudChamberError

if TYPE_CHECKING:
    from precompute.events import Summary
    from precompute.study import Profile

PROFILES = ("smoke", "laptop", "full")


def precompute(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="STUDY", help="Studies to run; all by default.")
    ] = None,
    profile: Annotated[
        str,
        typer.Option(metavar="|".join(PROFILES), help="How much: seconds, minutes, or what is published."),
    ] = "laptop",
    jobs: Annotated[
        int | None, typer.Option(help="Runs at a time; by default what cores and memory allow.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="SUBJECT", help="Only runs of this subject.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Compute runs again that are done already.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for another precompute instead of refusing.")
    ] = False,
    scheduler: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Run on a Dask cluster: tcp://host:8786.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object on standard output at the end.")
    ] = False,
) -> None:
    """Compute what the studies plan, and publish it.

    Done runs are skipped, failed ones tried again. Ctrl-C ends it cleanly: finished runs are kept.
    A running app shows the new runs at once.
    """
    from app.commands.output import console, print_json
    from app.commands.stored import quiet_libraries
    from data.paths import staging_dir, store_path
    from precompute.engine import run_plan, select_studies
    from precompute.registry import STUDIES
    from precompute.report import Reporter, print_summary

    chosen, size = select_studies(STUDIES, names or []), known_profile(profile)
    quiet_libraries()
    with Reporter() as reporter:
        summary = run_plan(
            chosen,
            size,
            store_path=store_path(),
            staging=staging_dir(),
            jobs=jobs,
            only=tuple(only or ()),
            force=force,
            scheduler=scheduler,
            wait=wait,
            on_event=reporter,
        )
    if as_json:
        print_json(plain(summary))
    else:
        print_summary(summary, console())
    if code := ending(summary):
        raise typer.Exit(code)


def known_profile(name: str) -> Profile:
    """The profile called `name`; unknown_profile lists the valid ones."""
    from precompute.study import Profile

    if name not in PROFILES:
        raise CloudChamberError(
            "unknown_profile",
            f"There is no profile {name!r}.",
            f"Choose from: {', '.join(PROFILES)}.",
            where="--profile",
        )
    return Profile(name)


def plain(summary: Summary) -> dict[str, Any]:
    """A summary as plain values."""
    failures = [{**asdict(run), "reason": reason} for run, reason in summary.failures]
    return {**asdict(summary), "failures": failures}


def ending(summary: Summary) -> int:
    """The exit code: 0 when all is done, else that of the failures, the gravest first."""
    if summary.interrupted:
        return CANCELLED
    codes = {_failure_code(reason) for _, reason in summary.failures}
    return next((code for code in (OUR_FAULT, LIMIT, MISSING) if code in codes), DONE)


def _failure_code(reason: str) -> int:
    """Of one failed run, from the line that says why."""
    text = reason.lower()
    if "not installed" in text or "no module named" in text:
        return MISSING
    if "memory" in text:
        return LIMIT
    return OUR_FAULT
