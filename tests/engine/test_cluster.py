"""The same plan on a Dask cluster: results, a dead worker, cancelling, and what is refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from data.errors import CloudChamberError
from data.store import open_store
from precompute.engine import run_plan
from precompute.events import Event, RunRetried, RunStarted
from precompute.executors import cluster_executor
from precompute.study import Profile
from tests.engine import tiny

distributed = pytest.importorskip("distributed")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two workers on this machine, one task each."""
    import dask

    with (
        pytest.MonkeyPatch.context() as patch,
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
    ):
        patch.setenv("TINY_WITHOUT_TORCH", "1")
        with distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50
        ) as made:
            yield made


def test_a_cluster_computes_the_same(cluster: Any, tmp_path: Path) -> None:
    """Good runs, a failing one, and one that kills its worker once, which costs only a second try."""
    plan = tiny.plan(3)
    plan.append(tiny.TinyConfig(subject="ant", seed=8, act="raise"))
    plan.append(tiny.TinyConfig(subject="ant", seed=9, act="die_once", flag=str(tmp_path / "flag")))
    events: list[Event] = []
    summary = run_plan(
        [tiny.study(*plan)],
        Profile.smoke,
        store_path=tmp_path / "far.duckdb",
        staging=tmp_path / "staging",
        scheduler=cluster.scheduler_address,
        on_event=events.append,
    )
    assert (summary.done, summary.failed, summary.cancelled) == (4, 1, 0)
    assert [e.run.label.split()[1] for e in events if isinstance(e, RunRetried)] == ["seed=9"]
    run_plan(
        [tiny.study(*tiny.plan(3))],
        Profile.smoke,
        store_path=tmp_path / "near.duckdb",
        staging=tmp_path / "staging",
        jobs=1,
    )
    query = "SELECT * FROM tiny_numbers WHERE run_id IN (SELECT run_id FROM runs WHERE seed < 3) ORDER BY ALL"
    with open_store(tmp_path / "far.duckdb") as far, open_store(tmp_path / "near.duckdb") as near:
        assert far.arrow(query).num_rows == 600
        assert far.arrow(query) == near.arrow(query)
    assert list((tmp_path / "staging").iterdir()) == []


def test_cancelling_reaches_the_cluster(cluster: Any, tmp_path: Path) -> None:
    stop = threading.Event()

    def listen(event: Event) -> None:
        if isinstance(event, RunStarted):
            stop.set()

    summary = run_plan(
        [tiny.study(*tiny.plan(4, blocks=400, pause=0.05))],
        Profile.smoke,
        store_path=tmp_path / "traces.duckdb",
        staging=tmp_path / "staging",
        scheduler=cluster.scheduler_address,
        on_event=listen,
        stop=stop,
    )
    assert summary.interrupted
    assert (summary.done, summary.cancelled) == (0, 4)
    assert list((tmp_path / "staging").iterdir()) == []


def test_what_is_no_cluster_is_refused() -> None:
    with pytest.raises(CloudChamberError) as caught:
        cluster_executor("nonsense://x:1")
    assert caught.value.kind == "scheduler_unreachable"
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=4, processes=False, dashboard_address=":0"
        ) as crowded,
        pytest.raises(CloudChamberError) as caught,
    ):
        cluster_executor(crowded.scheduler_address)
    assert caught.value.kind == "scheduler_workers"
    assert "--nthreads 1" in caught.value.remedy
