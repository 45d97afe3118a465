"""`cloudchamber claims`: the ledger. What the papers say, and what our traces say of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from data.store import Store
    from precompute.study import Claim, ClaimResult, Study

_STYLES = {
    "reproduced": "green",
    "not reproduced": "red",
    "true by construction": "cyan",
    "not testable at this scale": "dim",
}


def claims(
    names: Annotated[list[str] | None, typer.Argument(metavar="STUDY", help="Only these studies.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """The ledger: every claim of the papers, with its verdict.

    Verdicts are measured now, from the stored traces. A claim that does not hold is a result, so the
    exit code is 0 then too.
    """
    from app.commands.output import print_json
    from app.commands.stored import chosen_studies, ready_store

    chosen = chosen_studies(names or [])
    with ready_store() as store:
        entries = [entry for study in chosen for entry in ledger(study, store)]
    counts = {verdict: sum(e["verdict"] == verdict for e in entries) for verdict in _STYLES}
    if as_json:
        print_json({"claims": entries, "counts": counts})
    else:
        _print_ledger(entries, counts)


def ledger(study: Study, store: Store) -> list[dict[str, Any]]:
    """Every claim of a study with what the store says of it, as plain values."""
    entries = []
    for claim in study.claims:
        result = measured(claim, store)
        entries.append(
            {
                "study": study.slug,
                "claim": claim.slug,
                "text": claim.text,
                "paper": claim.paper,
                "reported": claim.reported,
                "criterion": claim.criterion,
                "verdict": result.verdict.value,
                "value": result.value,
                "interval": list(result.interval) if result.interval else None,
                "unit": result.unit,
                "detail": result.detail,
                "runs": list(result.runs),
            }
        )
    return entries


def measured(claim: Claim, store: Store) -> ClaimResult:
    """What the store says of a claim; one that it cannot measure is untested, with the reason."""
    from data.errors import CloudChamberError
    from precompute.study import ClaimResult, Verdict

    try:
        return claim.measure(store)
    except CloudChamberError as error:
        return ClaimResult(Verdict.untestable, None, "", str(error))


def _print_ledger(entries: list[dict[str, Any]], counts: dict[str, int]) -> None:
    from rich.markup import escape

    from app.commands.output import console, number

    out = console()
    for entry in entries:
        style = _STYLES[entry["verdict"]]
        out.print(f"[{style}]{entry['verdict']}[/]  [bold]{escape(entry['text'])}[/]")
        if entry["value"] is not None:
            ends = entry["interval"]
            interval = f" [{number(ends[0])} to {number(ends[1])}]" if ends else ""
            ours = f"{number(entry['value'])}{interval} {entry['unit']}"
            out.print(f"  ours   {escape(ours)}", soft_wrap=True)
        out.print(f"         {escape(entry['detail'])}", soft_wrap=True)
        out.print(f"  paper  {escape(entry['reported'])} ({entry['paper']})", style="dim", soft_wrap=True)
        out.print(f"  holds if {escape(entry['criterion'])}\n", style="dim", soft_wrap=True)
    out.print(", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count) or "No claims.")
