"""The packaged models, brought as files: by upload, on the command line, as published: the same numbers."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from app import cli
from app.commands.stored import all_tables
from app.jobs_pool import JobPool
from data import paths
from data.publish import import_published
from data.records import attention_sinks_queries as queries
from data.store import Store, open_store
from models.checkpoints.inspection import Inspection

pytestmark = [pytest.mark.models, pytest.mark.slow]

TOLERANCE = 1e-4
FORMS = ("zip", "shards", "onnx")
# What the tracer knows from keys, values and hidden states, and a graph does not tell.
UNKNOWN_IN_GRAPHS = ("key_norm_ratio", "value_norm_ratio")


@dataclass(frozen=True)
class Case:
    """A published run, and how to ask for the same."""

    subject: str
    text: str
    bos: bool
    length: int
    samples: int
    codec: str  # of its maps


CASES = (
    Case("smollm2-135m-instruct", "kjv", True, 64, 8, "log8"),
    Case("all-minilm-l6-v2", "kjv", True, 64, 8, "log8"),
    Case("rxnmapper-albert", "reactions", True, 128, 20, "f16"),
)
by_case = pytest.mark.parametrize("case", CASES, ids=[c.subject for c in CASES], scope="module")
by_form = pytest.mark.parametrize("form", FORMS)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    path = tmp_path_factory.mktemp("published") / "traces.duckdb"
    import_published(paths.published_dir(), path, all_tables())
    with open_store(path) as store:
        yield store


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobPool]:
    pool = JobPool(parent=tmp_path_factory.mktemp("visits"))
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def exported(case: Case, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """The three forms of the case's model: the files of each."""
    from precompute.runs.subjects import load
    from tests.brought import exports

    subject = load(case.subject, paths.cache_dir())
    base = tmp_path_factory.mktemp("exports")
    whole = exports.folder(subject, base / "model")
    shards = exports.sharded(subject, base / "shards")
    return {
        "zip": [exports.zipped(whole, base / "model.zip")],
        "shards": sorted(p for p in shards.iterdir() if p.is_file()),
        "onnx": sorted(p for p in exports.onnx(subject, base / "onnx").iterdir() if p.is_file()),
    }


def run_of(store: Store, case: Case) -> str:
    runs = queries.trace_runs(store)
    settings = ("subject", "text", "bos", "length", "samples")
    found = runs[np.logical_and.reduce([runs[key] == getattr(case, key) for key in settings])]
    assert len(found) == 1
    return str(found["run_id"].iloc[0])


def same(found: pd.DataFrame, expected: pd.DataFrame, without: tuple[str, ...] = ()) -> None:
    found, expected = found.drop(columns=list(without)), expected.drop(columns=list(without))
    assert found[["layer", "head", "samples"]].equals(expected[["layer", "head", "samples"]])
    for name in expected.columns:
        if name == "mean_distance":  # tokens, of up to 64: its own scale
            np.testing.assert_allclose(found[name], expected[name], atol=64 * TOLERANCE, err_msg=name)
        else:
            scale = max(1.0, float(expected[name].abs().max()))
            np.testing.assert_allclose(found[name], expected[name], atol=scale * TOLERANCE, err_msg=name)


@by_case
@by_form
def test_by_upload(
    pool: JobPool, published: Store, exported: dict[str, list[Path]], case: Case, form: str
) -> None:
    visit = pool.open_visit()
    streams = [(path.name, io.BytesIO(path.read_bytes())) for path in exported[form]]
    entry = pool.shelf(visit).put(streams)  # type: ignore[arg-type]  # a BytesIO is a BinaryIO
    wait(pool, pool.inspect(visit, entry.slug))
    seen = Inspection.from_json(entry.read("inspection") or "")
    assert seen.refusal is None and seen.takes == "text"
    assert seen.adds_special == case.bos
    settings = {key: getattr(case, key) for key in ("text", "bos", "length", "samples")}
    settings |= {"subject": entry.slug, "codec": case.codec}
    job = pool.submit("attention_sinks", settings, visit)
    run = wait(pool, job)
    store = pool.store(visit)
    assert store is not None
    ours, theirs = run_of(published, case), run
    same(
        queries.heads(store, theirs),
        queries.heads(published, ours),
        UNKNOWN_IN_GRAPHS if form == "onnx" else (),
    )
    for layer, head in ((0, 0), (1, 1), (5, 3)):
        mine, other = (
            queries.attention_map(s, r, layer, head) for s, r in ((store, theirs), (published, ours))
        )
        assert mine is not None and other is not None
        if case.codec == "f16":
            np.testing.assert_allclose(mine, other, atol=TOLERANCE, rtol=2**-11)
            continue
        # Stored in steps of 3 %: values at the edge of a step may fall to either side of it.
        np.testing.assert_allclose(mine, other, rtol=0.031, atol=2**-11)
        assert (mine == other).mean() > 0.99
    assert queries.tokens(store, theirs).equals(queries.tokens(published, ours))
    if form != "onnx":
        hidden = queries.layers(store, theirs)
        np.testing.assert_allclose(
            hidden["median_abs"], queries.layers(published, ours)["median_abs"], rtol=TOLERANCE
        )
    pool.close_visit(visit)


@by_case
@by_form
def test_on_the_command_line(
    capsys: pytest.CaptureFixture[str],
    published: Store,
    exported: dict[str, list[Path]],
    case: Case,
    form: str,
) -> None:
    files = exported[form]
    place = [str(files[0])] if len(files) == 1 else [str(files[0].parent)]
    options = {"--text": case.text, "--length": case.length, "--samples": case.samples}
    arguments = [*place, *(str(x) for pair in options.items() for x in pair), "--json"]
    capsys.readouterr()
    assert cli.run(["analyze", *arguments]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["settings"]["special_tokens"] == case.bos
    expected = queries.headline(published, run_of(published, case), 0.3)
    found = said["headline"]
    for key, value in expected.items():
        if key != "parameters":
            np.testing.assert_allclose(found[key], value, atol=TOLERANCE, err_msg=key)


def wait(pool: JobPool, job: str) -> str:
    """The run of a job that is done; anything else fails."""
    while not (status := pool.status(job)).finished:
        time.sleep(0.02)
    assert status.state == "done", json.dumps([status.kind, status.message, status.where])
    return status.run_id
