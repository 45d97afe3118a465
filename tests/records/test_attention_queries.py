"""Every query of the attention study on a store whose numbers are known by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data.blobs import encode_map
from data.publish import publish
from data.records import attention_sinks_causes_queries as causes
from data.records import attention_sinks_queries as queries
from data.records.attention_sinks import HEADS, INTERVENTIONS, LAYERS, MAPS, STREAMING, TABLES, TOKENS
from data.runs import RunRow, run_id
from data.store import Store, open_store
from precompute.studies.attention_sinks import AttentionConfig
from tests.app.small_store import stage

T = 10  # tokens per sample; position 2 is the last that 8 queries see

# Importance of position 0 by (sample, layer, head); elsewhere it is 0.1, but 0.5 at position 2 of (0, 1, 1).
FIRST = {(0, 0, 0): 0.1, (0, 0, 1): 0.2, (0, 1, 0): 0.4, (0, 1, 1): 0.6}
FIRST |= {(1, 0, 0): 0.1, (1, 0, 1): 0.4, (1, 1, 0): 0.4, (1, 1, 1): 0.8}


def _row(config: AttentionConfig) -> RunRow:
    dumped = config.model_dump(mode="json")
    return RunRow(
        run_id=run_id("attention_sinks", 1, dumped),
        study="attention_sinks",
        study_version=1,
        subject=config.subject,
        config=json.dumps(dumped),
        profile="smoke",
        seed=config.seed,
        device="cpu",
        device_reason="test",
        versions="{}",
        source_hash="0",
        started="2026-01-01T00:00:00+00:00",
        seconds=1.0,
        status="done",
    )


def _heads() -> list[dict[str, Any]]:
    rows = []
    for (sample, layer, head), first in FIRST.items():
        importance = [first] + [0.1] * (T - 1)
        if (sample, layer, head) == (0, 1, 1):
            importance[2] = 0.5
        rows.append(
            {c.name: 0.0 for c in HEADS.columns}
            | {
                "sample": sample,
                "layer": layer,
                "head": head,
                "importance": importance,
                "distance_mass": [1.0],
                "top_key": 0,
                "row_entropy_bits": float(sample),
            }
        )
    return rows


MAP = np.tril(np.arange(1, 26, dtype=np.float32).reshape(5, 5))
MAP /= MAP.sum(axis=1, keepdims=True)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder = tmp_path_factory.mktemp("store")
    trace = _row(AttentionConfig(subject="smollm2-135m-instruct", text="kjv", samples=2, length=T))
    stream = _row(
        AttentionConfig(
            subject="smollm2-135m-instruct", text="kjv", task="stream", cache=8, length=16, samples=2
        )
    )
    change = _row(
        AttentionConfig(subject="smollm2-135m-instruct", text="kjv", task="intervene", length=T, samples=2)
    )
    tokens = [
        {
            "sample": s,
            "position": p,
            "token_id": p,
            "token": f"t{p}",
            "kind": "punctuation" if p == 2 else "word",
        }
        for s in range(2)
        for p in range(T)
    ]
    layers = [
        {"sample": s, "layer": la, "max_abs": 100.0 * (s + 1), "max_position": s, "max_dimension": 3}
        | {"median_abs": 0.1, "first_token_norm": 9.0, "other_norm": 3.0}
        for s in range(2)
        for la in (-1, 0)
    ]
    maps = [
        {
            "sample": 0,
            "layer": la,
            "head": h,
            "rows": 5,
            "cols": 5,
            "codec": "f16",
            "weights": encode_map(MAP),
        }
        for la in range(2)
        for h in range(2)
    ]
    streaming = [
        {"stream": s, "policy": policy, "kept": kept, "cache": cache, "start": start, "stop": start + 8}
        | {"tokens": 8, "nll_nats": nll + s}
        for s in range(2)
        for policy, kept, cache, nlls in (("dense", 0, 0, (1.0, 1.0)), ("window", 0, 8, (1.0, 4.0)))
        for start, nll in zip((0, 8), nlls, strict=True)
    ]
    interventions = [
        {
            "sample": s,
            "variant": variant,
            "first_token": "x",
            "layer": 0,
            "head": h,
            "first_importance": value,
        }
        | {
            "second_importance": 0.35,
            "top_key": 0 if value > 0.3 else 1,
            "top_key_importance": 0.4,
            "top_token": "y",
        }
        for variant, values in (("removed", (0.5, 0.1)), ("original", (0.6, 0.5)))
        for s in range(2)
        for h, value in enumerate(values)
    ]
    path = folder / "traces.duckdb"
    staged = [
        stage(folder / "a", trace, {HEADS: _heads(), TOKENS: tokens, LAYERS: layers, MAPS: maps}),
        stage(folder / "b", stream, {STREAMING: streaming}),
        stage(folder / "c", change, {INTERVENTIONS: interventions}),
    ]
    publish(path, staged, TABLES)
    return open_store(path)


@pytest.fixture(scope="module")
def run(store: Store) -> str:
    runs = queries.trace_runs(store)
    assert len(runs) == 1
    return str(runs["run_id"].iloc[0])


def test_runs_are_told_apart_by_task(store: Store) -> None:
    runs = queries.trace_runs(store).iloc[0]
    assert (runs["text"], runs["bos"], runs["length"], runs["samples"], runs["has_maps"]) == (
        "kjv",
        False,
        T,
        2,
        True,
    )
    assert runs["content"] is None
    assert list(causes.stream_runs(store)["cache"]) == [8]
    assert len(causes.intervention_runs(store)) == 1


def test_heads_are_means_over_samples(store: Store, run: str) -> None:
    frame = queries.heads(store, run).set_index(["layer", "head"])
    assert frame.loc[(0, 1), "first_importance"] == pytest.approx(0.3, abs=1e-6)
    assert frame.loc[(1, 1), "first_importance"] == pytest.approx(0.7, abs=1e-6)
    assert frame.loc[(0, 0), "row_entropy_bits"] == 0.5
    assert list(frame["samples"]) == [2] * 4


@pytest.mark.parametrize(
    ("eps", "expected"), [(0.3, [0, 0.5, 1, 1]), (0.05, [1, 1, 1, 1]), (0.7, [0, 0, 0, 0.5])]
)
def test_sink_rate_counts_samples_above_eps(
    store: Store, run: str, eps: float, expected: list[float]
) -> None:
    assert list(queries.sink_rates(store, run, eps)["sink_rate"]) == expected


def test_sink_rate_of_another_position(store: Store, run: str) -> None:
    assert list(queries.sink_rates(store, run, 0.3, position=2)["sink_rate"]) == [0, 0, 0, 0.5]
    assert queries.sink_rates(store, run, 0.3, position=T).empty


def test_importance_by_position(store: Store, run: str) -> None:
    frame = queries.importance(store, run, 1, 1)
    assert list(frame["position"]) == list(range(T))
    assert frame["importance"][0] == pytest.approx(0.7) and frame["importance"][2] == pytest.approx(0.3)
    assert (frame["low"][0], frame["high"][0]) == pytest.approx((0.62, 0.78))
    assert list(frame["token"]) == [f"t{p}" for p in range(T)]


def test_map_and_thumbnails(store: Store, run: str) -> None:
    found = queries.attention_map(store, run, 1, 0)
    assert found is not None
    np.testing.assert_allclose(found, MAP, atol=2e-4)
    assert queries.attention_map(store, run, 7, 0) is None
    thumbs = queries.attention_thumbnails(store, run, size=2)
    assert thumbs is not None and thumbs.shape == (2, 2, 2, 2)
    # Rows 0-1 and 2-4, columns 0-1 and 2-4, each block at its largest weight.
    np.testing.assert_allclose(thumbs[0, 0], [[1.0, 0.0], [12 / 36, 13 / 36]], atol=1e-3)


def test_max_pool_keeps_a_single_hot_key() -> None:
    matrix = np.zeros((1000, 1000), dtype=np.float32)
    matrix[:, 777] = 0.9
    pooled = queries.max_pool(matrix, 48)
    assert pooled.shape == (48, 48)
    assert set(np.flatnonzero(pooled[0])) == {int(777 * 48 / 1000)}


def test_sinks_by_kind_leaves_out_keys_that_few_queries_see(store: Store, run: str) -> None:
    frame = queries.sinks_by_kind(store, run, 0.3).set_index("kind")
    assert frame.loc["first", "positions"] == 2 and frame.loc["first", "sinks"] == 5
    assert frame.loc["first", "rate"] == pytest.approx(5 / 8)
    assert frame.loc["punctuation", "sinks"] == 1 and frame.loc["punctuation", "rate"] == pytest.approx(1 / 8)
    assert frame.loc["word", "positions"] == 2  # position 1 of both samples; 3..9 are seen by fewer than 8


def test_sinks_by_layer_and_sample(store: Store, run: str) -> None:
    frame = queries.sinks_by_layer(store, run, 0.35)
    assert list(frame["rate"]) == [0.25, 1.0] and list(frame["strict_heads"]) == [0.0, 1.0]
    assert list(queries.sink_rate_by_sample(store, run, 0.35)["rate"]) == [0.5, 0.75]


def test_layers(store: Store, run: str) -> None:
    frame = queries.layers(store, run).set_index("layer")
    assert (
        frame.loc[-1, "max_abs"] == 150 and frame.loc[0, "at_first"] == 0.5 and frame.loc[0, "dimension"] == 3
    )


def test_interventions(store: Store) -> None:
    run = causes.intervention_runs(store)["run_id"].iloc[0]
    frame = causes.interventions(store, run, 0.3).set_index("variant")
    assert list(frame.index) == ["original", "removed"]
    assert frame.loc["original", "first_rate"] == 1 and frame.loc["removed", "first_rate"] == 0.5
    assert frame.loc["removed", "elsewhere_rate"] == 0.5 and frame.loc["removed", "second_rate"] == 1
    by_layer = causes.interventions_by_layer(store, run).set_index("variant")
    assert by_layer.loc["removed", "first_importance"] == pytest.approx(0.3)


def test_streaming(store: Store) -> None:
    run = causes.stream_runs(store)["run_id"].iloc[0]
    frame = causes.streaming(store, run).set_index(["policy", "start"])
    assert frame.loc[("window", 8), "perplexity"] == pytest.approx(np.exp(4.5))
    assert (
        frame.loc[("window", 8), "low"] == pytest.approx(np.exp(4))
        and frame.loc[("window", 8), "streams"] == 2
    )
    after = causes.streaming_after_eviction(store, run)
    window = after[after["policy"] == "window"].set_index("stream")["nll_nats"]
    assert list(window) == [4.0, 5.0]


def test_a_text_that_was_shorter_than_asked_for_says_so(tmp_path: Path) -> None:
    """A visitor asks for 20 chunks of 64 tokens and brings 2 of 24; readings speak of these."""
    from dataclasses import replace

    from tests.app import attention_store

    asked = attention_store.config(length=64, samples=20)
    there = attention_store.config(length=24, samples=2)
    staged = attention_store.trace(tmp_path / "staged", there)
    staged = replace(staged, row=replace(attention_store.row(there), config=json.dumps(asked)))
    publish(tmp_path / "traces.duckdb", [staged], TABLES)
    with open_store(tmp_path / "traces.duckdb") as store:
        run = queries.trace_runs(store).iloc[0]
    assert (run["length"], run["samples"]) == (64, 20)
    assert (run["tokens"], run["chunks"]) == (24, 2)
