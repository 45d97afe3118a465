"""What every trained network is measured with: held-out loss, cost, and its own attention."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
import torch.nn.functional as F

from data.blobs import encode_map
from data.records.krause_attention import LAYERS, MAPS, RESULTS, SINKS, TRAINING
from data.schema import TableSpec
from models.attention import metrics
from models.attention.networks import LayerView, Network
from models.attention.specs import NetworkSpec, Recipe, kept_pairs, scored_pairs
from models.attention.support import Window
from models.attention.training import Batch
from precompute.runs.krause_data import Task
from precompute.runs.krause_training import Trained
from precompute.study import Device, Recorder

EARLY = 16  # queries 1..15 may see key 0 under every window of the study
_FORWARDS = 7

Floats = npt.NDArray[np.float64]
Tests = dict[int, tuple[float, float, int]]  # by step: loss in nats, accuracy, predictions


def table(spec: TableSpec, rows: list[dict[str, Any]]) -> pa.Table:
    """Rows of `spec` as its table."""
    return pa.Table.from_pylist(rows, schema=spec.arrow_schema)


@torch.no_grad()
def held_out(network: Network, batches: tuple[Batch, ...], device: Device) -> tuple[float, float, int]:
    """Held-out loss in nats per prediction, accuracy, and how many predictions."""
    nats = right = count = 0.0
    for batch in batches:
        logits = network(batch.inputs.to(device.name)).flatten(0, -2)
        targets = batch.targets.to(device.name).flatten()
        nats += float(F.cross_entropy(logits, targets, reduction="sum"))
        right += float((logits.argmax(-1) == targets).sum())
        count += len(targets)
    return nats / count, right / count, int(count)


@torch.no_grad()
def forward_ms(network: Network, batch: Batch, device: Device) -> float:
    """Median time of a forward pass of one batch."""
    inputs, times = batch.inputs.to(device.name), []
    for _ in range(_FORWARDS):
        clock = time.perf_counter()
        network(inputs)
        if device.name != "cpu":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - clock)
    return float(np.median(times)) * 1_000


def write_training(trained: Trained, tests: Tests, recorder: Recorder) -> None:
    """The log of the training, and the held-out loss at the snapshots."""
    recipe = trained.recipe
    rows: list[dict[str, Any]] = []
    before, each = 0, recipe.network.context if recipe.network.kind == "sequence" else 1
    for step, loss, accuracy, seconds in trained.rows:
        count = (step - before) * recipe.batch * each
        before = step
        rows.append(training_row(step, "train", loss, accuracy, count, seconds))
    for step, (loss, accuracy, count) in tests.items():
        spent = next((s for at, _, _, s in trained.rows if at >= step), trained.seconds) if step else 0.0
        rows.append(training_row(step, "validation", loss, accuracy, count, spent))
    recorder.write(TRAINING.name, table(TRAINING, rows))


def training_row(
    step: int, split: str, loss: float, accuracy: float | None, count: int, seconds: float
) -> dict[str, Any]:
    """A row of the training table."""
    return {
        "step": step,
        "split": split,
        "loss_nats": loss,
        "accuracy": accuracy,
        "examples": count,
        "seconds": seconds,
    }


def write_floor(nats: float, count: int, recorder: Recorder) -> None:
    """What no network can beat, where the process behind the data is known."""
    recorder.write(TRAINING.name, table(TRAINING, [training_row(0, "floor", nats, None, count, 0.0)]))


def write_results(
    trained: Trained,
    network: Network,
    test: tuple[float, float, int],
    data: Task,
    checkpoint: str,
    recorder: Recorder,
    device: Device,
) -> None:
    """The run's one row of outcomes."""
    spec = network.spec
    batch = data.held_out[0]
    row = {
        "length": spec.length,
        "parameters": network.parameter_count,
        "pairs": scored_pairs(spec),
        "pairs_dense": dense_pairs(spec),
        "pairs_kept": round(kept_pairs(spec)),
        "loss_nats": test[0],
        "accuracy": test[1],
        "predictions": test[2],
        "train_seconds": trained.seconds,
        "updates": trained.recipe.steps,
        "forward_ms": forward_ms(network, batch, device),
        "batch": len(batch.inputs),
        "checkpoint": checkpoint,
    }
    recorder.write(RESULTS.name, table(RESULTS, [row]))


