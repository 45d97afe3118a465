"""Publishing: replacing, failing, migrating, a full disk, one writer at a time, kill -9."""

from __future__ import annotations

import multiprocessing
import os
import random
import subprocess
import sys
import threading
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import pyarrow as pa
import pytest

from data.errors import CloudChamberError
from data.lock import holder, writer_lock
from data.publish import publish, read_staged
from data.schema import Column, TableSpec
from data.store import open_store
from tests.store.making import ITEMS, TABLES, make_store, row, stage

KILLS = 30


def counts(path: Path) -> dict[str, int]:
    """Rows of `items` by run."""
    with open_store(path) as store:
        frame = store.frame("SELECT run_id, count(*) AS n FROM items GROUP BY ALL")
    return {str(r): int(n) for r, n in zip(frame["run_id"], frame["n"], strict=True)}


def test_a_run_replaces_itself_and_nothing_else(tmp_path: Path) -> None:
    path = make_store(tmp_path, range(3))
    assert publish(path, [stage(tmp_path / "staging", 1, count=30, seconds=9.0)], TABLES) == 1
    assert counts(path) == {row(0).run_id: 20, row(1).run_id: 30, row(2).run_id: 20}
    with open_store(path) as store:
        runs = store.runs()
    assert sorted(runs["seconds"]) == [1.5, 1.5, 9.0]
    assert runs["run_id"].is_unique


def test_a_failure_is_kept_but_never_costs_a_result(tmp_path: Path) -> None:
    path = make_store(tmp_path, range(1))
    failures = [
        stage(tmp_path / "failed", n, status="failed", error="ValueError: no\n\nTrace") for n in range(2)
    ]
    assert publish(path, failures, TABLES) == 1
    with open_store(path) as store:
        status = dict(zip(store.runs()["run_id"], store.runs()["status"], strict=True))
        assert status == {row(0).run_id: "done", row(1).run_id: "failed"}
        assert store.runs()["error"].iloc[1] == "ValueError: no\n\nTrace"
    assert counts(path) == {row(0).run_id: 20}, "a failed run publishes no rows"
    assert publish(path, [stage(tmp_path / "staging", 1)], TABLES) == 1
    assert counts(path) == {row(0).run_id: 20, row(1).run_id: 20}
    with open_store(path) as store:
        assert set(store.runs()["status"]) == {"done"}
        assert len(store.runs()) == 2


def test_a_new_nullable_column_migrates_the_table(tmp_path: Path) -> None:
    path = make_store(tmp_path, range(2))
    wider = replace(ITEMS, columns=(*ITEMS.columns, Column("extra", pa.int32(), "", "Later", nullable=True)))
    publish(path, [stage(tmp_path / "staging", 2, spec=wider)], {"items": wider})
    assert counts(path) == {row(n).run_id: 20 for n in range(3)}
    with open_store(path) as store:
        assert store.schemas()["items"] == wider.stored_schema
        again = store.arrow("SELECT * FROM items WHERE run_id = ? ORDER BY item", [row(0).run_id])
        assert again["extra"].null_count == 20
        assert again["blob"].null_count == 0


def changed(**settings: object) -> TableSpec:
    """`items` with its column `value` changed, or left out when `drop`."""
    columns = []
    for column in ITEMS.columns:
        if column.name == "value":
            if settings.get("drop"):
                continue
            column = replace(column, **{k: v for k, v in settings.items() if k != "drop"})
        columns.append(column)
    return replace(ITEMS, columns=tuple(columns))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (changed(drop=True), "'value', which is not used"),
        (changed(type=pa.float64()), "items.value is float, not double"),
        (
            replace(ITEMS, columns=(*ITEMS.columns, Column("extra", pa.int32(), "", "Later"))),
            "lacks the column 'extra'",
        ),
    ],
)
def test_any_other_change_of_a_table_says_what_to_do(tmp_path: Path, spec: TableSpec, words: str) -> None:
    path = make_store(tmp_path, range(1))
    before = path.read_bytes()
    with pytest.raises(CloudChamberError, match=words) as caught:
        publish(path, [stage(tmp_path / "staging", 1)], {"items": spec})
    assert caught.value.kind == "store_older"
    assert "cloudchamber precompute" in caught.value.remedy
    assert path.read_bytes() == before


