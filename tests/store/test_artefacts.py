"""Artefacts: from a staging folder beside the store, into what ships, and found again."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from data import paths
from data.artefacts import find, listing
from data.errors import CloudChamberError
from data.publish import export_published, import_published, publish, read_staged, remove_runs
from data.shipped import add_exported
from data.staged import StagedRun
from data.store import open_store
from tests.store.making import TABLES, row, stage

KILLS = 12


def staged_with(folder: Path, number: int, files: dict[str, bytes], **changes: object) -> StagedRun:
    """Run `number`, staged under `folder` with these artefacts."""
    shutil.rmtree(folder / row(number).run_id, ignore_errors=True)
    staged = stage(folder, number, **changes)
    if files:
        (staged.folder / "artefacts").mkdir()
    for name, content in files.items():
        (staged.folder / "artefacts" / name).write_bytes(content)
    return staged


def lying(home: Path) -> dict[str, bytes]:
    """Everything under `home`/artefacts, by relative path."""
    folder = home / "artefacts"
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def origin(tmp_path: Path, files: dict[int, dict[str, bytes]]) -> Path:
    """A store of these runs with their artefacts."""
    path = tmp_path / "origin" / "traces.duckdb"
    publish(path, [staged_with(tmp_path / "staging", n, made) for n, made in files.items()], TABLES)
    return path


def test_publishing_places_them_and_a_rerun_replaces_them(tmp_path: Path) -> None:
    path = origin(tmp_path, {0: {"a.bin": b"a0", "b.bin": b"b0"}, 1: {"a.bin": b"a1"}, 2: {}})
    first, second = row(0).run_id, row(1).run_id
    assert lying(path.parent) == {f"{first}/a.bin": b"a0", f"{first}/b.bin": b"b0", f"{second}/a.bin": b"a1"}
    publish(path, [staged_with(tmp_path / "again", 0, {"a.bin": b"new"}, seconds=9.0)], TABLES)
    assert lying(path.parent) == {f"{first}/a.bin": b"new", f"{second}/a.bin": b"a1"}
    failed = staged_with(tmp_path / "failed", 3, {"c.bin": b"c"}, status="failed", error="no")
    assert publish(path, [failed], TABLES) == 1
    assert not (path.parent / "artefacts" / row(3).run_id).exists(), "a failed run publishes none"
    remove_runs(path, [first])
    assert lying(path.parent) == {f"{second}/a.bin": b"a1"}
    assert sorted(os.listdir(path.parent / "artefacts")) == [second]


def test_they_are_there_before_the_store_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the moment of the rename every artefact lies in its place, whole."""
    path = tmp_path / "traces.duckdb"
    seen: list[dict[str, bytes]] = []
    rename = os.replace

    def watched(source: Path, target: Path) -> None:
        if target == path:
            seen.append(lying(tmp_path))
        rename(source, target)

    monkeypatch.setattr(os, "replace", watched)
    publish(path, [staged_with(tmp_path / "staging", 0, {"a.bin": b"a0"})], TABLES)
    assert seen == [{f"{row(0).run_id}/a.bin": b"a0"}]


def test_a_full_disk_leaves_store_and_artefacts_as_they_were(tmp_path: Path) -> None:
    path = origin(tmp_path, {0: {"a.bin": b"a0"}})
    before, size = path.read_bytes(), path.stat().st_size
    staged = staged_with(tmp_path / "more", 0, {"a.bin": b"x" * size * 4}, seconds=7.0)
    code = f"""
import resource
from pathlib import Path
from data.errors import CloudChamberError
from data.publish import publish, read_staged
from tests.store.making import TABLES
resource.setrlimit(resource.RLIMIT_FSIZE, ({size * 3},) * 2)
try:
    publish(Path({str(path)!r}), [read_staged(Path({str(staged.folder)!r}))], TABLES)
except CloudChamberError as error:
    print(error.kind)
"""
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout == "disk_full\n", child.stderr
    assert path.read_bytes() == before
    assert find("a.bin", home=path.parent, published=tmp_path).read_bytes() == b"a0"
    assert [a.name for a in listing(home=path.parent, published=tmp_path)] == ["a.bin"]
    publish(path, [staged_with(tmp_path / "less", 0, {"a.bin": b"a2"}, seconds=8.0)], TABLES)
    assert lying(path.parent) == {f"{row(0).run_id}/a.bin": b"a2"}, "what it was writing is gone too"


