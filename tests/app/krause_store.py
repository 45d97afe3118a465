"""A store of every kind of Krause run, small and with known numbers: nothing is trained."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data.blobs import encode_map
from data.publish import StagedRun, publish
from data.records import krause_attention as tables
from data.runs import RunRow, run_id
from data.schema import TableSpec
from precompute.studies.krause_attention import (
    ADAPTED,
    BACK_COPY,
    KJV,
    OPERATORS,
    PARTICLES,
    PIXELS,
    VISION,
    KrauseConfig,
    Setting,
    back_copy_recipe,
    kjv_recipe,
    pixels_recipe,
    vision_recipe,
)
from tests.app.small_store import stage

Rows = Mapping[TableSpec, Sequence[Mapping[str, Any]]]
SOFTMAX: Setting = ("softmax", None, None)
STEPS = (0, 100, 800)


def staged(folder: Path, config: KrauseConfig, rows: Rows) -> StagedRun:
    """A finished run of `config` with `rows`."""
    settings = config.model_dump(mode="json")
    name = run_id("krause_attention", 1, settings)
    run = RunRow(
        run_id=name,
        study="krause_attention",
        study_version=1,
        subject=config.subject,
        config=json.dumps(settings),
        profile="smoke",
        seed=config.seed,
        device="cpu",
        device_reason="no CUDA device is visible",
        versions=json.dumps({"python": "3.11.2"}),
        source_hash="ef" * 32,
        started="2026-01-02T03:04:05+00:00",
        seconds=1.0,
        status="done",
        error=None,
    )
    return stage(folder / name, run, {spec: [dict(row) for row in found] for spec, found in rows.items()})


def text(folder: Path, subject: str, setting: Setting, seed: int, mass: float, nats: float) -> StagedRun:
    """A network of sequences whose first-token mass ends at `mass` and whose loss ends at `nats`."""
    recipe = (back_copy_recipe if subject == BACK_COPY else kjv_recipe)(setting, seed)
    layers, heads = recipe.network.layers, recipe.network.heads
    sinks = [
        {
            "step": step,
            "layer": layer,
            "head": head,
            "first_importance": [mass * part] * 4,
            "first_mass": mass * part,
            "early_first_mass": mass * part,
            "oldest_mass": mass * part,
            "null_mass": 0.1 if setting[0] == "null_key" else None,
            "effective_keys": 4.0,
            "gini": 0.5,
            "top_share": 0.5,
            "key_norm_ratio": 1.0,
        }
        for step, part in zip(STEPS, (0.1, 0.5, 1.0), strict=True)
        for layer in range(layers)
        for head in range(heads)
    ]
    training = [
        {
            "step": step,
            "split": "validation",
            "loss_nats": nats + 800 - step,
            "accuracy": 0.5,
            "examples": 100,
            "seconds": 1.0,
        }
        for step in STEPS
    ]
    if subject == BACK_COPY:
        training.append(training[0] | {"split": "floor", "loss_nats": 1.0, "accuracy": None})
    profiles = [
        {"layer": layer, "head": head, "first_by_query": [mass] * 16, "distance_mass": [0.5, 0.5]}
        for layer in range(layers)
        for head in range(heads)
    ]
    rows: dict[TableSpec, list[dict[str, Any]]] = {
        tables.SINKS: sinks,
        tables.TRAINING: training,
        tables.PROFILES: profiles,
        tables.RESULTS: [result(recipe.network.length, nats)],
    }
    if seed == 0:
        weights = np.tril(np.full((16, 16), 0.05, np.float32))
        weights[:, 0] += mass
        rows[tables.MAPS] = [
            {"sample": 0, "layer": layer, "head": head, **packed(weights)}
            for layer in range(layers)
            for head in range(heads)
        ]
        rows[tables.TOKENS] = [
            {"sample": 0, "position": i, "token": c} for i, c in enumerate(["<s>", *"abcdefghijklmno"])
        ]
        if subject == KJV:
            rows[tables.TEXTS] = [{"number": 0, "prompt": "In the <b>", "completion": "beginning *was*"}]
    config = KrauseConfig(subject=subject, seed=seed, task="text", recipe=recipe, maps=seed == 0)
    return staged(folder, config, rows)


def packed(weights: np.ndarray) -> dict[str, Any]:
    """A map as its columns."""
    rows, cols = weights.shape
    return {"rows": rows, "cols": cols, "codec": "f16", "weights": encode_map(weights, "f16")}


def result(length: int, nats: float, accuracy: float = 0.5, seconds: float = 10.0) -> dict[str, Any]:
    """The results row of a training."""
    return {
        "length": length,
        "parameters": 1_000,
        "pairs": 316,
        "pairs_dense": 2_500,
        "pairs_kept": 150,
        "loss_nats": nats,
        "accuracy": accuracy,
        "predictions": 10_000,
        "train_seconds": seconds,
        "updates": 800,
        "forward_ms": 10.0,
        "batch": 8,
        "checkpoint": "",
    }


def vision(folder: Path, setting: Setting, seed: int, accuracy: float) -> StagedRun:
    """A vision transformer with one image, whose class token looks at patch 1 alone."""
    recipe = vision_recipe(setting, seed)
    rows: dict[TableSpec, list[dict[str, Any]]] = {
        tables.RESULTS: [result(50, 0.4, accuracy, 20.0 if setting[0] == "krause" else 10.0)]
    }
    if seed == 0:
        weights = np.full((50, 50), 0.02, np.float32)
        rows[tables.MAPS] = [
            {"sample": n, "layer": layer, "head": head, **packed(weights)}
            for n in range(2)
            for layer in range(3)
            for head in range(4)
        ]
        rows[tables.IMAGES] = [image("classified", n, n) for n in range(2)]
    config = KrauseConfig(subject=VISION, seed=seed, task="vision", recipe=recipe, maps=seed == 0)
    return staged(folder, config, rows)


def image(role: str, number: int, label: int) -> dict[str, Any]:
    """A grey picture whose brightness is its number."""
    seen = role == "classified"
    return {
        "role": role,
        "number": number,
        "label": label,
        "predicted": label if seen else None,
        "probability": 0.9 if seen else None,
        "given_rows": 28 if seen else 14,
        "height": 28,
        "width": 28,
        "pixels": bytes([10 + number]) * 784,
    }


def pixels(folder: Path, setting: Setting, seed: int, nats: float, seconds: float) -> StagedRun:
    """A pixel transformer that writes an image in `seconds` / 4."""
    memory = {"krause": "ring", "linear": "state"}.get(setting[0], "full")
    rows: dict[TableSpec, list[dict[str, Any]]] = {tables.RESULTS: [result(784, nats)]}
    if seed == 0:
        rows[tables.IMAGES] = [image(role, n, n) for role in ("truth", "completion") for n in range(3)]
        rows[tables.GENERATION] = [
            {
                "memory": memory,
                "repetition": r,
                "tokens": 784,
                "batch": 4,
                "seconds": seconds + r / 100,
                "memory_bytes": 1_000 if memory == "ring" else 6_000,
            }
            for r in range(3)
        ]
    recipe = pixels_recipe(setting, seed)
    return staged(
        folder, KrauseConfig(subject=PIXELS, seed=seed, task="pixels", recipe=recipe, maps=seed == 0), rows
    )


def operator(folder: Path, path: str, topk: int | None, power: float, scale: float) -> StagedRun:
    """An operator whose time is a power law."""
    rows = [
        {
            "path": path,
            "topk": topk or 0,
            "length": n,
            "direction": way,
            "repetition": r,
            "seconds": scale * n**power * (1 + r / 1_000),
            "peak_bytes": 1_000 * n,
        }
        for n in (256, 512, 1_024, 2_048, 4_096, 8_192)
        for way in ("forward", "forward+backward")
        for r in range(3)
    ]
    config = KrauseConfig.model_validate(
        {"subject": OPERATORS, "task": "cost", "path": path, "window": 128, "topk": topk, "steps": 8_192}
    )
    return staged(folder, config, {tables.COST: rows})


def particle_run(folder: Path, rule: str, parameter: float, clusters: int, apart: float | None) -> StagedRun:
    """Particles that end in `clusters` clusters from every start."""
    rows = [
        {
            "rule": rule,
            "parameter": parameter,
            "start": start,
            "step": step,
            "order": 0.5,
            "difference": apart,
            "clusters": clusters if step else 50,
        }
        for start in range(3)
        for step in (0, 3_000)
    ]
    config = KrauseConfig.model_validate(
        {"subject": PARTICLES, "task": "particles", "rule": rule, "parameter": parameter, "steps": 3_000}
    )
    return staged(folder, config, {tables.PARTICLES: rows})


def adapted(folder: Path, seed: int, standard: float) -> StagedRun:
    """A pretrained model of two layers whose standard branch ends at `standard`."""
    values = {
        "base": (0.6, None, 0.6, None),
        "trained": (standard, 0.05, 0.8 * standard + 0.01, 0.2),
        "control": (0.6, None, 0.6, None),
    }
    heads = [
        {
            "stage": stage,
            "layer": layer,
            "head": head,
            "standard_first": first,
            "krause_first": krause,
            "mixed_first": mixed,
            "gate": gate,
        }
        for stage, (first, krause, mixed, gate) in values.items()
        for layer in range(2)
        for head in range(2)
    ]
    training = [
        {"step": step, "split": split, "loss_nats": nats, "accuracy": None, "examples": 10, "seconds": 1.0}
        for split, ends in (("validation", (3.3, 3.1)), ("control", (3.2, 3.1)))
        for step, nats in zip((0, 24), ends, strict=True)
    ]
    config = KrauseConfig(subject=ADAPTED, seed=seed, task="adapt", window=32, topk=16, steps=24)
    return staged(folder, config, {tables.ADAPTATION: heads, tables.TRAINING: training})


def fill(path: Path, folder: Path) -> None:
    """Every kind of run, three seeds: the claims' verdicts follow from the numbers here."""
    runs: list[StagedRun] = []
    for seed, wobble in enumerate((-0.01, 0.0, 0.01)):
        for setting, mass in (
            (SOFTMAX, 0.75),
            (("null_key", None, None), 0.74),
            (("krause", 64, 8), 0.2),
            (("krause", 16, 8), 0.01),
            (("window_topk", 64, 8), 0.75),
            (("rbf", None, None), 0.2),
        ):
            runs.append(text(folder, BACK_COPY, setting, seed, mass + (wobble if mass > 0.1 else 0), 1.7))
        for setting, mass in ((SOFTMAX, 0.02), (("krause", 64, 16), 0.01)):
            runs.append(text(folder, KJV, setting, seed, mass, 1.4 + wobble))
        for setting, accuracy in ((SOFTMAX, 0.85), (("krause", 1, 2), 0.87), (("window_topk", 1, 2), 0.87)):
            noise = wobble / 10 if setting[0] == "window_topk" else 0.0
            runs.append(vision(folder, setting, seed, accuracy + noise))
        for setting, nats, seconds in ((SOFTMAX, 1.0, 4.0), (("krause", 128, 96), 1.01 + wobble, 2.0)):
            runs.append(pixels(folder, setting, seed, nats, seconds))
    runs.append(text(folder, KJV, ("krause", 16, 4), 0, 0.01, 1.6))
    runs += [
        operator(folder, "gathered", 96, 1.02, 1e-6),
        operator(folder, "gathered", None, 1.0, 1e-6),
        operator(folder, "dense", None, 2.0, 1e-9),
        operator(folder, "sdpa", None, 2.0, 1e-10),
    ]
    runs += [
        particle_run(folder, "softmax", 1.0, 1, None),
        particle_run(folder, "radius", 0.5, 5, None),
        particle_run(folder, "rbf", 9.0, 3, 2e-15),
    ]
    runs += [adapted(folder, seed, 0.6) for seed in (0, 1)]
    publish(path, runs, tables.TABLES)