def test_a_table_of_another_study_goes_along(tmp_path: Path) -> None:
    other = replace(ITEMS, name="others")
    path = make_store(tmp_path, range(1))
    publish(path, [stage(tmp_path / "staging", 1)], {"items": ITEMS, "others": other})
    publish(path, [stage(tmp_path / "staging", 0, seconds=3.0)], {"others": other})
    with open_store(path) as store:
        assert sorted(store.schemas()) == ["items", "others", "runs"]
    assert counts(path) == {row(1).run_id: 20}


def test_a_damaged_shard_changes_nothing(tmp_path: Path) -> None:
    path = make_store(tmp_path, range(1))
    before = path.read_bytes()
    staged = stage(tmp_path / "staging", 1)
    (staged.folder / "items-001.parquet").write_bytes(b"PAR1 no PAR1")
    with pytest.raises(CloudChamberError) as caught:
        publish(path, [staged], TABLES)
    assert caught.value.kind == "trace_invalid"
    assert caught.value.where.endswith("items-001.parquet")
    assert path.read_bytes() == before
    assert not list(tmp_path.glob("*.building*"))


def test_an_unfinished_run_is_not_staged(tmp_path: Path) -> None:
    staged = stage(tmp_path, 1)
    (staged.folder / "DONE").write_text((staged.folder / "DONE").read_text()[:-20])
    assert read_staged(staged.folder) is None
    (staged.folder / "DONE").unlink()
    assert read_staged(staged.folder) is None


def test_nowhere_to_write(tmp_path: Path) -> None:
    """/proc is a folder in which not even root may write."""
    with pytest.raises(CloudChamberError) as caught:
        publish(Path("/proc/traces.duckdb"), [stage(tmp_path, 0)], TABLES)
    assert caught.value.kind == "store_unwritable"
    assert "CLOUDCHAMBER_HOME" in caught.value.remedy
    (tmp_path / "file").write_text("")
    with pytest.raises(CloudChamberError) as caught:
        publish(tmp_path / "file" / "traces.duckdb", [stage(tmp_path, 0)], TABLES)
    assert caught.value.kind == "store_unwritable"


@pytest.mark.parametrize(("replaces", "share"), [(False, 1.5), (True, 1.5), (False, 0.01)])
def test_a_full_disk_leaves_the_store_as_it_was(tmp_path: Path, replaces: bool, share: float) -> None:
    """The kernel refuses to let any file of the child grow beyond that share of the present store."""
    path = make_store(tmp_path, range(2), count=500)
    before = path.read_bytes()
    number = 1 if replaces else 2
    staged = stage(tmp_path / "more", number, count=4_000, seconds=7.0)
    code = f"""
import resource
from pathlib import Path
from data.errors import CloudChamberError
from data.publish import publish, read_staged
from tests.store.making import TABLES
resource.setrlimit(resource.RLIMIT_FSIZE, ({int(len(before) * share)},) * 2)
try:
    publish(Path({str(path)!r}), [read_staged(Path({str(staged.folder)!r}))], TABLES)
except CloudChamberError as error:
    print(error.kind, error)
"""
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout.startswith("disk_full "), child.stdout + child.stderr
    assert "Free some space" in child.stdout
    assert path.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["more", "precompute.lock", "staging", "traces.duckdb"]


