"""Precomputes in processes of their own: kill -9, Ctrl-C, SIGTERM, two at once, a full disk."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil
import pytest

from data.store import open_store
from precompute import engine
from tests.engine import tiny
from tests.engine.drive import drive

KILLS = 20
COUNT = 10
PLAN = {"count": COUNT, "settings": {"pause": 0.01}}
MOMENTS = ("start", "RunStarted", "building", "RunDone", "building")
ROWS = 200  # of every tiny run


def start(
    home: Path, *, without_signals: bool = False, limit: int | None = None, **spec: Any
) -> subprocess.Popen[str]:
    """`tests.engine.drive` in a process group of its own, like a terminal's foreground job."""

    def prepare() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return subprocess.Popen(
        [sys.executable, "-m", "tests.engine.drive", str(home), json.dumps(spec)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TINY_WITHOUT_TORCH": "1"},
        start_new_session=True,
        preexec_fn=prepare,
    )


def until(process: subprocess.Popen[str], event: str) -> dict[str, Any]:
    """Read the process's lines until that event."""
    assert process.stdout is not None
    for line in process.stdout:
        found = json.loads(line)
        if event in found:
            return dict(found)
    raise AssertionError(f"no {event}: {process.stderr.read() if process.stderr else ''}")


def check(home: Path) -> set[str]:
    """The store is readable, and every run in it is whole and there once; the ids."""
    path = home / "traces.duckdb"
    if not path.exists():
        return set()
    assert not path.with_name(path.name + ".wal").exists()
    with open_store(path) as store:
        runs = store.runs()
        assert set(runs["status"]) == {"done"}
        assert runs["run_id"].is_unique
        counts = store.frame("SELECT run_id, count(*) AS n FROM tiny_numbers GROUP BY ALL")
        distinct = store.frame("SELECT count(DISTINCT (run_id, block, item)) AS n FROM tiny_numbers")
        words = store.frame("SELECT run_id, count(*) AS n FROM tiny_words GROUP BY ALL")
    assert set(counts["n"]) == {ROWS}
    assert distinct["n"][0] == ROWS * len(runs)
    assert set(words["n"]) == {1}
    assert set(counts["run_id"]) == set(words["run_id"]) == set(runs["run_id"])
    return set(runs["run_id"])


def gone(processes: list[psutil.Process], seconds: float = 5) -> bool:
    """Whether all of these processes end by themselves."""
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    return not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]


def precompute(home: Path, version: int, jobs: int, out: str) -> None:
    """In a forked process: compute and publish without pause, its lines to a file."""
    engine._PUBLISH_SECONDS = 0.0
    with Path(out).open("w") as sys.stdout:
        os._exit(drive(home, {**PLAN, "version": version, "jobs": jobs}))


def wait_for(home: Path, lines: Path, moment: str, child: BaseProcess) -> None:
    """Wait until an event happened in `lines`, or a new store is being built, or the child ended."""
    while child.is_alive():
        if moment == "building":
            if list(home.glob("*.building")):
                return
        elif lines.exists() and f'{{"{moment}"' in lines.read_text():
            return
        time.sleep(0.001)


