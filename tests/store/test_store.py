"""Opening and reading the store: exact round trip, hardening, generations, every broken file."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import duckdb
import numpy as np
import pytest

from data.errors import CloudChamberError
from data.publish import publish, remove_runs
from data.store import SCHEMA_VERSION, open_store
from tests.store.making import TABLES, file_version, items, make_store, row, stage


def test_round_trip_is_exact(tmp_path: Path) -> None:
    path = make_store(tmp_path, range(3))
    with open_store(path) as store:
        for number in range(3):
            again = store.arrow("SELECT * FROM items WHERE run_id = ? ORDER BY item", [row(number).run_id])
            wanted = items(number)
            assert again.num_rows == wanted.num_rows
            for name in wanted.column_names:
                if name == "wide":  # NaN is a value here, not a gap
                    assert np.array_equal(again[name].to_numpy(), wanted[name].to_numpy(), equal_nan=True), (
                        name
                    )
                else:
                    assert again[name].to_pylist() == wanted[name].to_pylist(), name
        runs = store.runs("toy")
        assert runs["run_id"].tolist() == [row(n).run_id for n in range(3)]
        assert runs["seconds"].tolist() == [1.5] * 3
        assert runs["error"].isna().all()
        assert len(store.runs("other")) == 0
        assert store.has_table("items")
        assert not store.has_table("duckdb_tables")
        assert store.schemas()["items"] == TABLES["items"].stored_schema
        assert store.frame("SELECT sum(value) AS s FROM items").s[0] == pytest.approx(
            sum(float(np.sum(items(n)["value"].to_numpy().astype(np.float64))) for n in range(3)), abs=1e-9
        )


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_csv('{file}')",
        "SELECT * FROM read_text('{file}')",
        "SELECT * FROM read_blob('{file}')",
        "SELECT * FROM read_parquet('{file}')",
        "SELECT * FROM '{file}'",
        "SELECT * FROM glob('/*')",
        "COPY items TO '{out}'",
        "EXPORT DATABASE '{out}'",
        "ATTACH '{out}' AS other",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "SET lock_configuration = false",
        "SET threads = 1",
        "RESET enable_external_access",
        "PRAGMA enable_profiling",
        "INSERT INTO runs SELECT * FROM runs",
        "DELETE FROM items",
        "DROP TABLE items",
        "CREATE TABLE more (a INTEGER)",
    ],
)
def test_the_connection_refuses_everything_but_reading(tmp_path: Path, sql: str) -> None:
    file, out = tmp_path / "secret.csv", tmp_path / "out"
    file.write_text("a\n1\n")
    path = make_store(tmp_path, range(1))
    before = path.read_bytes()
    with open_store(path) as store:
        with pytest.raises((CloudChamberError, duckdb.Error)):
            store.frame(sql.format(file=file, out=out))
        assert len(store.runs()) == 1
    assert not out.exists()
    assert path.read_bytes() == before


def test_variables_of_python_are_no_tables(tmp_path: Path) -> None:
    secret = items(1)  # noqa: F841  (DuckDB would find it by name)
    with open_store(make_store(tmp_path, range(1))) as store, pytest.raises(CloudChamberError):
        store.frame("SELECT * FROM secret")


def test_a_reader_keeps_its_generation_until_it_refreshes(tmp_path: Path) -> None:
    path = make_store(tmp_path, range(1))
    with open_store(path) as store, open_store(path) as other:
        first = store.generation
        assert not store.refresh()
        publish(path, [stage(tmp_path / "staging", 1)], TABLES)
        assert len(store.runs()) == 1
        assert store.generation == first
        assert store.refresh()
        assert len(store.runs()) == 2
        assert store.generation != first
        assert len(other.runs()) == 1, "one reader's refresh is not another's"
        remove_runs(path, [row(0).run_id])
        assert store.refresh()
        assert store.runs()["run_id"].tolist() == [row(1).run_id]
        assert store.frame("SELECT DISTINCT run_id FROM items")["run_id"].tolist() == [row(1).run_id]


def test_publishing_what_is_there_changes_nothing(tmp_path: Path) -> None:
    path = make_store(tmp_path, range(2))
    before = file_version(path)
    assert publish(path, [stage(tmp_path / "staging", n) for n in range(2)], TABLES) == 0
    assert file_version(path) == before


def test_a_query_that_runs_survives_refresh_and_close(tmp_path: Path) -> None:
    """Threads that query while generations change see whole generations and no error."""
    path = make_store(tmp_path, range(1), count=200)
    store = open_store(path)
    wrong: list[object] = []
    seen: set[int] = set()
    end = threading.Event()

    def read() -> None:
        while not end.is_set():
            try:
                counts = store.frame("SELECT run_id, count(*) AS n FROM items GROUP BY ALL")
                seen.add(len(counts))
                if set(counts["n"]) != {200}:
                    wrong.append(counts)
            except BaseException as error:  # noqa: BLE001  (whatever it is, the test fails with it)
                wrong.append(error)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(1, 7):
        publish(path, [stage(tmp_path / "staging", number, 200)], TABLES)
        store.refresh()
    end.set()
    for thread in threads:
        thread.join()
    store.close()
    assert not wrong
    assert len(seen) > 2, "the reads did not overlap the publishes"


def broken(path: Path, how: str) -> None:
    """Break the store at `path`."""
    whole = path.read_bytes()
    match how:
        case "empty":
            path.write_bytes(b"")
        case "garbage":
            path.write_bytes(np.random.default_rng(0).bytes(30_000))
        case "text":
            path.write_text("PK this is not a store " * 500)
        case "header only":
            path.write_bytes(whole[:4096])
        case "truncated":
            path.write_bytes(whole[: len(whole) // 2])
        case "zeroed middle":
            path.write_bytes(whole[:12288] + b"\0" * (len(whole) - 12288))
        case "another database":
            path.unlink()
            with duckdb.connect(str(path)) as connection:
                connection.execute("CREATE TABLE cats (name VARCHAR)")
        case "no version":
            edit(path, "DELETE FROM meta")
        case "newer":
            edit(path, f"UPDATE meta SET schema_version = {SCHEMA_VERSION + 1}")
        case "older":
            edit(path, f"UPDATE meta SET schema_version = {SCHEMA_VERSION - 1}")
        case "missing":
            path.unlink()
        case "folder":
            path.unlink()
            path.mkdir()
        case "under a file":
            pass
        case _:
            raise AssertionError(how)


def edit(path: Path, sql: str) -> None:
    """Change the store behind the code's back."""
    with duckdb.connect(str(path)) as connection:
        connection.execute(sql)