def publish_for_ever(path: Path, staging: Path, seed: int, started: Connection) -> None:
    """Publish runs, new ones and replacements, until killed; says so before each."""
    rng = random.Random(seed)
    while True:
        started.send(None)
        staged = read_staged(staging / row(rng.randrange(8)).run_id)
        assert staged is not None
        publish(path, [replace(staged, row=replace(staged.row, seconds=rng.random()))], TABLES)


def test_kill_while_publishing(tmp_path: Path) -> None:
    """Killed at random moments: every stored run has its artefact, whole; at worst there are orphans."""
    path = tmp_path / "home" / "traces.duckdb"
    contents = {number: bytes([number]) * 300_000 for number in range(8)}
    for number, content in contents.items():
        staged_with(tmp_path / "staging", number, {f"model-{number}.bin": content})
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.store.test_artefacts"])
    rng = random.Random(7)
    for seed in range(KILLS):
        receive, send = context.Pipe(duplex=False)
        child = context.Process(target=publish_for_ever, args=(path, tmp_path / "staging", seed, send))
        child.start()
        receive.recv()
        time.sleep(rng.uniform(0, 0.15))
        child.kill()
        child.join()
        if path.exists():
            with open_store(path) as store:
                stored = set(store.runs()["run_id"])
            for number, content in contents.items():
                if row(number).run_id in stored:
                    name = f"model-{number}.bin"
                    assert find(name, home=path.parent, published=tmp_path).read_bytes() == content
        for artefact in listing(home=path.parent, published=tmp_path):
            assert artefact.path.stat().st_size == 300_000, "a part of a file is never called an artefact"
    staged = [read_staged(folder) for folder in sorted((tmp_path / "staging").iterdir())]
    publish(path, [s for s in staged if s is not None], TABLES)
    assert lying(path.parent) == {f"{row(n).run_id}/model-{n}.bin": c for n, c in contents.items()}


def test_export_ships_them_with_their_hashes(tmp_path: Path) -> None:
    path = origin(tmp_path, {0: {"a.bin": b"a0"}, 1: {"b.bin": b"b1"}, 2: {"a.bin": b"a2"}})
    folder = tmp_path / "published"
    written = export_published(path, folder, [row(0).run_id, row(1).run_id])
    assert [f.name for f in written if f.parent.name == "artefacts"] == ["a.bin", "b.bin"]
    assert json.loads((folder / "manifest.json").read_text())["artefacts"] == [
        {"name": n, "run_id": row(i).run_id, "bytes": 2, "sha256": hashlib.sha256(c).hexdigest()}
        for i, (n, c) in enumerate({"a.bin": b"a0", "b.bin": b"b1"}.items())
    ]
    before = {f: f.read_bytes() for f in folder.rglob("*") if f.is_file()}
    export_published(path, folder, [row(1).run_id, row(0).run_id])
    assert {f: f.read_bytes() for f in folder.rglob("*") if f.is_file()} == before

    with pytest.raises(CloudChamberError, match=r"both have an artefact 'a\.bin'") as caught:
        export_published(path, folder, [row(0).run_id, row(2).run_id])
    assert caught.value.kind == "artefact_twice"
    assert {f: f.read_bytes() for f in folder.rglob("*") if f.is_file()} == before

    export_published(path, folder, [row(2).run_id])
    assert [f.read_bytes() for f in (folder / "artefacts").iterdir()] == [b"a2"], "stale ones are gone"
    remove_runs(path, [row(2).run_id])
    publish(path, [staged_with(tmp_path / "staging", 2, {})], TABLES)
    export_published(path, folder, [row(2).run_id])
    assert not (folder / "artefacts").exists()


def test_an_artefact_too_big_for_the_repository_is_refused(tmp_path: Path) -> None:
    path = origin(tmp_path, {0: {"big.bin": bytes(50_001)}})
    with pytest.raises(CloudChamberError, match=r"artefact big\.bin takes 0\.1 MB") as caught:
        export_published(path, tmp_path / "published", [row(0).run_id], max_bytes=50_000)
    assert caught.value.kind == "published_too_big"
    assert not (tmp_path / "published").exists()