def test_kill_at_any_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed 20 times while starting, computing and publishing; then one call completes it all."""
    monkeypatch.setenv("TINY_WITHOUT_TORCH", "1")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.engine.test_kill", "tests.store.test_publish"])
    rng = random.Random(3)
    found = {"finished": 0, "unfinished": 0, "building": 0}
    version, known = 1, set[str]()
    for kill in range(KILLS):
        lines = tmp_path / f"lines-{kill}"
        child = context.Process(target=precompute, args=(tmp_path, version, 1 + kill % 2, str(lines)))
        child.start()
        moment = MOMENTS[kill % len(MOMENTS)]
        if moment != "start":
            wait_for(tmp_path, lines, moment, child)
        time.sleep(rng.uniform(0, 0.02 if moment == "building" else 0.15))
        workers = psutil.Process(child.pid).children(recursive=True) if child.is_alive() else []
        child.kill()
        child.join()
        assert gone(workers), "workers outlive a killed engine"
        ids = check(tmp_path)
        assert known <= ids, "a published run was lost"
        known = ids
        folders = list((tmp_path / "staging").glob("*"))
        found["finished"] += any((folder / "DONE").exists() for folder in folders)
        found["unfinished"] += any(not (folder / "DONE").exists() for folder in folders)
        found["building"] += bool(list(tmp_path.glob("*.building*")))
        if len(known) > version * COUNT - 5:
            version += 1  # nearly all done: new runs, so that there is always something to kill
    assert min(found.values()) >= 1, f"the kills did not hit every moment: {found}"
    for each in range(version):
        assert drive(tmp_path, {**PLAN, "version": each + 1, "jobs": 1}) == 0
    assert len(check(tmp_path)) == version * COUNT
    assert list((tmp_path / "staging").iterdir()) == []
    assert not list(tmp_path.glob("*.building*"))


@pytest.mark.parametrize("how", ["ctrl-c", "sigterm", "ctrl-c twice"])
def test_interrupts_end_cleanly(tmp_path: Path, how: str) -> None:
    """Finished runs are published, the others leave nothing, no worker stays, no traceback is shown."""
    process = start(tmp_path, count=30, settings={"pause": 0.05})
    until(process, "Published")
    workers = psutil.Process(process.pid).children(recursive=True)
    if how == "sigterm":
        process.terminate()
    else:
        os.killpg(process.pid, signal.SIGINT)  # the terminal sends it to workers too
    if how == "ctrl-c twice":
        time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert gone(workers)
    published = check(tmp_path)
    assert 1 <= len(published) < 30
    if how == "ctrl-c twice":
        return  # it may have been interrupted anywhere; that the store is whole is what counts
    assert process.returncode == 130, err
    assert "Traceback" not in err
    summary = json.loads(out.splitlines()[-1])["summary"]
    assert summary["interrupted"]
    assert summary["done"] == len(published)
    assert summary["done"] + summary["cancelled"] == 30
    assert list((tmp_path / "staging").iterdir()) == []


def test_two_at_once(tmp_path: Path) -> None:
    """The second is refused and names the first, or waits; a killed first blocks nobody."""
    first = start(tmp_path, count=1, settings={"act": "hang"})
    until(first, "RunStarted")
    second = start(tmp_path, count=2)
    out, err = second.communicate(timeout=30)
    assert second.returncode == 2, err
    refused = json.loads(out)
    assert refused["refused"] == "store_busy"
    assert f"process {first.pid}, since 20" in refused["text"]
    assert "--wait" in refused["text"]
    third = start(tmp_path, count=2, wait=True)
    time.sleep(1.0)
    assert third.poll() is None
    assert check(tmp_path) == set()
    workers = psutil.Process(first.pid).children(recursive=True)
    first.kill()
    out, err = third.communicate(timeout=30)
    assert third.returncode == 0, err
    assert len(check(tmp_path)) == 2
    first.communicate()
    assert gone(workers)


def test_a_full_disk_ends_the_call_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel refuses shards larger than 100 kB to the workers."""
    monkeypatch.setenv("TINY_WITHOUT_TORCH", "1")
    assert drive(tmp_path, {"count": 2}) == 0
    before = (tmp_path / "traces.duckdb").read_bytes()
    process = start(tmp_path, count=1, settings={"blocks": 400}, limit=100_000)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 2, err
    last = json.loads(out.splitlines()[-1])
    assert last["refused"] == "disk_full"
    assert "what is published stays as it is" in last["text"]
    assert (tmp_path / "traces.duckdb").read_bytes() == before
    assert list((tmp_path / "staging").iterdir()) == []


def test_tiny_is_what_the_counts_above_assume() -> None:
    assert tiny.BLOCK * tiny.TinyConfig(subject="ant").blocks == ROWS