BROKEN = {
    "empty": "store_corrupt",
    "garbage": "store_corrupt",
    "text": "store_corrupt",
    "header only": "store_corrupt",
    "truncated": "store_corrupt",
    "zeroed middle": "store_corrupt",
    "another database": "store_corrupt",
    "no version": "store_corrupt",
    "newer": "store_newer",
    "older": "store_older",
    "missing": "store_missing",
    "folder": "store_unreadable",
}


@pytest.mark.parametrize(("how", "kind"), BROKEN.items())
def test_every_broken_store_is_a_sentence_with_a_remedy(tmp_path: Path, how: str, kind: str) -> None:
    path = make_store(tmp_path, range(1), count=2_000)
    broken(path, how)
    with pytest.raises(CloudChamberError) as caught:
        open_store(path)
    assert caught.value.kind == kind
    assert caught.value.where == str(path)
    assert caught.value.message.endswith(".")
    assert len(caught.value.remedy) > 20
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize("how", [h for h in BROKEN if h != "missing"])
def test_publishing_onto_a_broken_store_changes_nothing(tmp_path: Path, how: str) -> None:
    path = make_store(tmp_path, range(1))
    broken(path, how)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(CloudChamberError) as caught:
        publish(path, [stage(tmp_path / "staging", 1)], TABLES)
    assert caught.value.kind == BROKEN[how]
    assert (path.read_bytes() if path.is_file() else None) == before
    assert [p.name for p in tmp_path.iterdir() if "building" in p.name] == []


