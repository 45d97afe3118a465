"""Traces that ship: out of a store into Parquet and back, beside runs computed here."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data.errors import CloudChamberError
from data.publish import export_published, import_published, publish
from data.schema import Column
from data.shipped import add_exported
from data.store import open_store
from tests.store.making import ITEMS, TABLES, file_version, items, make_store, row, stage


@pytest.fixture
def shipped(tmp_path: Path) -> Path:
    """Runs 0 and 1 of a store of three, exported."""
    folder = tmp_path / "published"
    export_published(make_store(tmp_path / "origin", range(3)), folder, [row(0).run_id, row(1).run_id])
    return folder


def test_there_and_back_is_exact(tmp_path: Path, shipped: Path) -> None:
    path = tmp_path / "home" / "traces.duckdb"
    result = import_published(shipped, path)
    assert (result.changed, result.added, result.removed, result.kept_local) == (True, 2, 0, 0)
    with open_store(path) as store, open_store(tmp_path / "origin" / "traces.duckdb") as origin:
        assert store.schemas() == origin.schemas()
        assert sorted(store.runs()["run_id"]) == sorted(row(n).run_id for n in range(2))
        for number in range(2):
            for table in ("runs", "items"):
                query = f"SELECT * FROM {table} WHERE run_id = ? ORDER BY ALL"
                mine = store.arrow(query, [row(number).run_id])
                assert repr(mine.to_pylist()) == repr(origin.arrow(query, [row(number).run_id]).to_pylist())


def test_importing_again_does_nothing(tmp_path: Path, shipped: Path) -> None:
    path = tmp_path / "home" / "traces.duckdb"
    import_published(shipped, path)
    before = file_version(path)
    assert not import_published(shipped, path).changed
    assert file_version(path) == before
    assert not import_published(tmp_path / "nothing there", path).changed


def test_exporting_again_gives_the_same_bytes(tmp_path: Path, shipped: Path) -> None:
    before = {file.name: file.read_bytes() for file in shipped.iterdir()}
    export_published(tmp_path / "origin" / "traces.duckdb", shipped, [row(1).run_id, row(0).run_id])
    assert {file.name: file.read_bytes() for file in shipped.iterdir()} == before


def test_runs_computed_here_stay(tmp_path: Path, shipped: Path) -> None:
    path = make_store(tmp_path / "home", [1, 5], count=30)  # run 1 is shipped too, with 20 rows
    result = import_published(shipped, path)
    assert (result.added, result.kept_local) == (1, 1)
    with open_store(path) as store:
        rows = store.frame("SELECT run_id, count(*) AS n FROM items GROUP BY ALL").set_index("run_id")["n"]
    assert dict(rows) == {row(0).run_id: 20, row(1).run_id: 30, row(5).run_id: 30}


def test_a_failed_run_gives_way_to_the_shipped_one(tmp_path: Path, shipped: Path) -> None:
    path = tmp_path / "home" / "traces.duckdb"
    publish(path, [stage(tmp_path / "staging", 0, status="failed", error="no")], TABLES)
    assert import_published(shipped, path).added == 2
    with open_store(path) as store:
        assert store.runs()["status"].tolist() == ["done", "done"]


def test_a_new_manifest_replaces_what_the_old_one_brought(tmp_path: Path, shipped: Path) -> None:
    path = tmp_path / "home" / "traces.duckdb"
    import_published(shipped, path)
    publish(path, [stage(tmp_path / "staging", 7)], TABLES)
    publish(path, [stage(tmp_path / "staging", 1, count=33, seconds=4.0)], TABLES)  # now it is ours
    export_published(tmp_path / "origin" / "traces.duckdb", shipped, [row(2).run_id])
    result = import_published(shipped, path)
    assert (result.added, result.removed) == (1, 1)
    with open_store(path) as store:
        rows = store.frame("SELECT run_id, count(*) AS n FROM items GROUP BY ALL").set_index("run_id")["n"]
        assert store.meta.imported == (row(2).run_id,)
    assert dict(rows) == {row(1).run_id: 33, row(2).run_id: 20, row(7).run_id: 20}


def test_columns_added_since_are_null(tmp_path: Path, shipped: Path) -> None:
    wider = replace(ITEMS, columns=(*ITEMS.columns, Column("extra", pa.int32(), "", "Later", nullable=True)))
    path = tmp_path / "home" / "traces.duckdb"
    import_published(shipped, path, {"items": wider})
    with open_store(path) as store:
        assert store.schemas()["items"] == wider.stored_schema
        assert store.frame("SELECT count(*) AS n, count(extra) AS e FROM items").loc[0].tolist() == [40, 0]


def test_large_tables_are_split(tmp_path: Path) -> None:
    origin = make_store(tmp_path / "origin", range(3), count=150)
    folder = tmp_path / "published"
    files = export_published(origin, folder, [row(n).run_id for n in range(3)], max_bytes=20_000)
    parts = [f for f in files if f.name.startswith("items-")]
    assert len(parts) >= 4
    assert all(f.stat().st_size <= 20_000 for f in parts)
    assert [f.name for f in parts] == [f"items-{i:03d}.parquet" for i in range(len(parts))]
    path = tmp_path / "home" / "traces.duckdb"
    import_published(folder, path)
    with open_store(path) as store:
        for number in range(3):
            again = store.arrow("SELECT * FROM items WHERE run_id = ? ORDER BY item", [row(number).run_id])
            assert again["blob"].to_pylist() == items(number, 150)["blob"].to_pylist()
    export_published(origin, folder, [row(0).run_id])
    names = json.loads((folder / "manifest.json").read_text())["tables"]
    assert sorted(f.name for f in folder.glob("*.parquet")) == sorted(
        entry["file"] for entries in names.values() for entry in entries
    ), "files no manifest names are deleted"
    with pytest.raises(CloudChamberError) as caught:
        export_published(origin, folder, [row(0).run_id], max_bytes=300)
    assert caught.value.kind == "published_too_big"


@pytest.mark.parametrize("how", ["flipped", "truncated", "gone", "no manifest", "newer", "not parquet"])
def test_damaged_traces_change_nothing(tmp_path: Path, shipped: Path, how: str) -> None:
    path = make_store(tmp_path / "home", [5])
    before = path.read_bytes()
    file, manifest = shipped / "items-000.parquet", shipped / "manifest.json"
    content = file.read_bytes()
    match how:
        case "flipped":
            file.write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:])
        case "truncated":
            file.write_bytes(content[:-10])
        case "gone":
            file.unlink()
        case "no manifest":
            manifest.write_text('{"tables": [')
        case "newer":
            manifest.write_text(manifest.read_text().replace('"schema_version": 1', '"schema_version": 99'))
        case "not parquet":
            import hashlib

            file.write_bytes(b"hello")
            text = manifest.read_text().replace(
                hashlib.sha256(content).hexdigest(), hashlib.sha256(b"hello").hexdigest()
            )
            manifest.write_text(text)
    with pytest.raises(CloudChamberError) as caught:
        import_published(shipped, path)
    assert caught.value.kind == ("store_newer" if how == "newer" else "published_damaged")
    assert path.read_bytes() == before


def test_only_finished_runs_are_exported(tmp_path: Path) -> None:
    path = tmp_path / "traces.duckdb"
    publish(path, [stage(tmp_path / "staging", 0, status="failed", error="no")], TABLES)
    for name in (row(0).run_id, "ffffffffffffffff"):
        with pytest.raises(CloudChamberError) as caught:
            export_published(path, tmp_path / "published", [name])
        assert caught.value.kind == "run_unknown"
        assert name in caught.value.message


def test_shipped_files_are_plain_parquet(shipped: Path) -> None:
    """Anybody can read them without this code."""
    table = pq.read_table(shipped / "items-000.parquet")
    assert (
        table["value"].to_pylist()[:20]
        == items(int(table["run_id"][0].as_py() == row(1).run_id))["value"].to_pylist()
    )


def test_another_export_is_added_beside_everything(tmp_path: Path, shipped: Path) -> None:
    path = make_store(tmp_path / "home", [1, 5], count=30)
    result = add_exported(shipped, path)
    assert (result.changed, result.added, result.kept_local) == (True, 1, 1)
    with open_store(path) as store:
        rows = store.frame("SELECT run_id, count(*) AS n FROM items GROUP BY ALL").set_index("run_id")["n"]
        assert store.meta.manifest is None
        assert store.meta.imported == ()
    assert dict(rows) == {row(0).run_id: 20, row(1).run_id: 30, row(5).run_id: 30}
    assert not add_exported(shipped, path).changed
    with pytest.raises(CloudChamberError) as caught:
        add_exported(tmp_path / "nothing there", path)
    assert caught.value.kind == "published_damaged"


def test_tables_lie_in_the_order_of_their_runs(tmp_path: Path, shipped: Path) -> None:
    """What makes a query for one run read few row groups, however the runs came in."""
    path = make_store(tmp_path / "home", [9, 4, 7])
    import_published(shipped, path)
    publish(path, [stage(tmp_path / "staging", 4, count=25, seconds=8.0)], TABLES)
    publish(path, [stage(tmp_path / "staging", n) for n in (11, 3)], TABLES)
    with open_store(path) as store:
        ids = store.frame("SELECT run_id, item FROM items ORDER BY rowid")
        assert ids["run_id"].is_monotonic_increasing
        assert all(part["item"].is_monotonic_increasing for _, part in ids.groupby("run_id"))
        assert len(ids) == 6 * 20 + 25
        assert store.runs()["run_id"].nunique() == 7
