"""`cloudchamber doctor`: is everything there that is needed, and if not, what to do."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from data.errors import CloudChamberError

OK, NOTE, BROKEN = "ok", "note", "broken"
SETUP = "Run `make setup`."
ROOT = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True)
class Check:
    """One thing looked at: what it is, how it stands, and the remedy if it is not well."""

    name: str
    state: str
    detail: str
    remedy: str = ""


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Is everything there that is needed?

    Looks at Python and its packages, the device, the models, the store and its sources, and the
    browser. Ends with exit code 1 if something is broken; a note is nothing broken.
    """
    from app.commands.output import print_json

    checks = [check for examine in EXAMINATIONS for check in _safely(examine)]
    broken = [check for check in checks if check.state == BROKEN]
    if as_json:
        print_json({"ok": not broken, "checks": [asdict(check) for check in checks]})
    else:
        _print(checks)
    if broken:
        raise typer.Exit(1)


def _safely(examine: Callable[[], Iterable[Check]]) -> list[Check]:
    """The checks of one examination; an error in it is a finding of its own."""
    try:
        return list(examine())
    except CloudChamberError as error:
        place = f" ({error.where})" if error.where else ""
        return [Check(examine.__name__, BROKEN, f"{error.message}{place}", error.remedy)]


def environment() -> Iterable[Check]:
    """Python, the environment's stamp, and every package against its pinned version."""
    from app.environment import installed_extras

    yield Check("python", OK, f"{sys.version.split()[0]} in {sys.prefix}")
    venv = ROOT / ".venv"
    if Path(sys.prefix).resolve() != venv.resolve():
        yield Check("environment", NOTE, "This Python is not the one that `make setup` made.", SETUP)
    elif (extras := installed_extras(venv)) is None:
        yield Check("environment", NOTE, "The lists of packages changed since the last setup.", SETUP)
    else:
        yield Check("environment", OK, f"complete with {', '.join(sorted(extras)) or 'no extras'}")
    yield from packages()


def pinned(root: Path = ROOT) -> dict[str, str]:
    """Package -> version, from constraints.txt and requirements-models.txt."""
    lines = [
        line
        for name in ("constraints.txt", "requirements-models.txt")
        for line in (root / name).read_text("utf-8").splitlines()
    ]
    pairs = [line.partition("==")[::2] for line in lines if "==" in line and not line.startswith("#")]
    return dict(pairs)


def packages() -> Iterable[Check]:
    """Installed versions against the pinned ones; missing ones that every command needs are broken."""
    from importlib.metadata import PackageNotFoundError, requires, version

    exact = pinned()
    missing: list[str] = []
    other: list[str] = []
    for name, wanted in exact.items():
        try:
            have = version(name).partition("+")[0]
        except PackageNotFoundError:
            missing.append(name)
        else:
            if have != wanted:
                other.append(f"{name} {have} (tested: {wanted})")
    try:
        always = {_name(line) for line in requires("cloudchamber") or () if "extra ==" not in line}
    except PackageNotFoundError:
        yield Check("packages", BROKEN, "cloudchamber itself is not installed.", SETUP)
        return
    if absent := sorted(always & {_name(name) for name in missing}):
        yield Check("packages", BROKEN, f"not installed: {', '.join(absent)}", SETUP)
    elif other:
        yield Check(
            "packages",
            NOTE,
            f"other versions than tested: {', '.join(other)}",
            "Run `make setup` if in doubt.",
        )
    else:
        have_all = f"{len(exact) - len(missing)} as pinned"
        yield Check(
            "packages", OK, have_all + (f", {len(missing)} of other extras absent" if missing else "")
        )


