"""The engine's parts: recorder, provenance, seeds, device, log, report."""

from __future__ import annotations

import io
import json
import random
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from data.errors import CloudChamberError
from data.paths import source_root
from data.runs import canonical_json, run_id
from data.schema import TableSpec
from precompute.events import (
    Planned,
    RunDone,
    RunFailed,
    RunProgress,
    RunRef,
    RunRetried,
    RunStarted,
    Stopping,
    Summary,
)
from precompute.log import open_log
from precompute.provenance import _imported_files, choose_device, seed_everything, source_hash, versions
from precompute.recorder import CANCEL, PROGRESS, Cancelled, ShardRecorder
from precompute.report import Reporter, duration, print_summary
from precompute.worker import Work, explained, perform
from tests.engine.tiny import NUMBERS, WORDS, plan, study

TABLES: dict[str, TableSpec] = {t.name: t for t in (NUMBERS, WORDS)}


def test_run_ids_depend_on_content_alone() -> None:
    """The first is the SHA-256 of {"config":{"seed":0,"subject":"ant"},"study":"tiny","version":1}."""
    assert run_id("tiny", 1, {"subject": "ant", "seed": 0}) == "95d7ff374bfd298f"
    assert run_id("tiny", 1, {"subject": "ant", "seed": 0}) == run_id(
        "tiny", 1, {"seed": 0, "subject": "ant"}
    )
    different = {
        run_id("tiny", 1, {"subject": "ant"}),
        run_id("tiny", 2, {"subject": "ant"}),
        run_id("tinz", 1, {"subject": "ant"}),
        run_id("tiny", 1, {"subject": "bee"}),
        run_id("tiny", 1, {"subject": "ant", "text": "\ud800"}),
        run_id("tiny", 1, {"subject": "ant", "text": "é‮"}),
    }
    assert len(different) == 6
    assert canonical_json({"b": 1.5, "a": [None, "é"]}) == '{"a":[null,"\\u00e9"],"b":1.5}'
    with pytest.raises(CloudChamberError, match="finite"):
        run_id("tiny", 1, {"x": float("nan")})


def test_the_recorder_refuses_what_does_not_fit(tmp_path: Path) -> None:
    recorder = ShardRecorder("r", TABLES, tmp_path / "r")
    word = pa.table({"word": ["a"]})
    for table, rows, words in (
        ("other", word, "no table 'other'"),
        ("tiny_words", pa.table({"word": ["a"], "more": [1]}), "'more' is not declared"),
        ("tiny_words", pa.table({"wort": ["a"]}), "'word' is missing"),
        ("tiny_words", pa.table({"word": pa.array([None], pa.string())}), "holds 1 nulls"),
        ("tiny_words", pa.table({"word": [["a"]]}), "word"),
    ):
        with pytest.raises(CloudChamberError, match=words) as caught:
            recorder.write(table, rows)
        assert caught.value.kind == "trace_invalid"
    assert list((tmp_path / "r").iterdir()) == []


def test_artefacts_are_kept_whole_under_safe_names(tmp_path: Path) -> None:
    recorder = ShardRecorder("r", TABLES, tmp_path / "r")
    for name in ("", ".hidden", "-x", "Upper", "a/b", "../a", "a\\b", "a b", "é", "a\n", "a" * 81):
        with pytest.raises(CloudChamberError, match="cannot be the name of an artefact") as caught:
            recorder.artefact(name, b"x")
        assert caught.value.kind == "artefact_name"
    assert list((tmp_path / "r").iterdir()) == []
    recorder.artefact("kjv-krause-s0.safetensors", b"early")
    recorder.artefact("kjv-krause-s0.safetensors", b"late\x00")
    recorder.artefact("a" * 80, b"")
    work = Work.of(study(), plan(1)[0], tmp_path)
    done = perform(work)
    staged = recorder.finish(replace(done.row, run_id="r"))
    assert {file.name: file.read_bytes() for file in staged.artefacts()} == {
        "kjv-krause-s0.safetensors": b"late\x00",
        "a" * 80: b"",
    }
    assert done.artefacts() == []
    assert recorder.finish(replace(done.row, status="failed", error="no")).artefacts() == []


