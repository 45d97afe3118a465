"""The engine on a tiny study: results, failures, dead workers, resuming, refusing, cancelling."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import pytest

from data.errors import CloudChamberError
from data.store import open_store
from precompute.engine import Summary, plan_runs, run_plan, select_studies
from precompute.events import Event, Published, RunDone, RunFailed, RunProgress, RunRetried, RunStarted
from precompute.executors import WorkerDied, WorkerPool
from precompute.registry import STUDIES
from precompute.study import Profile, Study
from precompute.worker import run_one
from tests.engine import tiny
from tests.store.making import file_version


@pytest.fixture(autouse=True)
def _light(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers without torch start in half the time."""
    monkeypatch.setenv("TINY_WITHOUT_TORCH", "1")


def compute(home: Path, study: Study, **settings: object) -> tuple[Summary, list[Event]]:
    """Run the study's plan under `home`."""
    events: list[Event] = []
    summary = run_plan(
        [study],
        Profile.smoke,
        store_path=home / "traces.duckdb",
        staging=home / "staging",
        on_event=events.append,
        **{"jobs": 1, **settings},  # type: ignore[arg-type]
    )
    return summary, events


def rows(home: Path) -> dict[int, int]:
    """Numbers of rows by seed of the runs that are done."""
    with open_store(home / "traces.duckdb") as store:
        frame = store.frame(
            "SELECT seed, count(*) AS n FROM tiny_numbers JOIN runs USING (run_id) "
            "WHERE status = 'done' GROUP BY ALL"
        )
    return dict(zip(frame["seed"].tolist(), frame["n"].tolist(), strict=True))


def values(home: Path) -> list[tuple[object, ...]]:
    """All numbers, by seed, block and item."""
    with open_store(home / "traces.duckdb") as store:
        frame = store.frame(
            "SELECT seed, block, item, value, series::VARCHAR FROM tiny_numbers "
            "JOIN runs USING (run_id) ORDER BY ALL"
        )
    return list(frame.itertuples(index=False, name=None))


def test_one_call_survives_everything_its_runs_do(tmp_path: Path) -> None:
    """Good runs, every kind of failure, a run that kills its worker once and one that always does."""
    acts = ("raise", "memory", "torch_memory", "refuse", "double", "die")
    plan = tiny.plan(3)
    plan += [tiny.TinyConfig(subject="ant", seed=10 + i, act=act) for i, act in enumerate(acts)]
    plan.append(tiny.TinyConfig(subject="ant", seed=20, act="die_once", flag=str(tmp_path / "flag")))
    summary, events = compute(tmp_path, tiny.study(*plan), jobs=2)
    assert (summary.done, summary.failed, summary.cancelled, summary.interrupted) == (4, 6, 0, False)
    assert rows(tmp_path) == {0: 200, 1: 200, 2: 200, 20: 200}
    with open_store(tmp_path / "traces.duckdb") as store:
        runs = store.runs().set_index("seed")
    first = {act: runs["error"][10 + i].splitlines()[0] for i, act in enumerate(acts)}
    assert first["raise"] == "ValueError: half way there"
    assert 'raise ValueError("half way there")' in runs["error"][10], "the traceback is kept"
    assert first["memory"].startswith("The run ran out of memory. Use fewer workers (--jobs)")
    assert first["torch_memory"] == first["memory"]
    assert first["refuse"] == "The tiny study refuses. Ask nicely."
    assert first["double"].startswith("150 rows repeat the key (block, item)")
    assert first["die"].startswith("The worker died (signal 9), probably out of memory, twice: lower --jobs")
    assert runs["device_reason"][0] == "cpu: torch is not installed"
    assert runs["profile"].unique().tolist() == ["smoke"]
    assert list((tmp_path / "staging").iterdir()) == []
    retried = [e.run.run_id for e in events if isinstance(e, RunRetried)]
    assert sorted(retried) == sorted(runs["run_id"][[15, 20]]), "once each, and no other run"
    for kind in (RunDone, RunFailed):
        for ended in (e for e in events if isinstance(e, kind)):
            assert events.index(RunStarted(ended.run)) < events.index(ended)
    published = [name for e in events if isinstance(e, Published) for name in e.run_ids]
    assert sorted(published) == sorted(runs["run_id"])
    log = [json.loads(line) for line in (tmp_path / "logs" / "precompute.jsonl").read_text().splitlines()]
    assert [line["event"] for line in log].count("RunFailed") == 6
    assert log[-1]["event"] == "summary"
    assert log[-1]["done"] == 4


def test_done_runs_are_skipped_failed_ones_tried_again(tmp_path: Path) -> None:
    plan = tiny.plan(3)
    plan.append(tiny.TinyConfig(subject="bee", seed=9, act="raise_once", flag=str(tmp_path / "flag")))
    study = tiny.study(*plan)
    assert compute(tmp_path, study)[0].failed == 1
    before = values(tmp_path)
    summary, events = compute(tmp_path, study)
    assert (summary.done, summary.skipped, summary.failed) == (1, 3, 0)
    assert rows(tmp_path) == {0: 200, 1: 200, 2: 200, 9: 200}
    summary, events = compute(tmp_path, study)
    assert (summary.done, summary.skipped) == (0, 4)
    assert not any(isinstance(e, RunStarted) for e in events)
    generation = file_version(tmp_path / "traces.duckdb")
    summary, _ = compute(tmp_path, study, force=True, only="ant")
    assert (summary.done, summary.skipped) == (2, 0)
    assert file_version(tmp_path / "traces.duckdb") != generation
    assert [v for v in values(tmp_path) if v[0] != 9] == before, "the seed decides every number"
    other = plan_runs([tiny.study(*plan, version=2)], Profile.smoke)
    assert {r.ref.run_id for r in other}.isdisjoint(r.ref.run_id for r in plan_runs([study], Profile.smoke))