def test_runs_that_came_with_the_sources_keep_theirs_when_exported(tmp_path: Path) -> None:
    """They are only in the folder they came from; the exporter takes them from there."""
    folder, home = tmp_path / "published", tmp_path / "home"
    export_published(origin(tmp_path, {0: {"a.bin": b"a0"}}), folder, [row(0).run_id])
    import_published(folder, home / "traces.duckdb")
    assert not (home / "artefacts").exists()
    publish(home / "traces.duckdb", [staged_with(tmp_path / "more", 1, {"b.bin": b"b1"})], TABLES)
    both = [row(0).run_id, row(1).run_id]
    for target in (tmp_path / "elsewhere", folder):
        export_published(home / "traces.duckdb", target, both, shipped=folder)
        assert lying(target) == {"a.bin": b"a0", "b.bin": b"b1"}


def test_another_export_brings_its_artefacts_along(tmp_path: Path) -> None:
    folder, home = tmp_path / "exported", tmp_path / "home"
    path = origin(tmp_path, {0: {"a.bin": b"a0"}, 1: {"b.bin": b"b1"}})
    export_published(path, folder, [row(0).run_id, row(1).run_id])
    publish(home / "traces.duckdb", [staged_with(tmp_path / "more", 1, {"b.bin": b"mine"})], TABLES)
    assert add_exported(folder, home / "traces.duckdb").added == 1
    assert lying(home) == {f"{row(0).run_id}/a.bin": b"a0", f"{row(1).run_id}/b.bin": b"mine"}


def test_the_newest_local_one_is_found_before_the_shipped_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, home = tmp_path / "published", tmp_path / "home"
    export_published(origin(tmp_path, {0: {"a.bin": b"shipped", "s.bin": b"s"}}), folder, [row(0).run_id])
    publish(
        home / "traces.duckdb",
        [staged_with(tmp_path / "local", n, {"a.bin": b"local %d" % n}) for n in (1, 2)],
        TABLES,
    )
    for age, number in enumerate((2, 1)):  # run 2 was published last
        file = home / "artefacts" / row(number).run_id / "a.bin"
        os.utime(file, ns=(10**18, 10**18 - age))
    monkeypatch.setenv("CLOUDCHAMBER_HOME", str(home))
    monkeypatch.setattr("data.artefacts.published_dir", lambda: folder)
    assert find("a.bin").read_bytes() == b"local 2"
    assert find("s.bin") == folder / "artefacts" / "s.bin"
    assert [(a.name, a.run_id) for a in listing()] == [
        ("a.bin", row(2).run_id),
        ("a.bin", row(1).run_id),
        ("a.bin", row(0).run_id),
        ("s.bin", row(0).run_id),
    ]
    assert paths.artefacts_dir() == home / "artefacts"


def test_what_is_not_there_or_damaged_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "published"
    with pytest.raises(CloudChamberError, match="known are: none yet") as caught:
        find("a.bin", published=folder, home=tmp_path)
    assert caught.value.kind == "artefact_unknown"
    export_published(origin(tmp_path, {0: {"b.bin": b"b", "a.bin": b"a"}}), folder, [row(0).run_id])
    for name in ("c.bin", "../manifest.json", ""):
        with pytest.raises(CloudChamberError, match=r"known are: a\.bin, b\.bin") as caught:
            find(name, published=folder, home=tmp_path)
        assert "cloudchamber precompute" in caught.value.remedy
    (folder / "artefacts" / "a.bin").write_bytes(b"c")
    (folder / "artefacts" / "b.bin").unlink()
    for name in ("a.bin", "b.bin"):
        with pytest.raises(CloudChamberError) as caught:
            find(name, published=folder, home=tmp_path)
        assert caught.value.kind == "published_damaged"
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"a.bin"', '"../a.bin"'))
    with pytest.raises(CloudChamberError, match="cannot be read") as caught:
        listing(published=folder, home=tmp_path)
    assert caught.value.kind == "published_damaged"