def test_progress_is_written_whole_and_cancels(tmp_path: Path) -> None:
    seen: list[tuple[int, int, str]] = []
    stop = False
    recorder = ShardRecorder(
        "r", TABLES, tmp_path, on_progress=lambda *now: seen.append(now), cancelled=lambda: stop
    )
    for step in range(1_001):
        recorder.progress(step, 1_000, "counting")
    assert seen[0] == (0, 1_000, "counting")
    assert seen[-1] == (1_000, 1_000, "counting")
    assert len(seen) < 200, "ten a second are enough"
    assert json.loads((tmp_path / PROGRESS).read_text()) == {
        "done": 1_000,
        "total": 1_000,
        "stage": "counting",
    }
    (tmp_path / CANCEL).touch()
    with pytest.raises(Cancelled):
        recorder.progress(5, 1_000, "counting")
    (tmp_path / CANCEL).unlink()
    stop = True
    with pytest.raises(Cancelled):
        recorder.progress(5, 1_000, "counting")
    assert not issubclass(Cancelled, Exception), "a study's `except Exception` must not swallow it"


def test_small_writes_become_few_shards(tmp_path: Path) -> None:
    recorder = ShardRecorder("abc", TABLES, tmp_path)
    for i in range(500):
        recorder.write("tiny_words", pa.table({"word": [f"w{i}"]}))
    recorder._flush("tiny_words")
    shards = list(tmp_path.glob("*.parquet"))
    assert [s.name for s in shards] == ["tiny_words-000.parquet"]
    table = pq.read_table(shards[0])
    assert table["word"].to_pylist() == [f"w{i}" for i in range(500)]
    assert set(table["run_id"].to_pylist()) == {"abc"}


def test_one_seed_seeds_every_generator() -> None:
    torch = pytest.importorskip("torch")

    def draw() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    seed_everything(12)
    first = draw()
    assert draw() != first
    seed_everything(12)
    assert draw() == first
    seed_everything(13)
    assert all(a != b for a, b in zip(draw(), first, strict=True))
    seed_everything(-5 + 2**63)  # any seed a configuration may hold


def test_device_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.delenv("CLOUDCHAMBER_DEVICE", raising=False)
    device = choose_device(3)
    assert device.threads == 3
    if torch.cuda.is_available():
        assert device.name == "cuda"
        assert device.reason == f"cuda: {torch.cuda.get_device_name()}"
    else:
        assert (device.name, device.reason) == ("cpu", "cpu: no CUDA device visible")
    monkeypatch.setenv("CLOUDCHAMBER_DEVICE", "CPU ")
    assert choose_device().reason == "cpu: CLOUDCHAMBER_DEVICE asks for it"
    for wrong in ("tpu", "cuda:99", "cuda:x"):
        monkeypatch.setenv("CLOUDCHAMBER_DEVICE", wrong)
        with pytest.raises(CloudChamberError) as caught:
            choose_device()
        assert caught.value.kind == "device_unavailable"
        assert "Unset CLOUDCHAMBER_DEVICE" in caught.value.remedy


def test_without_torch_the_reason_says_so() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from precompute.provenance import *\n"
        "seed_everything(1); use_threads(2); print(choose_device().reason)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "cpu: torch is not installed\n"


@pytest.mark.parametrize("module", ["engine", "report", "verify", "worker", "log", "events", "executors"])
def test_the_engine_imports_no_torch(module: str) -> None:
    heavy = {"torch", "transformers", "distributed"}
    code = f"import sys, precompute.{module}; print({heavy} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "set()\n"


