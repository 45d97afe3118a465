"""Trained subjects: each recipe is trained once, resumes when it was interrupted, and is kept.

A trained network lies under the cache as snapshots at chosen steps and a log. Measuring reads the
snapshots and never trains again.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from data import paths
from models.attention.networks import Network
from models.attention.specs import Recipe
from models.attention.training import Batch, optimiser, started, train
from models.checkpoints import load, save
from precompute.study import Device, Recorder

_FORMAT = 1  # raised when the same recipe would be trained differently
_LOG_ROWS = 40
_RESUME_SECONDS = 30.0


@dataclass(frozen=True)
class Trained:
    """A trained network: its folder, and its log of (step, loss in nats, accuracy, seconds)."""

    recipe: Recipe
    folder: Path
    rows: tuple[tuple[int, float, float, float], ...]

    @property
    def seconds(self) -> float:
        """Training time."""
        return self.rows[-1][3]

    def snapshots(self, device: str) -> Iterator[tuple[int, Network]]:
        """The network at every step that was kept, in order; step 0 is before training."""
        for step in _kept(self.recipe):
            yield step, load((self.folder / _name(step)).read_bytes()).to(device)

    def network(self, device: str) -> Network:
        """The network at the end."""
        return load((self.folder / _name(self.recipe.steps)).read_bytes()).to(device)


@dataclass
class _State:
    step: int = 0
    seconds: float = 0.0
    rows: list[tuple[int, float, float, float]] = field(default_factory=list)
    sums: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])  # loss, accuracy, updates


def _kept(recipe: Recipe) -> list[int]:
    return sorted({0, recipe.steps, *(s for s in recipe.snapshots if s < recipe.steps)})


def _name(step: int) -> str:
    return f"step-{step:06d}.safetensors"


def trained(
    recipe: Recipe,
    batches: Callable[[int], Batch],
    recorder: Recorder,
    device: Device,
    root: Path | None = None,
) -> Trained:
    """The trained network of `recipe`, from the cache or trained now.

    `batches(step)` must give the same batch for the same step. Progress is reported and a stop
    asked for at every update; what was trained so far is kept and taken up again.
    """
    root = root or paths.cache_dir() / "trained"
    key = hashlib.sha256(f"{_FORMAT}\0{recipe.model_dump_json()}".encode()).hexdigest()[:16]
    folder = root / key
    root.mkdir(parents=True, exist_ok=True)
    with FileLock(root / f"{key}.lock"):
        if (done := _read(folder, recipe)) is not None:
            return done
        folder.mkdir(exist_ok=True)
        _train(recipe, batches, recorder, device, folder)
        done = _read(folder, recipe)
        assert done is not None
        return done


def _read(folder: Path, recipe: Recipe) -> Trained | None:
    try:
        rows = json.loads((folder / "log.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not all((folder / _name(step)).is_file() for step in _kept(recipe)):
        return None
    return Trained(recipe, folder, tuple(tuple(row) for row in rows))


def _train(
    recipe: Recipe, batches: Callable[[int], Batch], recorder: Recorder, device: Device, folder: Path
) -> None:
    network = started(recipe, device.name)
    steps = optimiser(network, recipe)
    state = _resumed(folder, network, steps)
    if state.step == 0:
        _put(folder / _name(0), save(network))
    every = max(1, recipe.steps // _LOG_ROWS)
    clock = saved = time.perf_counter()
    for step, loss, accuracy in train(network, recipe, batches, first=state.step, optimiser_=steps):
        recorder.progress(step, recipe.steps, "training")
        state.step = step
        state.sums = [state.sums[0] + float(loss), state.sums[1] + float(accuracy), state.sums[2] + 1]
        now = time.perf_counter()
        state.seconds, clock = state.seconds + now - clock, now
        if step % every == 0 or step == recipe.steps:
            total, right, count = state.sums
            state.rows.append((step, total / count, right / count, state.seconds))
            state.sums = [0.0, 0.0, 0.0]
        if step in _kept(recipe):
            _put(folder / _name(step), save(network))
        if now - saved > _RESUME_SECONDS:
            _keep(folder, network, steps, state)
            saved = now
        clock = time.perf_counter()  # what was written is no training time
    _put(folder / "log.json", json.dumps(state.rows).encode())
    (folder / "resume.pt").unlink(missing_ok=True)


def _keep(folder: Path, network: Network, steps: torch.optim.AdamW, state: _State) -> None:
    held = io.BytesIO()
    content = {"network": network.state_dict(), "optimiser": steps.state_dict(), "state": vars(state)}
    torch.save(content, held)
    _put(folder / "resume.pt", held.getvalue())


def _resumed(folder: Path, network: Network, steps: torch.optim.AdamW) -> _State:
    """Where an interrupted training stopped, with network and optimiser brought there; else the start."""
    try:
        kept: dict[str, Any] = torch.load(folder / "resume.pt", weights_only=True)
    except FileNotFoundError:
        return _State()
    network.load_state_dict(kept["network"])
    steps.load_state_dict(kept["optimiser"])
    return _State(**kept["state"])


def _put(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    writing = path.with_name(f".{path.name}.{os.getpid()}")
    writing.write_bytes(content)
    os.replace(writing, path)
