"""`cloudchamber studies`: what exists, on which papers it stands, and what it records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from precompute.study import Study


def studies(
    names: Annotated[list[str] | None, typer.Argument(metavar="STUDY", help="Show these in full.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """What exists: studies, their papers and subjects.

    With STUDY also every table and column that it records, with unit and meaning.
    """
    from app.commands.output import print_json
    from app.commands.stored import chosen_studies

    chosen = chosen_studies(names or [])
    if as_json:
        print_json({"studies": [describe(study) for study in chosen]})
    elif names:
        for study in chosen:
            _print_study(study)
    else:
        _print_overview(chosen)


def describe(study: Study) -> dict[str, Any]:
    """A study as plain values."""
    from precompute.study import Profile

    return {
        "study": study.slug,
        "title": study.title,
        "question": study.question,
        "version": study.version,
        "papers": [
            {
                "key": p.key,
                "title": p.title,
                "authors": p.authors,
                "venue": p.venue,
                "year": p.year,
                "url": p.url,
            }
            for p in study.papers
        ],
        "subjects": [
            {
                "subject": s.slug,
                "title": s.title,
                "kind": s.kind,
                "description": s.description,
                "source": s.source,
                "licence": s.licence,
                "packages": list(s.packages),
            }
            for s in study.subjects.values()
        ],
        "runs": {profile.value: len(study.plan(profile)) for profile in Profile},
        "claims": [claim.slug for claim in study.claims],
        "tables": [
            {
                "table": t.name,
                "meaning": t.meaning,
                "key": ["run_id", *t.key],
                "columns": [
                    {"column": c.name, "type": str(c.type), "unit": c.unit, "meaning": c.meaning}
                    for c in t.columns
                ],
            }
            for t in study.tables.values()
        ],
    }


def _print_overview(chosen: list[Study]) -> None:
    from app.commands.output import console, print_table
    from precompute.study import Profile

    rows = [
        (
            study.slug,
            study.question,
            ", ".join(study.subjects),
            " / ".join(str(len(study.plan(profile))) for profile in Profile),
            str(len(study.claims)),
        )
        for study in chosen
    ]
    print_table(
        ("study", "question", "subjects", "runs smoke / laptop / full", "claims"),
        rows,
        right=(4,),
        whole=(0,),
    )
    console().print(
        "\n`cloudchamber studies STUDY` shows papers, subjects and every recorded column.", style="dim"
    )


def _print_study(study: Study) -> None:
    from rich.markup import escape

    from app.commands.output import console, print_table

    out = console()
    out.print(f"[bold]{escape(study.title)}[/] ({study.slug}, version {study.version})")
    out.print(f"{escape(study.question)}\n{escape(study.summary)}\n")
    out.print("[bold]Papers[/]")
    for paper in study.papers:
        out.print(escape(f"  {paper.authors}: {paper.title}. {paper.venue} {paper.year}. {paper.url}"))
    out.print("\n[bold]Subjects[/]")
    print_table(
        ("subject", "what it is", "from", "licence"),
        [(s.slug, s.description, s.source, s.licence) for s in study.subjects.values()],
    )
    for table in study.tables.values():
        out.print(f"\n[bold]{table.name}[/]  {escape(table.meaning)}")
        print_table(
            ("column", "type", "unit", "meaning"),
            [(c.name, str(c.type), c.unit, c.meaning) for c in table.columns],
        )
    out.print()
