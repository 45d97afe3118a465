"""Runs of models that were brought, with windows and without hidden states: no model is needed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data.blobs import encode_map
from data.publish import StagedRun
from data.records.attention_sinks import HEADS, MAPS, MODELS, TOKENS, WINDOWS
from tests.app import attention_store
from tests.app.attention_store import config, row
from tests.app.small_store import stage

WINDOWED, BARE, PICTURES = (f"brought-{digit * 16}" for digit in "abc")
LENGTH, WINDOW = 24, 6
GLOBAL = (2, 5)  # layers that see everything; the others see the last WINDOW tokens
SINKS = ((0.1, 0.2), (0.1, 0.1), (0.8, 0.4), (0.2, 0.1), (0.1, 0.1), (0.7, 0.1))
EVIL = '<img src=x onerror="alert(1)">'


def card(**more: Any) -> dict[str, Any]:
    """A row of attention_models."""
    return {
        "name": "mine.zip",
        "format": "Hugging Face folder, safetensors",
        "architecture": "Gemma3ForCausalLM",
        "family": "gemma3_text",
        "layers": len(SINKS),
        "heads": 2,
        "kv_heads": 1,
        "parameters": 268_100_000,
        "vocabulary": 262_144,
        "max_positions": 32_768,
        "dtype": "BF16",
        "tokenizer": "262,144 tokens",
    } | more


def local_map(sink: float, window: int | None) -> np.ndarray:
    """A causal map that gives key 0 the share `sink` wherever the window lets the query see it."""
    weights = attention_store.map_of(LENGTH, sink)
    if window is not None:
        apart = np.arange(LENGTH)[:, None] - np.arange(LENGTH)[None, :]
        weights = np.where(apart < window, weights, 0)
        weights /= weights.sum(axis=1, keepdims=True)
    return weights.astype(np.float32)


def trace(
    folder: Path,
    subject: str = WINDOWED,
    sinks: Sequence[Sequence[float]] = SINKS,
    windows: Sequence[int | None] | None = None,
    words: Sequence[str] = attention_store.WORDS,
    model: dict[str, Any] | None = None,
    **settings: Any,
) -> StagedRun:
    """A run of a brought model, two chunks, whose layers have `windows`; hidden states are not known."""
    run = row(config(subject, length=LENGTH, **settings))
    if windows is None:
        windows = [None if layer in GLOBAL else WINDOW for layer in range(len(sinks))]
    heads: list[dict[str, Any]] = []
    maps: list[dict[str, Any]] = []
    for layer, line in enumerate(sinks):
        for head, sink in enumerate(line):
            weights = local_map(sink, windows[layer])
            scalars = attention_store.scalars(weights, True)
            scalars |= {"key_norm_ratio": float("nan"), "value_norm_ratio": float("nan")}
            heads += [{"sample": s, "layer": layer, "head": head, **scalars} for s in range(2)]
            place = {"sample": 0, "layer": layer, "head": head, "rows": LENGTH, "cols": LENGTH}
            maps.append({**place, "codec": "f16", "weights": encode_map(weights, "f16")})
    tokens = [
        {"sample": s, "position": i, "token_id": i, "token": words[i % len(words)], "kind": "word"}
        for s, i in np.ndindex(2, LENGTH)
    ]
    seen = [
        {
            "layer": layer,
            "causal": True,
            "window": window,
            "first_seen": ((window or LENGTH) - 1) / (LENGTH - 1),
            "importance_ceiling": (window or LENGTH) / LENGTH,
        }
        for layer, window in enumerate(windows)
    ]
    tables = {TOKENS: tokens, HEADS: heads, MAPS: maps, WINDOWS: seen, MODELS: [model or card()]}
    return stage(folder / run.run_id, run, tables)
