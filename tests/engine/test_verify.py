"""Computing stored runs again: agreement, every kind of disagreement, drift."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from data.blobs import encode_map
from data.errors import CloudChamberError
from data.schema import Column, TableSpec
from precompute.engine import plan_runs, run_plan
from precompute.study import Profile, Study
from precompute.verify import RunCheck, compare_tables, verify
from tests.engine import tiny

MAPS = TableSpec(
    "maps",
    "Maps.",
    (
        Column("head", pa.int32(), "index", "Head"),
        Column("rows", pa.int32(), "", "Queries"),
        Column("cols", pa.int32(), "", "Keys"),
        Column("codec", pa.string(), "", "Codec"),
        Column("weights", pa.binary(), "share", "Weights", tolerance=2e-3),
    ),
    key=("head",),
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with two runs of the tiny study."""
    monkeypatch.setenv("TINY_WITHOUT_TORCH", "1")
    run_plan(
        [STUDY], Profile.smoke, store_path=tmp_path / "traces.duckdb", staging=tmp_path / "staging", jobs=1
    )
    return tmp_path


STUDY: Study = tiny.study(*tiny.plan(2))
NAMES = [r.ref.run_id for r in plan_runs([STUDY], Profile.smoke)]


def change(home: Path, sql: str) -> None:
    """Change the store behind the code's back."""
    with duckdb.connect(str(home / "traces.duckdb")) as connection:
        connection.execute(sql, [NAMES[0]])


def test_what_is_stored_is_found_again_or_not(home: Path) -> None:
    """One store, changed step by step: agreement, tolerance, a value, a row, a word, drift."""
    seen: list[RunCheck] = []
    checks = verify(home / "traces.duckdb", NAMES, {"tiny": STUDY}, on_check=seen.append)
    assert checks == seen
    assert [c.ok for c in checks] == [True, True]
    assert not any(c.source_changed or c.versions_changed for c in checks)
    assert {t.name: (t.rows, t.rows_again) for t in checks[0].tables} == {
        "tiny_numbers": (200, 200), "tiny_words": (1, 1)
    }  # fmt: skip
    assert all(c.max_abs == 0 and c.where == "" for t in checks[0].tables for c in t.columns)

    change(home, "UPDATE tiny_numbers SET value = value + 1e-13 WHERE run_id = ? AND block = 1 AND item = 7")
    change(
        home,
        "UPDATE tiny_numbers SET series = list_concat(series[1:3], [series[4] + 0.5::FLOAT]) "
        "WHERE run_id = ? AND block = 2 AND item = 3",
    )
    change(home, "DELETE FROM tiny_words WHERE run_id = ?")
    versions = json.dumps({"python": "2.7", "cobol": "85"})
    change(home, f"UPDATE runs SET source_hash = 'old', versions = '{versions}' WHERE run_id = ?")
    first, second = verify(home / "traces.duckdb", NAMES, {"tiny": STUDY})
    assert second.ok
    assert not first.ok
    numbers, words = first.tables
    value, series = numbers.columns
    assert (value.ok, value.where) == (True, "block 1, item 7")
    assert 0 < value.max_abs < 1e-12
    assert (series.ok, series.where) == (False, "block 2, item 3")
    assert series.max_abs == pytest.approx(0.5, abs=1e-6)
    assert (words.rows, words.rows_again, words.extra, words.ok) == (0, 1, 1, False)
    assert first.source_changed
    assert first.versions_changed["cobol"] == ("85", "")
    assert first.versions_changed["python"][0] == "2.7"


def test_what_cannot_be_computed_again_says_why(home: Path) -> None:
    path = home / "traces.duckdb"
    with pytest.raises(CloudChamberError) as caught:
        verify(path, ["nope"], {"tiny": STUDY})
    assert caught.value.kind == "run_unknown"
    (check,) = verify(path, NAMES[:1], {})
    assert check.error == "There is no study 'tiny' any more."
    (check,) = verify(path, NAMES[:1], {"tiny": replace(STUDY, version=2)})
    assert check.error is not None
    assert "version 2 now, not 1" in check.error
    (check,) = verify(path, NAMES[:1], {"tiny": replace(STUDY, run="tests.engine.tiny:gone")})
    assert not check.ok
    assert "has no attribute 'gone'" in str(check.error)
    change(home, 'UPDATE runs SET config = \'{"subject":"ant","act":"fly"}\' WHERE run_id = ?')
    (check,) = verify(path, NAMES[:1], {"tiny": STUDY})
    assert str(check.error).startswith("Its configuration is not valid any more: Input should be 'none'")


def maps(codec: str, *weights: np.ndarray) -> pa.Table:
    """A table of packed maps."""
    return pa.table(
        {
            "head": pa.array(range(len(weights)), pa.int32()),
            "rows": pa.array([w.shape[0] for w in weights], pa.int32()),
            "cols": pa.array([w.shape[1] for w in weights], pa.int32()),
            "codec": [codec] * len(weights),
            "weights": [encode_map(w, codec) for w in weights],
        }
    )


def test_maps_are_compared_as_numbers_with_their_codec_s_precision() -> None:
    base = np.random.default_rng(0).random((8, 8)).astype(np.float32)
    one_step = np.clip(base * 1.012, 0, 1)  # another device may fall on the next code of log8
    check = compare_tables(MAPS, maps("log8", base, base), maps("log8", base, one_step))
    assert check.ok
    assert check.columns[-1].max_abs > 0.02, "far beyond the column's own tolerance"
    assert check.columns[-1].where == "head 1"
    assert not compare_tables(MAPS, maps("f16", base, base), maps("f16", base, one_step)).ok
    spot = base.copy()
    spot[3, 4] = 0.0
    wrong = compare_tables(MAPS, maps("log8", base), maps("log8", spot)).columns[-1]
    assert (wrong.ok, wrong.max_abs) == (False, pytest.approx(base[3, 4], rel=0.02))
    assert not compare_tables(MAPS, maps("f16", base), maps("f16", base[:4])).ok


def test_nan_agrees_with_nan_only() -> None:
    spec = TableSpec(
        "t", "", (Column("k", pa.int32(), "", ""), Column("v", pa.float64(), "", "")), key=("k",)
    )

    def table(*values: float) -> pa.Table:
        return pa.table({"k": pa.array(range(len(values)), pa.int32()), "v": pa.array(values, pa.float64())})

    nan, inf = float("nan"), float("inf")
    assert compare_tables(spec, table(nan, inf, 1), table(nan, inf, 1)).ok
    for other in (table(0, inf, 1), table(nan, -inf, 1), table(nan, 3, 1), table(nan, inf, nan)):
        assert not compare_tables(spec, table(nan, inf, 1), other).ok
    shuffled = table(1, 2, 3).take([2, 0, 1])
    assert compare_tables(spec, table(1, 2, 3), shuffled).ok, "rows are found by key"
    assert compare_tables(spec, table(1, 2, 3), table(1, 2)).missing == 1