def test_damage_in_the_data_is_found_when_it_is_read(tmp_path: Path) -> None:
    """Whichever block is damaged: an error with a remedy, or (a free block) the right numbers."""
    path = make_store(tmp_path, range(2), count=1_000)
    query = "SELECT count(*), min(value), max(wide), max(name), max(blob), max(len(series)) FROM items"
    with open_store(path) as store:
        right = repr(store.arrow(query).to_pylist())
    whole = path.read_bytes()
    wrong = tmp_path / "wrong.duckdb"
    found = 0
    for block in range(12288, len(whole), 262144):
        at = block + 8  # the first bytes of a block after its checksum
        wrong.write_bytes(whole[:at] + bytes(b ^ 0xFF for b in whole[at : at + 64]) + whole[at + 64 :])
        for read in (True, False):
            try:
                if read:
                    with open_store(wrong) as store:
                        assert repr(store.arrow(query).to_pylist()) == right
                else:
                    publish(wrong, [stage(tmp_path / "staging", 0, seconds=2.5)], TABLES)
            except CloudChamberError as error:
                found += 1
                assert error.kind == "store_corrupt"  # noqa: PT017
    assert found >= 4


def test_a_path_below_a_file_is_unreadable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CloudChamberError) as caught:
        open_store(tmp_path / "file" / "traces.duckdb")
    assert caught.value.kind == "store_unreadable"


def test_a_broken_successor_leaves_the_reader_its_generation(tmp_path: Path) -> None:
    path = make_store(tmp_path, range(1))
    with open_store(path) as store:
        successor = tmp_path / "next"
        successor.write_bytes(b"not a store")
        os.replace(successor, path)
        with pytest.raises(CloudChamberError) as caught:
            store.refresh()
        assert caught.value.kind == "store_corrupt"
        assert len(store.runs()) == 1


def test_a_store_without_a_column_asked_for_is_older(tmp_path: Path) -> None:
    with open_store(make_store(tmp_path, range(1))) as store:
        for sql in ("SELECT colour FROM items", "SELECT * FROM other_study"):
            with pytest.raises(CloudChamberError) as caught:
                store.frame(sql)
            assert caught.value.kind == "store_older"
            assert "cloudchamber precompute" in caught.value.remedy


def test_another_program_that_writes_is_named(tmp_path: Path) -> None:
    path = make_store(tmp_path, range(1))
    code = (
        f"import duckdb; c = duckdb.connect({str(path)!r}); c.execute('DELETE FROM items'); "
        "print('open', flush=True); input()"
    )
    shell = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert shell.stdout is not None
    assert shell.stdout.readline() == "open\n"
    with pytest.raises(CloudChamberError) as caught:
        publish(path, [stage(tmp_path / "staging", 1)], TABLES)
    assert caught.value.kind == "store_locked"
    with pytest.raises(CloudChamberError) as caught:
        open_store(path)
    log = path.with_name(path.name + ".wal")
    shell.kill()
    shell.communicate()
    assert caught.value.kind == "store_locked"
    assert f"PID {shell.pid}" in caught.value.message
    assert log.exists(), "the log of a program that lives is not touched"
    open_store(path).close()


def test_a_foreign_write_ahead_log_is_never_replayed(tmp_path: Path) -> None:
    """The log of a killed program belongs to the file it had open, not to the one renamed over it."""
    path = make_store(tmp_path, range(1))
    code = (
        f"import duckdb, os; c = duckdb.connect({str(path)!r}); "
        "c.execute('DELETE FROM items'); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code], check=False)
    log = path.with_name(path.name + ".wal")
    assert log.stat().st_size > 0
    kept = log.read_bytes()
    publish(path, [stage(tmp_path / "staging", 1)], TABLES)
    assert not log.exists()
    with open_store(path) as store:
        assert store.frame("SELECT count(*) AS n FROM items").n[0] == 40
    log.write_bytes(kept)
    with pytest.raises(CloudChamberError) as caught:
        open_store(path)
    assert "traces.duckdb.wal" in caught.value.remedy