def test_a_failed_second_try_keeps_the_result(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    flag.touch()
    study = tiny.study(tiny.TinyConfig(subject="ant", seed=1, act="raise_once", flag=str(flag)))
    compute(tmp_path, study)
    flag.unlink()
    summary, _ = compute(tmp_path, study, force=True)
    assert summary.failed == 1
    assert rows(tmp_path) == {1: 200}


def test_progress_reaches_the_listener(tmp_path: Path) -> None:
    _, events = compute(tmp_path, tiny.study(*tiny.plan(1, pause=0.4)))
    steps = [(e.done, e.total, e.stage) for e in events if isinstance(e, RunProgress)]
    assert {(1, 4, "drawing"), (2, 4, "drawing"), (3, 4, "drawing")} <= set(steps)
    assert steps == sorted(steps, key=lambda s: s[0])


def test_stop_keeps_what_is_finished_and_drops_the_rest(tmp_path: Path) -> None:
    stop = threading.Event()
    study = tiny.study(
        *tiny.plan(2), *(tiny.TinyConfig(subject="ant", seed=7 + i, act="hang") for i in range(3))
    )
    found: list[Event] = []

    def listen(event: Event) -> None:
        found.append(event)
        started, over, published = (
            sum(isinstance(e, kind) for e in found) for kind in (RunStarted, RunDone, Published)
        )
        if published and started > over:  # whether the start or the publication was seen first
            stop.set()

    begun = time.monotonic()
    summary = run_plan(
        [study], Profile.smoke, store_path=tmp_path / "traces.duckdb", staging=tmp_path / "staging",
        jobs=1, on_event=listen, stop=stop,
    )  # fmt: skip
    assert time.monotonic() - begun < 30
    assert summary.interrupted
    assert summary.done + summary.cancelled == 5
    assert summary.done >= 1
    assert len(rows(tmp_path)) == summary.done
    assert list((tmp_path / "staging").iterdir()) == []


def test_finished_runs_of_a_dead_engine_are_published(tmp_path: Path) -> None:
    """Two runs were finished, one was not, when the engine died before publishing."""
    study = tiny.study(*tiny.plan(3))
    staging = tmp_path / "staging"
    for config in tiny.plan(3):
        run_one(study, config, staging)
    unfinished = staging / plan_runs([study], Profile.smoke)[2].ref.run_id
    (unfinished / "DONE").unlink()
    (staging / "what is this").mkdir()
    summary, _ = compute(tmp_path, study)
    assert (summary.done, summary.skipped) == (1, 2)
    assert rows(tmp_path) == {0: 200, 1: 200, 2: 200}
    assert list(staging.iterdir()) == []


def test_run_one_raises_and_leaves_nothing(tmp_path: Path) -> None:
    study = tiny.study()
    for act, kind in (("raise", ValueError), ("memory", MemoryError), ("refuse", CloudChamberError)):
        with pytest.raises(kind):
            run_one(study, tiny.TinyConfig(subject="ant", act=act), tmp_path)
        assert list(tmp_path.iterdir()) == []
    steps: list[int] = []
    staged = run_one(
        study,
        tiny.TinyConfig(subject="ant"),
        tmp_path,
        on_progress=lambda done, total, stage: steps.append(done),
    )
    assert steps[0] == 0
    assert steps[-1] == 4
    assert (staged.row.profile, staged.row.status, staged.row.notices) == ("live", "done", "[]")


def test_unknown_names_list_the_valid_ones() -> None:
    with pytest.raises(CloudChamberError) as caught:
        plan_runs([tiny.study(*tiny.plan(2))], Profile.smoke, ["cat"])
    assert (caught.value.kind, caught.value.remedy) == ("unknown_subject", "Choose from: ant, bee.")
    with pytest.raises(CloudChamberError) as caught:
        select_studies(STUDIES, ["atention_sinks"])
    assert caught.value.kind == "unknown_study"
    assert "attention_sinks" in caught.value.remedy
    assert [s.slug for s in select_studies(STUDIES, [])] == list(STUDIES)


def test_a_plan_counts_equal_runs_once() -> None:
    study = tiny.study(*tiny.plan(2), *tiny.plan(3))
    assert [r.config for r in plan_runs([study], Profile.smoke)] == tiny.plan(3)


def test_workers_share_the_threads_and_name_how_they_died() -> None:
    with WorkerPool(2, threads=3) as pool:
        assert pool.submit(os.getenv, "OMP_NUM_THREADS").result() == "3"
        one, two = pool.submit(os.getpid).result(), os.getpid()
        assert one != two
        with pytest.raises(WorkerDied, match=r"exit code 7"):
            pool.submit(os._exit, 7).result()
        with pytest.raises(WorkerDied, match=r"signal 9\), probably out of memory"):
            pool.submit(_kill_me).result()
        with pytest.raises(WorkerDied, match=r"signal 11\)$"):
            pool.submit(_kill_me, 11).result()
        assert pool.submit(pow, 3, 4).result() == 81
        with pytest.raises(ZeroDivisionError):
            pool.submit(divmod, 1, 0).result()


def _kill_me(number: int = 9) -> None:
    os.kill(os.getpid(), number)
    time.sleep(60)


def test_staging_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CloudChamberError) as caught:
        run_plan(
            [tiny.study(*tiny.plan(1))], Profile.smoke,
            store_path=tmp_path / "traces.duckdb", staging=tmp_path / "file" / "staging",
        )  # fmt: skip
    assert caught.value.kind == "staging_unwritable"
