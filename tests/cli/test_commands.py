"""Every command on stores with known content: what it says, on which stream, and its exit code."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import duckdb
import pytest

from app.commands import doctor, outcome, output
from precompute.registry import STUDIES
from tests.app.small_store import SUBJECT, run_row
from tests.cli.conftest import Command

ROOT = Path(__file__).resolve().parents[2]
DONE, FAILED = run_row().run_id, run_row("code").run_id


def cloudchamber(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command line as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "app.cli", *arguments],
        cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, **environment},
    )  # fmt: skip


# Help and speed.


def test_help_lists_every_command_and_starts_at_once() -> None:
    cloudchamber("--help")  # the first start may have to compile
    started = time.perf_counter()
    done = cloudchamber("--help")
    took = time.perf_counter() - started
    assert done.returncode == 0
    for name in (
        "serve",
        "studies",
        "claims",
        "runs",
        "precompute",
        "verify",
        "doctor",
        "new-study",
        "export",
    ):
        assert name in done.stdout
    assert took < 3.0, f"{took:.2f} s: a heavy import has crept in"  # alone 0.25 s; tests share the machine


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from app import cli; cli.run(['--help']); "
        "heavy = {'pyarrow', 'pandas', 'duckdb', 'torch', 'streamlit', 'plotly', 'numpy', 'pydantic'}; "
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize(
    "name",
    [
        *(
            "serve",
            "studies",
            "claims",
            "runs",
            "precompute",
            "analyze",
            "verify",
            "doctor",
            "new-study",
            "export",
        )
    ],
)
def test_every_command_has_help_with_examples(name: str, command: Command) -> None:
    said = command(name, "--help")
    assert said.code == 0
    assert f"$ cloudchamber {name}" in said.out


def test_nothing_at_all_is_wrong_use_and_shows_the_help(command: Command) -> None:
    said = command()
    assert said.code == outcome.WRONG_USE
    assert "Usage: cloudchamber" in said.out


def test_version(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: {"cloudchamber": "9.8.7"}[name])
    said = command("--version")
    assert (said.code, said.out) == (0, "cloudchamber 9.8.7\n")


# Looking.


def test_studies_lists_them(command: Command) -> None:
    said = command("studies")
    assert said.code == 0
    for study in STUDIES.values():
        assert study.slug in said.out and study.question in said.out


def test_studies_json_has_every_paper_subject_and_column(command: Command) -> None:
    found = {entry["study"]: entry for entry in command("studies", "--json").json["studies"]}
    assert list(found) == list(STUDIES)
    for slug, study in STUDIES.items():
        entry = found[slug]
        assert [p["url"] for p in entry["papers"]] == [p.url for p in study.papers]
        assert [s["subject"] for s in entry["subjects"]] == list(study.subjects)
        columns = {t["table"]: [c["column"] for c in t["columns"]] for t in entry["tables"]}
        assert columns == {name: [c.name for c in t.columns] for name, t in study.tables.items()}
        assert entry["runs"]["smoke"] <= entry["runs"]["laptop"] <= entry["runs"]["full"]


def test_one_study_in_full_names_every_column(command: Command) -> None:
    study = STUDIES["attention_sinks"]
    said = command("studies", study.slug)
    for table in study.tables.values():
        for column in table.columns:
            assert column.name in said.out
    for paper in study.papers:
        assert paper.url in said.out


def test_runs_shows_done_and_failed(command: Command, filled: Path) -> None:
    said = command("runs")
    assert said.code == 0
    assert DONE in said.out and FAILED in said.out
    assert "1 min 23 s" in said.out  # 83 s
    assert "1 done, 1 failed" in said.out


def test_runs_json_opens_config_and_versions(command: Command, filled: Path) -> None:
    rows = {row["run_id"]: row for row in command("runs", "--json").json["runs"]}
    assert set(rows) == {DONE, FAILED}
    assert rows[DONE]["config"]["text"] == "kjv"
    assert rows[DONE]["versions"] == {"python": "3.11.2", "torch": "2.13.0"}
    assert (rows[DONE]["status"], rows[DONE]["error"], rows[DONE]["seconds"]) == ("done", None, 83.0)
    assert rows[FAILED]["error"].startswith("ValueError: no [bold]code[/] here")


def test_runs_can_be_narrowed(command: Command, filled: Path) -> None:
    assert [r["run_id"] for r in command("runs", "--failed", "--json").json["runs"]] == [FAILED]
    assert len(command("runs", "--study", "attention_sinks", "--json").json["runs"]) == 2
    assert [r["run_id"] for r in command("runs", DONE[:6], "--json").json["runs"]] == [DONE]


def test_one_run_in_full_shows_its_error_as_it_is(command: Command, filled: Path) -> None:
    said = command("runs", FAILED)
    assert said.code == 0
    assert "ValueError: no [bold]code[/] here" in said.out  # markup in a traceback stays text


def test_claims_are_measured_from_the_store(command: Command, filled: Path) -> None:
    said = command("claims", "--json")
    assert said.code == 0
    entries = {entry["claim"]: entry for entry in said.json["claims"]}
    assert set(entries) == {claim.slug for study in STUDIES.values() for claim in study.claims}
    # 26 of the 30 layers of the small store sink, in every chunk.
    most = entries["most-heads-sink"]
    assert (most["verdict"], most["value"]) == ("reproduced", pytest.approx(26 / 30))
    assert entries["four-kept-restore"]["verdict"] == "not testable at this scale"
    assert sum(said.json["counts"].values()) == len(entries)


def test_claims_in_words(command: Command, filled: Path) -> None:
    said = command("claims", "attention_sinks")
    assert said.code == 0
    for claim in STUDIES["attention_sinks"].claims:
        assert claim.text in said.out and claim.criterion in said.out


def test_an_empty_store_is_no_error_for_runs(command: Command, home: Path) -> None:
    from data.publish import publish
    from data.records.attention_sinks import TABLES
    from tests.app.small_store import stage

    path = home / "traces.duckdb"
    publish(path, [stage(home / "x", run_row(status="failed", error="no"), {})], TABLES)
    assert command("runs", "--study", "attention_sinks", "--json").code == 0
    refused = command("verify", "--json")
    assert (refused.code, refused.json["error"]["kind"]) == (outcome.REFUSED, "runs_missing")


# Bad input: one sentence with the remedy, the right code, and JSON where it is asked for.

WRONG = [
    (("studies", "nope"), outcome.WRONG_USE, "unknown_study", "attention_sinks"),
    (("claims", "nope"), outcome.WRONG_USE, "unknown_study", "attention_sinks"),
    (("runs", "--study", "nope"), outcome.WRONG_USE, "unknown_study", "attention_sinks"),
    (("runs", "ffffffffffffffff"), outcome.WRONG_USE, "run_unknown", "cloudchamber runs"),
    (("runs", ""), outcome.WRONG_USE, "run_unknown", "cloudchamber runs"),
    (("verify", "ffffffffffffffff"), outcome.WRONG_USE, "run_unknown", "cloudchamber runs"),
    (("verify", FAILED), outcome.WRONG_USE, "run_unknown", "cloudchamber runs"),
    (("export", "ffffffffffffffff"), outcome.WRONG_USE, "run_unknown", "cloudchamber runs"),
    (("precompute", "nope"), outcome.WRONG_USE, "unknown_study", "attention_sinks"),
    (("precompute", "--profile", "huge"), outcome.WRONG_USE, "unknown_profile", "smoke, laptop, full"),
    (("precompute", "--only", "bert"), outcome.WRONG_USE, "unknown_subject", SUBJECT),
    (("precompute", "--jobs", "0"), outcome.WRONG_USE, "jobs_invalid", "--jobs 1"),
    (("precompute", "--jobs", "two"), outcome.WRONG_USE, "usage", "--help"),
    (("serv",), outcome.WRONG_USE, "usage", "--help"),
    (("runs", "--nope"), outcome.WRONG_USE, "usage", "--help"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "code", "kind", "remedy"), WRONG, ids=[" ".join(w[0]) for w in WRONG])
def test_wrong_use(
    arguments: tuple[str, ...], code: int, kind: str, remedy: str, command: Command, filled: Path
) -> None:
    said = command(*arguments)
    assert (said.code, said.out) == (code, "")
    assert remedy in said.err and "Traceback" not in said.err
    as_json = command(*arguments, "--json")
    assert as_json.code == code
    error = as_json.json["error"]
    assert set(error) == {"kind", "message", "where", "remedy"}
    assert error["kind"] == kind and remedy in error["remedy"]
    assert as_json.err == ""


def older_store(path: Path, version: int) -> None:
    with duckdb.connect(str(path)) as connection:
        connection.execute(f"UPDATE meta SET schema_version = {version}")


@pytest.mark.parametrize("name", ["runs", "claims", "verify"])
@pytest.mark.parametrize("kind", ["store_missing", "store_newer", "store_older", "store_corrupt"])
def test_a_store_that_cannot_be_used(name: str, kind: str, command: Command, filled: Path) -> None:
    if kind == "store_missing":
        filled.unlink()
    elif kind == "store_corrupt":
        filled.write_bytes(b"these are no traces" * 100)
    else:
        older_store(filled, 99 if kind == "store_newer" else 0)
    before = filled.read_bytes() if filled.exists() else None
    said = command(name, "--json")
    assert (said.code, said.json["error"]["kind"]) == (outcome.REFUSED, kind)
    assert said.json["error"]["remedy"]
    assert (filled.read_bytes() if filled.exists() else None) == before  # nothing was "repaired"


def test_precompute_refuses_to_touch_a_newer_store(command: Command, filled: Path) -> None:
    older_store(filled, 99)
    before = filled.read_bytes()
    said = command("precompute", "--profile", "smoke", "--json")
    assert (said.code, said.json["error"]["kind"]) == (outcome.REFUSED, "store_newer")
    assert filled.read_bytes() == before


def test_a_home_that_cannot_be_made(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("CLOUDCHAMBER_HOME", str(tmp_path / "file" / "home"))
    said = command("precompute", "--profile", "smoke", "--json")
    assert (said.code, said.json["error"]["kind"]) == (outcome.WRONG_USE, "home_unwritable")
    assert "CLOUDCHAMBER_HOME" in said.json["error"]["remedy"]


# Root may write everywhere, so the command runs without that one privilege.
UNPRIVILEGED = ["setpriv", "--bounding-set", "-dac_override", "--inh-caps", "-dac_override"]


@pytest.mark.skipif(os.geteuid() == 0 and not shutil.which("setpriv"), reason="root, and no setpriv")
def test_a_read_only_home(filled: Path) -> None:
    prefix = UNPRIVILEGED if os.geteuid() == 0 else []
    before = filled.read_bytes()
    filled.parent.chmod(0o555)
    try:
        run = [*prefix, sys.executable, "-m", "app.cli"]
        reads = subprocess.run([*run, "runs"], cwd=ROOT, capture_output=True, text=True, check=False)
        writes = subprocess.run(
            [*run, "precompute", "--profile", "smoke"], cwd=ROOT, capture_output=True, text=True, check=False
        )
    finally:
        filled.parent.chmod(0o755)
    assert reads.returncode == 0 and DONE in reads.stdout  # reading needs no right to write
    assert writes.returncode == outcome.WRONG_USE
    assert "CLOUDCHAMBER_HOME" in writes.stderr and "Traceback" not in writes.stderr
    assert filled.read_bytes() == before


def test_a_second_precompute_is_refused(command: Command, filled: Path) -> None:
    hold = (
        "import sys; from pathlib import Path; from data.lock import writer_lock\n"
        "with writer_lock(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(filled)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        said = command("precompute", "--profile", "smoke", "--json")
        assert (said.code, said.json["error"]["kind"]) == (outcome.WRONG_USE, "store_busy")
        assert command("runs").code == 0  # readers never wait
        holder.communicate("")


def test_a_device_that_is_not_there(command: Command, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDCHAMBER_DEVICE", "abacus")
    checks = {check["name"]: check for check in command("doctor", "--json").json["checks"]}
    assert checks["device"]["state"] == "broken" and "abacus" in checks["device"]["detail"]


# Errors of other kinds.


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (OSError(28, "No space left on device", "/x/y"), outcome.LIMIT, "The disk is full. (/x/y)"),
        (PermissionError(13, "Permission denied", "/x/y"), outcome.WRONG_USE, "cannot be written. (/x/y)"),
        (OSError(30, "Read-only file system", "/x"), outcome.WRONG_USE, "CLOUDCHAMBER_HOME"),
        (MemoryError(), outcome.LIMIT, "The memory is used up."),
        (ModuleNotFoundError("no torch", name="torch.nn"), outcome.MISSING, "'torch' is not installed"),
        (ValueError("odd"), outcome.OUR_FAULT, "This should not have happened: ValueError: odd"),
    ],
)  # fmt: skip
def test_any_error_becomes_a_sentence(
    error: Exception, code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert outcome.report(error, as_json=False) == code
    said = capsys.readouterr()
    assert words in said.err and said.out == ""


def test_the_traceback_shows_on_request(
    command: Command, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "Traceback" not in command("runs").err
    monkeypatch.setenv("CLOUDCHAMBER_DEBUG", "1")
    said = command("runs")
    assert said.err.startswith("Traceback") and "There is no trace store yet." in said.err


def test_a_reader_that_leaves_early_is_no_error() -> None:
    done = subprocess.run(
        f"'{sys.executable}' -m app.cli studies attention_sinks | head -n 1; exit ${{PIPESTATUS[0]}}",
        shell=True, executable="/bin/bash", cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def kinds_in_code() -> set[str]:
    """Every kind of CloudChamberError that a command can meet, from the sources."""
    folders = ("data", "precompute", "models", "app/commands")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")] + [ROOT / "app" / "cli.py"]
    return {
        node.args[0].value
        for path in files
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "CloudChamberError"
        and node.args
        and isinstance(node.args[0], ast.Constant)
    }


def test_every_kind_of_error_has_its_exit_code() -> None:
    found = kinds_in_code()
    assert len(found) > 30
    assert found - set(outcome.CODES) == set(), "list them in app/commands/outcome.py"
    listed = [kind for kinds in outcome.KINDS.values() for kind in kinds]
    assert len(listed) == len(set(listed))


# Making.


def test_precompute_reports_failures_with_their_code() -> None:
    from app.commands.precompute import ending
    from precompute.events import RunRef, Summary

    run = RunRef("0", "s", "x", "x")
    missing, memory, other = (
        (run, "x comes with the package y, which is not installed."),
        (run, "The run ran out of memory. Use fewer workers."),
        (run, "ValueError: odd"),
    )
    assert ending(Summary(done=3)) == 0
    assert ending(Summary(failures=(missing,))) == outcome.MISSING
    assert ending(Summary(failures=(missing, memory))) == outcome.LIMIT
    assert ending(Summary(failures=(missing, memory, other))) == outcome.OUR_FAULT
    assert ending(Summary(interrupted=True, failures=(other,))) == outcome.CANCELLED


def test_verify_takes_the_quickest_run_of_every_subject(command: Command, filled: Path) -> None:
    import pandas as pd

    from app.commands.verify import quickest

    runs = pd.DataFrame(
        [("a", "s", "x", 9.0), ("b", "s", "x", 2.0), ("c", "s", "y", 5.0), ("d", "t", "x", 1.0)],
        columns=["run_id", "study", "subject", "seconds"],
    )
    assert sorted(quickest(runs)) == ["b", "c", "d"]


def test_export_and_import_bring_back_the_same_rows(command: Command, filled: Path, tmp_path: Path) -> None:
    from data.shipped import import_published
    from data.store import open_store

    folder = tmp_path / "shipped"
    said = command("export", DONE, "--to", str(folder), "--json")
    assert said.code == 0 and said.json["runs"] == [DONE]
    assert said.json["bytes"] == sum(file.stat().st_size for file in folder.iterdir())
    again = tmp_path / "again.duckdb"
    import_published(folder, again)
    with open_store(filled) as store, open_store(again) as copy:
        query = "SELECT * FROM attention_heads WHERE run_id = ? ORDER BY sample, layer, head"
        assert store.arrow(query, (DONE,)).equals(copy.arrow(query, (DONE,)))


def test_export_ships_only_what_the_plans_hold(command: Command, filled: Path, tmp_path: Path) -> None:
    from app.commands.export import planned
    from data.runs import run_id
    from precompute.study import Profile

    study = STUDIES["attention_sinks"]
    config = study.plan(Profile.smoke)[0]
    mine = run_id(study.slug, study.version, config.model_dump(mode="json"))
    assert planned({mine, "0123456789abcdef"}) == [mine]


# Doctor.


def test_doctor_finds_nothing_broken_here(command: Command, filled: Path) -> None:
    said = command("doctor", "--json")
    states = {check["name"]: check["state"] for check in said.json["checks"]}
    broken = [name for name, state in states.items() if state == doctor.BROKEN]
    assert broken == [] and said.json["ok"] and said.code == 0
    # The small run was "made" by sources that never were: drift is a note.
    assert states["source attention_sinks"] == doctor.NOTE
    for name in ("python", "packages", "device", "state", "store", "browser"):
        assert name in states


def test_doctor_ends_with_1_on_a_damaged_store(command: Command, filled: Path) -> None:
    filled.write_bytes(b"")
    said = command("doctor")
    assert said.code == 1
    assert "broken" in said.out and "make demo" in said.out


def test_pins_are_read_from_the_lists() -> None:
    pins = doctor.pinned()
    assert pins["streamlit"] and pins["rxnmapper"] == "0.4.3"
    assert all("+" not in version and "/" not in version for version in pins.values())


# Numbers as people write them.


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.8666, "0.867"), (1.0, "1"), (0.0, "0"), (1234.5, "1,234"),
     (None, "–"), (float("nan"), "–"), (2.5e-7, "2.50e-07")],
)  # fmt: skip
def test_numbers(value: float | None, text: str) -> None:
    assert output.number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.42, "0.4 s"), (12.4, "12 s"), (83, "1 min 23 s"), (4325, "1 h 12 min")]
)
def test_durations(seconds: float, text: str) -> None:
    assert output.duration(seconds) == text


def test_json_has_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json({"a": float("nan"), "b": [float("inf"), 1.5], "c": ("x", None)})
    import json

    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [None, 1.5], "c": ["x", None]}