SOURCES = {
    "precompute/runs/__init__.py": "",
    "precompute/runs/x.py": "import models.a.b as b\nfrom data.records.x import T\nfrom . import helper\n",
    "precompute/runs/helper.py": "def f():\n    from data.sources import texts\n    import data.blobs\n",
    "precompute/runs/y.py": "import models.other\n",
    "precompute/studies/x.py": "from data.records.x_queries import q\n",
    "precompute/studies/y.py": "",
    "precompute/study.py": "import models.other\n",
    "models/__init__.py": "",
    "models/a/__init__.py": "from ..shared import f\n",
    "models/a/b.py": "from models.a import c\nimport numpy, precompute.study\n",
    "models/a/c.py": "import models.a.b\n",
    "models/shared.py": "",
    "models/other.py": "",
    "data/__init__.py": "",
    "data/blobs.py": "",
    "data/errors.py": "",
    "data/records/x.py": "from data.records.x_queries import q\nimport data.errors\n",
    "data/records/x_queries.py": "",
    "data/records/y.py": "",
    "data/sources/__init__.py": "",
    "data/sources/texts.py": "",
    "data/sources/pictures.py": "",
    "app/page.py": "",
}
FOLLOWED = {
    "precompute/runs/__init__.py", "precompute/runs/x.py", "precompute/runs/helper.py",
    "precompute/studies/x.py", "models/__init__.py", "models/a/__init__.py", "models/a/b.py",
    "models/a/c.py", "models/shared.py", "data/blobs.py", "data/records/x.py", "data/sources/__init__.py",
    "data/sources/texts.py",
}  # fmt: skip


def test_the_source_hash_follows_what_the_run_imports_and_nothing_else(tmp_path: Path) -> None:
    for name, text in SOURCES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    run = "precompute.runs.x:run"
    before = source_hash("x", run, tmp_path)
    assert re.fullmatch("[0-9a-f]{64}", before)
    for name, text in SOURCES.items():
        (tmp_path / name).write_text(text + "# a comment counts\n")
        assert (source_hash("x", run, tmp_path) != before) is (name in FOLLOWED), name
        (tmp_path / name).write_text(text)
    assert source_hash("x", run, tmp_path) == before
    (tmp_path / "models/new.py").write_text("a = 1\n")
    (tmp_path / "precompute/studies/z.py").write_text("a = 1\n")
    assert source_hash("x", run, tmp_path) == before, "another study comes in"
    (tmp_path / "models/shared.py").write_text("import models.new\n")
    linked = source_hash("x", run, tmp_path)
    (tmp_path / "models/new.py").write_text("a = 2\n")
    assert len({before, linked, source_hash("x", run, tmp_path)}) == 3
    (tmp_path / "models/new.py").rename(tmp_path / "models/new_name.py")
    (tmp_path / "models/shared.py").write_text("import models.new_name\n")
    renamed = source_hash("x", run, tmp_path)
    assert renamed not in (before, linked)
    assert source_hash("y", "precompute.runs.y:run", tmp_path) != renamed


def test_the_source_hash_of_attention_sinks_covers_its_sources_only() -> None:
    files = {
        path.relative_to(source_root()).as_posix()
        for path in _imported_files("precompute.runs.attention_sinks", source_root())
    }
    assert {
        "precompute/runs/attention_sinks.py",
        "precompute/runs/attention_samples.py",
        "precompute/runs/subjects.py",
        "models/attention/trace.py",
        "models/attention/kernel.py",
        "models/attention/metrics.py",
        "data/records/attention_sinks.py",
        "data/sources/texts.py",
        "data/sources/packages.py",
        "data/blobs.py",
    } <= files
    assert not {name for name in files if "krause" in name or name.endswith("_queries.py")}
    assert not {name for name in files if name.startswith(("app/", "precompute/studies/"))}


def test_versions_name_what_is_installed() -> None:
    found = versions(["pytest", "no-such-package"])
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["numpy"] == np.__version__
    assert found["pytest"] == pytest.__version__
    assert "no-such-package" not in found


