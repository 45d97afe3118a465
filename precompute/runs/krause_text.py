"""Language models with different attention: how well they predict, and where their sinks come from."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from data.records.krause_attention import PROFILES, TEXTS, TOKENS
from models.attention import metrics
from models.attention.generation import generate
from models.attention.networks import Network
from models.checkpoints import save
from precompute.runs.krause_data import chain, task
from precompute.runs.krause_measuring import (
    checkpoint_name,
    held_out,
    table,
    views,
    write_attention,
    write_floor,
    write_maps,
    write_results,
    write_training,
)
from precompute.runs.krause_training import trained
from precompute.studies.krause_attention import KrauseConfig
from precompute.study import Device, Recorder

_CHUNKS = 16  # of held-out text whose attention is measured
_SHOWN = 128  # tokens of the map that is kept
_PROMPTS = ("In the beginning ", "And the king said unto ", "Blessed are they that ")
_WRITTEN = 160  # bytes a completion has


def run_text(config: KrauseConfig, recorder: Recorder, device: Device) -> None:
    """Train (or take from the cache), then measure at every snapshot."""
    recipe = config.trained_recipe
    data = task(recipe)
    subject = trained(recipe, data.batches, recorder, device)
    inputs = data.held_out[0].inputs[:_CHUNKS].to(device.name)
    tests = {}
    network: Network | None = None
    steps = len(set(recipe.snapshots) | {0, recipe.steps})
    for number, (step, network) in enumerate(subject.snapshots(device.name)):
        recorder.progress(number, steps, "measuring snapshots")
        tests[step] = held_out(network, data.held_out, device)
        write_attention(step, network, inputs, recorder)
    assert network is not None
    write_training(subject, tests, recorder)
    if recipe.data == "back-copy":
        ids = torch.cat([data.held_out[0].inputs, data.held_out[0].targets[:, -1:]], 1).numpy()
        write_floor(chain().floor_nats(ids), ids[:, 1:].size, recorder)
    _profiles(network, inputs, recorder)
    name = checkpoint_name(config.subject, recipe) if config.checkpoint else ""
    write_results(subject, network, tests[recipe.steps], data, name, recorder, device)
    if config.maps:
        shown = inputs[:1, :_SHOWN]
        write_maps(network, shown, recorder)
        _tokens(shown, recipe.data, recorder)
        if recipe.data == "kjv":
            _completions(network, recipe.seed, recorder)
    if name:
        recorder.artefact(name, save(network, half=True))


def _profiles(network: Network, inputs: torch.Tensor, recorder: Recorder) -> None:
    rows: list[dict[str, Any]] = []
    for layer, (_, weights) in enumerate(views(network, inputs)):
        distances = metrics.fold(metrics.diagonal_mass(weights)).mean(axis=0)
        for head in range(weights.shape[1]):
            rows.append(
                {
                    "layer": layer,
                    "head": head,
                    "first_by_query": weights[:, head, :, 0].mean(axis=0),
                    "distance_mass": metrics.distance_mass(distances[head]),
                }
            )
    recorder.write(PROFILES.name, table(PROFILES, rows))


def _tokens(ids: torch.Tensor, data: str, recorder: Recorder) -> None:
    letters = ("<s>", *chain().characters) if data == "back-copy" else None
    rows = [
        {
            "sample": 0,
            "position": place,
            "token": letters[i] if letters else ("<s>" if i == 0 else bytes([i]).decode("latin-1")),
        }
        for place, i in enumerate(ids[0].tolist())
    ]
    recorder.write(TOKENS.name, table(TOKENS, rows))


def _completions(network: Network, seed: int, recorder: Recorder) -> None:
    rows = []
    for number, prompt in enumerate(_PROMPTS):
        given = torch.tensor([[0, *prompt.encode()]])
        generator = torch.Generator().manual_seed(seed)
        ids = generate(network, given, _WRITTEN, temperature=0.8, generator=generator)[0, given.shape[1] :]
        written = bytes(np.asarray(ids, np.uint8)).decode("utf-8", errors="replace")
        rows.append({"number": number, "prompt": prompt, "completion": written})
    recorder.write(TEXTS.name, table(TEXTS, rows))
