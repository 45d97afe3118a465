"""Jobs on what visitors bring: looked at, traced, kept apart, wiped. Real files, the real study."""

from __future__ import annotations

import io
import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from app.jobs import JobPool, JobStatus
from app.jobs_visits import Visit
from data.errors import CloudChamberError
from data.records import attention_sinks_queries as queries
from models.checkpoints.inspection import Inspection

pytestmark = pytest.mark.models

LENGTH = 8


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobPool]:
    pool = JobPool(parent=tmp_path_factory.mktemp("visits"), intake={"file_bytes": 10_000_000})
    yield pool
    pool.close()


@pytest.fixture
def visit(pool: JobPool) -> Iterator[Visit]:
    visit = pool.open_visit()
    yield visit
    pool.close_visit(visit)


def uniform_maps(layers: int = 2, heads: int = 3, length: int = LENGTH) -> bytes:
    """Causal maps whose every query looks evenly at all it can see."""
    one = np.tril(np.ones((length, length))) / np.arange(1, length + 1)[:, None]
    file = io.BytesIO()
    np.save(file, np.broadcast_to(one, (layers, heads, length, length)).astype(np.float32))
    return file.getvalue()


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def wait(pool: JobPool, job: str) -> JobStatus:
    until(lambda: pool.status(job).finished)
    return pool.status(job)


def bring(pool: JobPool, visit: Visit, content: bytes, name: str = "maps.npy") -> str:
    return pool.shelf(visit).put([(name, io.BytesIO(content))]).slug


def given(slug: str) -> dict[str, object]:
    return {"subject": slug, "text": "given", "length": LENGTH, "samples": 1}


def test_from_the_shelf_to_known_numbers(pool: JobPool, visit: Visit) -> None:
    slug = bring(pool, visit, uniform_maps())
    looked = wait(pool, pool.inspect(visit, slug))
    assert (looked.state, looked.task, looked.run_id) == ("done", "inspect", slug)
    found = Inspection.from_json(pool.shelf(visit).get(slug).read("inspection") or "")
    assert (found.opener, found.study, found.takes) == ("maps", "attention_sinks", "nothing")
    assert (found.layers, found.heads, found.length, found.samples) == (2, 3, LENGTH, 1)
    done = wait(pool, pool.submit("attention_sinks", given(slug), visit))
    assert done.state == "done", done.message
    store = pool.store(visit)
    assert store is not None
    headline = queries.headline(store, done.run_id, 0.3)
    # Mean over keys 1/(q+1): harmonic number over T for the importance of the first token.
    harmonic = sum(1 / n for n in range(1, LENGTH + 1))
    rows = queries.heads(store, done.run_id)
    assert rows["first_importance"].to_numpy() == pytest.approx(harmonic / LENGTH, abs=1e-4)
    assert headline["first_token_mass"] == pytest.approx((harmonic - 1) / (LENGTH - 1), abs=1e-6)
    assert headline["mean_row_entropy_bits"] == pytest.approx(
        sum(math.log2(n) for n in range(1, LENGTH + 1)) / LENGTH, abs=1e-6
    )
    assert (headline["layers"], headline["heads"], headline["length"]) == (2, 3, LENGTH)
    card = queries.model_card(store, done.run_id)
    assert card is not None and card["name"] == "maps.npy" and card["parameters"] == 0


def test_a_refusal_names_the_file_and_the_remedy(pool: JobPool, visit: Visit) -> None:
    slug = bring(
        pool, visit, b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "m.safetensors"
    )
    status = wait(pool, pool.inspect(visit, slug))
    text = pool.shelf(visit).get(slug).read("inspection")
    refusal = Inspection.from_json(text).refusal if text else None
    kind = status.kind or (refusal or {}).get("kind")
    remedy = status.remedy or (refusal or {}).get("remedy", "")
    assert kind == "brought_pointer" and "git lfs pull" in remedy


def test_the_statistics_are_those_of_the_values(pool: JobPool, visit: Visit) -> None:
    values = np.array([[1.0, -2.0], [np.nan, np.inf]], np.float32)
    header = json.dumps({"w": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}}).encode()
    slug = bring(pool, visit, len(header).to_bytes(8, "little") + header + values.tobytes(), "w.safetensors")
    assert wait(pool, pool.statistics(visit, slug)).state == "done"
    (row,) = json.loads(pool.shelf(visit).get(slug).read("statistics") or "")
    assert (row["name"], row["mean"], row["minimum"], row["maximum"]) == ("w", -0.5, -2.0, 1.0)
    assert (row["nans"], row["infinities"], row["zeros"]) == (1, 1, 0)


def test_what_was_brought_is_nobody_elses(pool: JobPool, visit: Visit) -> None:
    slug = bring(pool, visit, uniform_maps())
    other = pool.open_visit()
    with pytest.raises(CloudChamberError) as error:
        pool.inspect(other, slug)
    assert error.value.kind == "brought_gone"
    status = wait(pool, pool.submit("attention_sinks", given(slug), other))
    assert (status.state, status.kind) == ("failed", "brought_gone")
    pool.close_visit(other)


def test_a_worker_that_read_a_file_serves_nobody_else(pool: JobPool, visit: Visit) -> None:
    slug = bring(pool, visit, uniform_maps())
    assert wait(pool, pool.submit("attention_sinks", given(slug), visit)).state == "done"
    before = set(pool.worker_pids())
    second = bring(pool, visit, uniform_maps(heads=1))
    assert wait(pool, pool.submit("attention_sinks", given(second), visit)).state == "done"
    assert set(pool.worker_pids()) == before  # the same visitor's next file needs no new process
    other = pool.open_visit()
    theirs = bring(pool, other, uniform_maps(heads=2))
    assert wait(pool, pool.submit("attention_sinks", given(theirs), other)).state == "done"
    owners = {process.owner for process in pool._processes if process.alive}
    assert other.id in owners and not before & set(pool.worker_pids()) & {
        process.pid for process in pool._processes if process.owner == other.id
    }
    pool.close_visit(other)


def test_the_end_of_a_visit_wipes_its_shelf_and_ends_its_worker(pool: JobPool) -> None:
    visit = pool.open_visit()
    slug = bring(pool, visit, uniform_maps())
    assert wait(pool, pool.inspect(visit, slug)).state == "done"
    assert wait(pool, pool.submit("attention_sinks", given(slug), visit)).state == "done"
    mine = [process.pid for process in pool._processes if process.owner == visit.id]
    assert mine
    pool.close_visit(visit)
    assert not visit.folder.exists()
    until(lambda: not any(_runs(pid) for pid in mine), 5)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_the_pools_own_limits_reach_the_intake(pool: JobPool, visit: Visit, tmp_path: Path) -> None:
    slug = bring(pool, visit, uniform_maps(layers=8, heads=8, length=256))  # 16.8 MB
    status = wait(pool, pool.inspect(visit, slug))
    text = pool.shelf(visit).get(slug).read("inspection")
    kind = (
        status.kind or (Inspection.from_json(text).refusal or {}).get("kind") if text or status.kind else ""
    )
    assert kind == "brought_too_large"