def test_errors_of_any_text_can_be_stored() -> None:
    text = explained(ValueError("half a pair \ud800 and a nul \x00"))
    text.encode("utf-8")
    assert text.startswith("ValueError: half a pair")


def test_the_log_is_json_lines(tmp_path: Path) -> None:
    for number in range(2):
        with open_log(tmp_path / "logs", pid=7) as log:
            log.info("started", number=number, where=Path("a"))
            log.warning("odd", text="é\nb")
    lines = [json.loads(line) for line in (tmp_path / "logs" / "precompute.jsonl").read_text().splitlines()]
    assert [(line["event"], line["level"], line["pid"]) for line in lines] == [
        ("started", "info", 7), ("odd", "warning", 7)
    ] * 2  # fmt: skip
    assert lines[3]["text"] == "é\nb"
    (tmp_path / "file").write_text("")
    with pytest.raises(CloudChamberError) as caught:
        open_log(tmp_path / "file")
    assert caught.value.kind == "log_unwritable"


def test_the_report_in_plain_lines() -> None:
    out = io.StringIO()
    one, two = (RunRef(f"id{i}", "tiny", "ant", f"ant [b]{i}[/b]") for i in range(2))
    with Reporter(Console(file=out, width=40)) as report:
        for event in (
            Planned((one, two), 3, 2), RunStarted(one), RunProgress(one, 1, 4, "drawing"), RunDone(one, 65.2),
            RunStarted(two), RunRetried(two, "the worker died (signal 9)"), RunStarted(two),
            RunFailed(two, "ValueError: no", "…"), Stopping(),
        ):  # fmt: skip
            report(event)
    print_summary(Summary(1, 3, 1, 0, 3725.0, ((two, "ValueError: no"),)), Console(file=out, width=200))
    lines = [re.sub(r" {3,}", " ", line.rstrip()) for line in out.getvalue().splitlines()]
    assert lines == [
        "2 runs to compute, 2 at a time, 3 done already.",
        "start tiny ant [b]0[/b]",
        "1/2 done tiny ant [b]0[/b]  1 min 05 s",
        "start tiny ant [b]1[/b]",
        "again tiny ant [b]1[/b]  the worker died (signal 9)",
        "start tiny ant [b]1[/b]",
        "2/2 failed  tiny ant [b]1[/b]  ValueError: no",
        "Stopping: finished runs are published, the others are dropped.",
        "done 1",
        "skipped, done already 3",
        "failed, tried again next time 1",
        "time 1 h 02 min",
        "failed tiny ant [b]1[/b] (id1): ValueError: no",
    ]


def test_the_report_draws_bars_on_a_terminal() -> None:
    out = io.StringIO()
    run = RunRef("id", "tiny", "ant", "ant")
    with Reporter(Console(file=out, width=100, force_terminal=True)) as report:
        for event in (Planned((run,), 0, 1), RunStarted(run), RunProgress(run, 1, 4, "drawing")):
            report(event)
        report._progress.refresh()
        drawn = Console(width=100).render_lines(report._progress.get_renderable())
        text = "\n".join("".join(segment.text for segment in line) for line in drawn)
        report(RunDone(run, 1.0))
    assert "all runs" in text
    assert text.count("25%") == 2, "the run's bar and the overall one"
    assert "drawing" in text


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.417, "0.42 s"),
        (9.99, "9.99 s"),
        (12.4, "12 s"),
        (59.6, "1 min 00 s"),
        (185, "3 min 05 s"),
        (3600, "1 h 00 min"),
    ],
)
def test_duration(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_finished_work_is_handed_over_not_redone(tmp_path: Path) -> None:
    """A cluster repeats tasks whose result was lost; somebody may be reading their shards."""
    work = Work.of(study(), plan(1)[0], tmp_path)
    first = perform(work)
    shard = first.shards(NUMBERS.name)[0]
    written = shard.stat().st_ino
    again = perform(work)
    assert again == first and again.row.status == "done"
    assert shard.stat().st_ino == written