def _name(requirement: str) -> str:
    """The normalised name at the start of a requirement."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    return re.sub(r"[-_.]+", "-", found.group() if found else "").lower()


def device() -> Iterable[Check]:
    """Where runs compute, and why there."""
    from importlib.util import find_spec

    if find_spec("torch") is None:
        yield Check("device", NOTE, "torch is not installed: traces can be browsed, not computed.", SETUP)
        return
    from precompute.provenance import choose_device

    chosen = choose_device()
    yield Check("device", OK, f"{chosen.reason}; {os.cpu_count()} cores")


def models() -> Iterable[Check]:
    """Whether every subject can be loaded here."""
    from importlib.metadata import PackageNotFoundError, version

    from precompute.registry import STUDIES

    exact = pinned()
    for study in STUDIES.values():
        for subject in study.subjects.values():
            for package in subject.packages:
                name = f"subject {subject.slug}"
                try:
                    have = version(package)
                except PackageNotFoundError:
                    yield Check(name, NOTE, f"{package} is not installed: only shipped traces.", SETUP)
                    continue
                if have != exact.get(package, have):
                    yield Check(name, NOTE, f"{package} {have}, tested with {exact[package]}", SETUP)
                else:
                    yield Check(name, OK, f"{package} {have}, {subject.licence}")


def store() -> Iterable[Check]:
    """The store: readable, of this version, seeded; and its folder: writable, with room."""
    from app.commands.output import size
    from data.paths import home, store_path
    from data.store import open_store

    folder, path = home(), store_path()
    free = shutil.disk_usage(folder).free
    if not os.access(folder, os.W_OK):
        yield Check(
            "state", BROKEN, f"{folder} cannot be written.", "Set CLOUDCHAMBER_HOME to a folder that can be."
        )
    elif free < 500e6:
        yield Check(
            "state", NOTE, f"{folder}: only {size(free)} free", "Free some space before a precompute."
        )
    else:
        yield Check("state", OK, f"{folder}, {size(free)} free")
    if not path.exists():
        yield Check(
            "store", NOTE, "There is no store yet.", "`cloudchamber serve` makes it from the shipped traces."
        )
        return
    with open_store(path) as opened:
        frame = opened.runs()
    failed = int((frame["status"] == "failed").sum())
    detail = f"{size(path.stat().st_size)}, {len(frame) - failed} runs done, {failed} failed"
    if failed:
        yield Check(
            "store",
            NOTE,
            detail,
            "`cloudchamber runs --failed` says why; `cloudchamber precompute` tries again.",
        )
    else:
        yield Check("store", OK, detail)
    yield from drift(frame)


def drift(frame: object) -> Iterable[Check]:
    """Stored runs whose sources have changed since: their numbers may no longer be what the code gives."""
    import pandas as pd

    from data.shelf import is_brought
    from precompute.provenance import source_hash
    from precompute.registry import STUDIES

    assert isinstance(frame, pd.DataFrame)
    done = frame[frame["status"] == "done"]
    for slug, runs in done.groupby("study"):
        if slug not in STUDIES:
            yield Check(
                f"source {slug}",
                NOTE,
                f"{len(runs)} runs of a study that is not registered",
                "Nothing to do.",
            )
            continue
        study = STUDIES[str(slug)]
        runs = runs[~runs["subject"].map(is_brought)]  # theirs cannot be repeated here
        drifted = int((runs["source_hash"] != source_hash(study.slug, study.run)).sum())
        old = int((runs["study_version"] != study.version).sum())
        if drifted or old:
            said = f"{drifted} of {len(runs)} runs were made by other sources"
            said += f", {old} by another version" if old else ""
            remedy = f"`cloudchamber verify` compares, `cloudchamber precompute {slug} --force` repeats."
            yield Check(f"source {slug}", NOTE, said, remedy)
        else:
            yield Check(f"source {slug}", OK, f"{len(runs)} runs made by the present sources")


def browser() -> Iterable[Check]:
    """The browser that the tests would use."""
    from app.commands.browser import find_browser, version

    found = find_browser()
    if found is None:
        yield Check(
            "browser",
            NOTE,
            "No Chrome or Chromium; only the browser tests need one.",
            "`make test` installs one.",
        )
    else:
        yield Check("browser", OK, f"{version(found)} ({found})")


EXAMINATIONS = (environment, device, models, store, browser)


def _print(checks: list[Check]) -> None:
    from rich.markup import escape

    from app.commands.output import console

    marks = {OK: "[green]ok    [/]", NOTE: "[yellow]note  [/]", BROKEN: "[bold red]broken[/]"}
    out = console()
    for check in checks:
        out.print(f"{marks[check.state]}  {escape(check.name):<32}{escape(check.detail)}", soft_wrap=True)
        if check.remedy:
            out.print(f"        {'':<32}{escape(check.remedy)}", style="dim", soft_wrap=True)
    broken, notes = (sum(check.state == state for check in checks) for state in (BROKEN, NOTE))
    out.print(f"\n{broken} broken, {notes} notes, {len(checks) - broken - notes} ok.")
