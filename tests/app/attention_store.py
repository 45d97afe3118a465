"""A store of every kind of attention run, small and with known numbers: no model is needed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data.blobs import encode_map
from data.publish import StagedRun, publish
from data.records.attention_sinks import HEADS, INTERVENTIONS, LAYERS, MAPS, STREAMING, TABLES, TOKENS
from data.runs import RunRow, run_id
from tests.app.small_store import stage

SMOLLM2, MINILM = "smollm2-135m-instruct", "all-minilm-l6-v2"
LAYER_COUNT, HEAD_COUNT = 5, 3
SINK = ((0.05, 0.05, 0.05), (0.6, 0.5, 0.4), (0.05, 0.05, 0.05), (0.9, 0.8, 0.7), (0.95, 0.2, 0.5))
SPREAD = 1.4  # of a drawn map's logits; its picture then takes as many bytes as one of SmolLM2's
WORDS = (" In", " the", " beginning", "<b>", "\n", "שלום", "\u200b", ".")


def map_of(length: int, sink: float, *, causal: bool = True, seed: int | None = None) -> np.ndarray:
    """A map that gives key 0 the share `sink` and spreads the rest: evenly, or by a seeded draw."""
    if seed is None:
        rest = np.ones((length, length))
    else:
        rest = np.exp(SPREAD * np.random.default_rng(seed).gumbel(size=(length, length)))
    if causal:
        rest = np.tril(rest)
    weights = (1 - sink) * rest / rest.sum(axis=1, keepdims=True)
    weights[:, 0] += sink
    return weights.astype(np.float32)


def config(subject: str = SMOLLM2, **settings: Any) -> dict[str, Any]:
    """A run's configuration."""
    return {
        "subject": subject,
        "seed": 0,
        "task": "trace",
        "text": "kjv",
        "content": None,
        "bos": False,
        "length": 24,
        "samples": 2,
        "maps": True,
        "codec": "f16",
        "cache": None,
    } | settings


def row(settings: dict[str, Any]) -> RunRow:
    """The provenance of a run."""
    return RunRow(
        run_id=run_id("attention_sinks", 1, settings),
        study="attention_sinks",
        study_version=1,
        subject=settings["subject"],
        config=json.dumps(settings),
        profile="smoke",
        seed=0,
        device="cpu",
        device_reason="no CUDA device is visible",
        versions=json.dumps({"python": "3.11.2"}),
        source_hash="cd" * 32,
        started="2026-01-02T03:04:05+00:00",
        seconds=1.0,
        status="done",
        error=None,
    )


def trace(
    folder: Path, settings: dict[str, Any], sinks: Sequence[Sequence[float]] = SINK, seed: int | None = None
) -> StagedRun:
    """A traced run whose heads give key 0 the shares `sinks`, [layer][head]."""
    length, samples = settings["length"], settings["samples"]
    causal = settings["subject"] == SMOLLM2
    tokens = [
        {"sample": s, "position": i, "token_id": i, "token": WORDS[i % len(WORDS)], "kind": _kind(i)}
        for s, i in np.ndindex(samples, length)
    ]
    heads: list[dict[str, Any]] = []
    maps: list[dict[str, Any]] = []
    for layer, line in enumerate(sinks):
        for head, sink in enumerate(line):
            weights = map_of(
                length, sink, causal=causal, seed=None if seed is None else seed + 97 * layer + head
            )
            heads += [
                {"sample": s, "layer": layer, "head": head, **scalars(weights, causal)}
                for s in range(samples)
            ]
            if settings["maps"]:
                place = {"sample": 0, "layer": layer, "head": head, "rows": length, "cols": length}
                maps.append({**place, "codec": "f16", "weights": encode_map(weights, "f16")})
    states = [_state(s, layer - 1) for s, layer in np.ndindex(samples, len(sinks) + 1)]
    run = row(settings)
    tables = {TOKENS: tokens, HEADS: heads, LAYERS: states} | ({MAPS: maps} if maps else {})
    return stage(folder / run.run_id, run, tables)


def _kind(position: int) -> str:
    return {"\n": "newline", ".": "punctuation"}.get(WORDS[position % len(WORDS)], "word")


def scalars(weights: np.ndarray, causal: bool) -> dict[str, Any]:
    """A row of attention_heads, without its place."""
    size = len(weights)
    importance = weights.sum(axis=0) / (size - np.arange(size) if causal else size)
    return {
        "importance": importance.tolist(),
        "first_token_mass": float(weights[1:, 0].mean()) if size > 1 else float("nan"),
        "row_entropy_bits": 2.0,
        "effective_keys": 4.0,
        "column_gini": 0.5,
        "top_key": 0,
        "top_key_importance": float(importance[0]),
        "top_key_share": float(importance[0]),
        "mean_distance": 7.0,
        "distance_mass": [1.0],
        "key_norm_ratio": 0.9,
        "value_norm_ratio": 0.2,
    }


def _state(sample: int, layer: int) -> dict[str, Any]:
    big = 400.0 if layer >= 1 else 4.0
    return {
        "sample": sample,
        "layer": layer,
        "max_abs": big,
        "max_position": 0,
        "max_dimension": 3,
        "median_abs": 0.2,
        "first_token_norm": 2 * big,
        "other_norm": 10.0,
    }


def intervene(folder: Path, text: str = "kjv") -> StagedRun:
    """The first token removed and replaced: the sink stays with the position."""
    settings = config(task="intervene", text=text, maps=False)
    rows = [
        {
            "sample": s,
            "variant": variant,
            "first_token": token,
            "layer": layer,
            "head": head,
            "first_importance": 0.5,
            "second_importance": 0.1,
            "top_key": 0,
            "top_key_importance": 0.5,
            "top_token": token,
        }
        for variant, token in (("original", " In"), ("removed", " the"), ("replaced: newline", "\n"))
        for s, layer, head in np.ndindex(2, LAYER_COUNT, HEAD_COUNT)
    ]
    run = row(settings)
    return stage(folder / run.run_id, run, {INTERVENTIONS: rows})


def stream(folder: Path, text: str = "kjv") -> StagedRun:
    """A sliding cache of 64 keys: perplexity e³ without the first token, e² with it."""
    settings = config(task="stream", text=text, maps=False, length=256, cache=64)
    rows = [
        {
            "stream": s,
            "policy": policy,
            "kept": kept,
            "cache": cache,
            "start": start,
            "stop": stop,
            "tokens": stop - start,
            "nll_nats": 3.0 if policy == "window" and kept == 0 and start >= 64 else 2.0,
        }
        for policy, kept, cache in (("dense", 0, 0), ("window", 0, 64), ("window", 1, 64), ("window", 4, 64))
        for s in range(2)
        for start, stop in ((1, 64), (64, 128), (128, 256))
    ]
    run = row(settings)
    return stage(folder / run.run_id, run, {STREAMING: rows})


def publish_all(path: Path) -> None:
    """Two models, four texts, runs without maps, an intervention and a stream."""
    folder = path.parent / "staged"
    runs = [
        trace(folder, config()),
        trace(folder, config(bos=True)),
        trace(folder, config(text="code", samples=1)),
        trace(folder, config(text="prose", samples=3, maps=False)),
        trace(folder, config(subject=MINILM), [[0.5, 0.4], [0.1, 0.8]]),
        intervene(folder),
        stream(folder),
    ]
    publish(path, runs, TABLES)
