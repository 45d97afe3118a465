"""Claims of the attention study, measured from runs with known numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from data.publish import publish
from data.records.attention_sinks import INTERVENTIONS, TABLES
from data.store import open_store
from models.intervals import bootstrap_mean
from precompute.studies.attention_sinks_claims import most_heads_sink, position_not_token
from precompute.study import Verdict
from tests.app import attention_store
from tests.app.small_store import stage

HEADS = 20


def publish_interventions(path: Path, sinking: dict[str, int]) -> str:
    """A run in which, of 20 heads, so many sink on the first position; its id."""
    settings = attention_store.config(task="intervene", maps=False, samples=1)
    rows = [
        {
            "sample": 0,
            "variant": variant,
            "first_token": "x",
            "layer": 0,
            "head": head,
            "first_importance": 0.9 if head < count else 0.1,
            "second_importance": 0.0,
            "top_key": 0,
            "top_key_importance": 0.9,
            "top_token": "x",
        }
        for variant, count in sinking.items()
        for head in range(HEADS)
    ]
    run = attention_store.row(settings)
    publish(path, [stage(path.parent / run.run_id, run, {INTERVENTIONS: rows})], TABLES)
    return run.run_id


def test_the_interval_is_of_the_mean_and_the_criterion_on_the_worst(tmp_path: Path) -> None:
    path = tmp_path / "traces.duckdb"
    sinking = {"original": 20, "removed": 3, "replaced: a": 20, "replaced: b": 19, "replaced: c": 17}
    run_id = publish_interventions(path, sinking)
    with open_store(path) as store:
        result = position_not_token(store)
    assert result.runs == (run_id,)
    assert result.value == pytest.approx((1 + 0.95 + 0.85) / 3)
    assert result.interval == pytest.approx(bootstrap_mean([1.0, 0.95, 0.85]))
    assert result.detail.endswith(
        "is 0.93 of the original's on average, 0.85 for the worst of 3 replacements."
    )
    assert result.verdict is Verdict.not_reproduced, "the worst replacement keeps less than 90 %"

    publish_interventions(tmp_path / "one" / "traces.duckdb", {"original": 20, "replaced: a": 19})
    with open_store(tmp_path / "one" / "traces.duckdb") as store:
        result = position_not_token(store)
    assert (result.value, result.interval, result.verdict) == (0.95, None, Verdict.reproduced)


def test_details_name_texts_by_their_titles(tmp_path: Path) -> None:
    path = tmp_path / "traces.duckdb"
    for texts, words in (
        (("code",), "20 chunks of Python code."),
        (("kjv",), "40 chunks of Genesis (King James) and Python code."),
        (("prose",), "60 chunks of Genesis (King James), Encyclopaedia prose and Python code."),
    ):
        runs = [
            attention_store.trace(
                tmp_path / "staged", attention_store.config(text=text, length=64, samples=20, maps=False)
            )
            for text in texts
        ]
        publish(path, runs, TABLES)
        with open_store(path) as store:
            assert most_heads_sink(store).detail.endswith(words)