def test_a_second_writer_is_refused_by_name_or_waits(tmp_path: Path) -> None:
    path = make_store(tmp_path, range(1))
    code = (
        "import sys; from pathlib import Path; from data.lock import writer_lock\n"
        f"with writer_lock(Path({str(path)!r})): print('held', flush=True); sys.stdin.read()\n"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"
    noted = holder(path)
    assert noted is not None
    assert noted.pid == other.pid
    with pytest.raises(CloudChamberError) as caught:
        publish(path, [stage(tmp_path / "staging", 1)], TABLES)
    assert caught.value.kind == "store_busy"
    assert str(other.pid) in caught.value.message
    assert noted.started in caught.value.message
    waiting = threading.Thread(
        target=publish, args=(path, [stage(tmp_path / "staging", 1)], TABLES), kwargs={"wait": True}
    )
    waiting.start()
    time.sleep(0.3)
    assert list(counts(path)) == [row(0).run_id], "it must wait"
    other.kill()  # a killed holder blocks nobody, though its note is still there
    waiting.join(10)
    other.communicate()
    assert counts(path) == {row(0).run_id: 20, row(1).run_id: 20}


def test_the_lock_is_reentrant_on_its_thread_only(tmp_path: Path) -> None:
    path = tmp_path / "traces.duckdb"
    caught: list[str] = []

    def elsewhere() -> None:
        try:
            with writer_lock(path):
                pass
        except CloudChamberError as error:
            caught.append(error.kind)

    with writer_lock(path):
        with writer_lock(path):
            pass
        other = threading.Thread(target=elsewhere)
        other.start()
        other.join()
    assert caught == ["store_busy"]
    elsewhere()
    assert caught == ["store_busy"], "released"
    assert holder(path) is None


def publish_for_ever(path: Path, staging: Path, seed: int, started: Connection) -> None:
    """Publish runs, new ones and replacements, until killed; says so before each."""
    rng = random.Random(seed)
    while True:
        started.send(None)
        number = rng.randrange(8)
        staged = read_staged(staging / row(number).run_id)
        assert staged is not None
        publish(path, [replace(staged, row=replace(staged.row, seconds=rng.random()))], TABLES)


def test_kill_while_publishing(tmp_path: Path) -> None:
    """Killed at 30 random moments, the store is always whole: full runs, once each."""
    path = make_store(tmp_path, range(1), count=500)
    runs = [stage(tmp_path / "staging", number, count=500) for number in range(8)]
    publish(path, runs, TABLES)
    begun = time.monotonic()
    publish(path, [replace(runs[0], row=replace(runs[0].row, seconds=9.0))], TABLES)
    once = min(time.monotonic() - begun, 0.3)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.store.test_publish"])
    rng = random.Random(7)
    leftovers, generations = 0, set()
    for seed in range(KILLS):
        receive, send = context.Pipe(duplex=False)
        child = context.Process(target=publish_for_ever, args=(path, tmp_path / "staging", seed, send))
        child.start()
        for _ in range(1 + seed % 2):  # every other one dies in its first publish
            receive.recv()
        time.sleep(rng.uniform(0, 1.5) * once)
        child.kill()
        child.join()
        leftovers += bool(list(tmp_path.glob("*.building*")))
        assert not path.with_name(path.name + ".wal").exists()
        assert set(counts(path).values()) == {500}
        with open_store(path) as store:
            assert store.runs()["run_id"].is_unique
            assert set(store.runs()["run_id"]) == set(counts(path))
            generations.add(store.generation)
    assert leftovers >= 3, "too few kills hit the building of a file to mean anything"
    assert len(generations) >= 3, "too few publishes came to their end"
    publish(path, [stage(tmp_path / "staging", 9)], TABLES)
    assert not list(tmp_path.glob("*.building*")), "the next writer clears what dead ones left"
    assert sorted(os.listdir(tmp_path)) == ["precompute.lock", "staging", "traces.duckdb"]


def test_readers_in_another_process_never_see_a_publish_halfway(tmp_path: Path) -> None:
    """While a process publishes without pause: every open, refresh and query sees whole generations."""
    path = make_store(tmp_path, range(1), count=200)
    for number in range(8):
        stage(tmp_path / "staging", number, count=200)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.store.test_publish"])
    _receive, send = context.Pipe(duplex=False)
    child = context.Process(target=publish_for_ever, args=(path, tmp_path / "staging", 0, send))
    child.start()
    generations, deadline = set(), time.monotonic() + 30
    with open_store(path) as store:
        while len(generations) < 6 and time.monotonic() < deadline:
            store.refresh()
            generations.add(store.generation)
            frame = store.frame("SELECT run_id, count(*) AS n FROM items GROUP BY ALL")
            assert set(frame["n"]) == {200}
            assert set(frame["run_id"]) == set(store.runs()["run_id"])
            assert set(counts(path).values()) == {200}, "a fresh connection"
    child.kill()
    child.join()
    assert len(generations) >= 6