def dense_pairs(spec: NetworkSpec) -> int:
    """Query-key pairs without a neighbourhood."""
    return spec.length**2 if spec.kind == "image" else Window().pairs(spec.length)


def checkpoint_name(subject: str, recipe: Recipe) -> str:
    """The name a checkpoint ships under: subject, mechanism, neighbourhood, seed."""
    net = recipe.network
    where = f"-w{net.window}" if net.attention.local else ""
    kept = f"-k{net.topk}" if net.attention.sparse and net.topk else ""
    return f"{subject}-{net.mechanism.replace('_', '-')}{where}{kept}-s{recipe.seed}.safetensors"


@torch.no_grad()
def views(network: Network, inputs: torch.Tensor) -> Iterator[tuple[LayerView, Floats]]:
    """Every block's view on `inputs`, and its weights as float64 (B, H, N, N)."""
    for view in network.layers(inputs):
        yield view, view.weights.double().cpu().numpy()


def write_attention(step: int, network: Network, inputs: torch.Tensor, recorder: Recorder) -> None:
    """Sink metrics of every head, and the state of every layer, at one step of training."""
    spec = network.spec
    sinks, layers = [], []
    for layer, (view, weights) in enumerate(views(network, inputs)):
        norms = view.key_norms.double().cpu().numpy()
        sinks += [
            _sinks(step, layer, head, weights[:, head], norms[:, head], spec) for head in range(spec.heads)
        ]
        sigma2 = network.blocks[layer].attention.sigma2  # type: ignore[union-attr]
        sigma = [] if sigma2 is None else sigma2.sqrt().flatten().tolist()  # type: ignore[operator]
        layers.append({"step": step, "layer": layer, "sigma": sigma, **_states(view.states.double())})
    recorder.write(SINKS.name, table(SINKS, sinks))
    recorder.write(LAYERS.name, table(LAYERS, layers))


def _sinks(step: int, layer: int, head: int, a: Floats, norms: Floats, spec: NetworkSpec) -> dict[str, Any]:
    """Metrics of one head over chunks; a (chunks, T, T), norms (chunks, T)."""
    length, null = a.shape[-1], spec.attention.null
    window = Window(spec.window if spec.attention.local else None)
    oldest = window.valid(length).argmax(axis=1)
    mass = a.sum(axis=-2)
    # A row with a null key sums to less than one; what the other keys get is spread as metrics expect.
    rows = a / a.sum(axis=-1, keepdims=True) if null else a
    return {
        "step": step,
        "layer": layer,
        "head": head,
        "first_importance": metrics.importance(a, causal=True)[:, 0],
        "first_mass": metrics.first_token_mass(a).mean(),
        "early_first_mass": a[:, 1:EARLY, 0].mean(),
        "oldest_mass": a[:, np.arange(1, length), oldest[1:]].mean(),
        "null_mass": float(1 - a.sum(axis=-1).mean()) if null else None,
        "effective_keys": metrics.effective_keys(rows).mean(),
        "gini": metrics.gini(mass).mean(),
        "top_share": metrics.top_share(mass).mean(),
        "key_norm_ratio": (norms[:, 0] / norms[:, 1:].mean(axis=-1)).mean(),
    }


def _states(states: torch.Tensor) -> dict[str, float]:
    """Token similarity and rank collapse of hidden states (chunks, T, width)."""
    length = states.shape[1]
    unit = F.normalize(states, dim=-1)
    together = unit.sum(dim=1).square().sum(-1) - unit.square().sum((-1, -2))
    about_mean = states - states.mean(dim=1, keepdim=True)
    return {
        "cosine": float((together / (length * (length - 1))).mean()),
        "residual": float((about_mean.norm(dim=(1, 2)) / states.norm(dim=(1, 2))).mean()),
    }


def write_maps(network: Network, inputs: torch.Tensor, recorder: Recorder) -> None:
    """Maps of every head on every one of `inputs`."""
    rows = []
    for layer, (_, weights) in enumerate(views(network, inputs)):
        for sample, head in np.ndindex(weights.shape[:2]):
            a = weights[sample, head].astype(np.float32)
            row = {"sample": sample, "layer": layer, "head": head, "rows": a.shape[0], "cols": a.shape[1]}
            rows.append(row | {"codec": "log8", "weights": encode_map(a, "log8")})
    recorder.write(MAPS.name, table(MAPS, rows))
