"""Autoregressive models of pixels: bits per dimension, completions, and the speed of generation."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

from data.records.krause_attention import GENERATION, IMAGES
from data.sources.fashion_mnist import SIDE
from models.attention.generation import generate, memories, memory_kind
from models.attention.networks import Network
from models.checkpoints import save
from precompute.runs.krause_data import GREYS, as_pixels, pictures, task
from precompute.runs.krause_measuring import (
    checkpoint_name,
    held_out,
    table,
    write_attention,
    write_results,
    write_training,
)
from precompute.runs.krause_training import trained
from precompute.studies.krause_attention import KrauseConfig
from precompute.study import Device, Recorder

_COMPLETED = 6  # test images of different classes whose lower half is written on
_GIVEN = SIDE // 2
_BATCH = 4  # images generated side by side when timing
_REPETITIONS = 3
_CHUNKS = 4  # held-out images whose attention is measured


def run_pixels(config: KrauseConfig, recorder: Recorder, device: Device) -> None:
    """Train (or take from the cache), measure bits per dimension, complete images, time generation."""
    recipe = config.trained_recipe
    data = task(recipe)
    subject = trained(recipe, data.batches, recorder, device)
    tests = {}
    network: Network | None = None
    for step, network in subject.snapshots(device.name):
        recorder.progress(step, recipe.steps, "testing snapshots")
        tests[step] = held_out(network, data.held_out, device)
    assert network is not None
    write_attention(recipe.steps, network, data.held_out[0].inputs[:_CHUNKS].to(device.name), recorder)
    write_training(subject, tests, recorder)
    name = checkpoint_name(config.subject, recipe) if config.checkpoint else ""
    write_results(subject, network, tests[recipe.steps], data, name, recorder, device)
    if config.maps:
        _completions(network, config, recorder, device)
        _speed(network, recorder, device)
    if name:
        recorder.artefact(name, save(network, half=True))


def _completions(network: Network, config: KrauseConfig, recorder: Recorder, device: Device) -> None:
    """The lower half of held-out images, sampled given the upper half."""
    test = pictures(config.trained_recipe).test
    chosen = [int(np.flatnonzero(test.labels == label)[1]) for label in range(_COMPLETED)]
    tokens = as_pixels(test.images[chosen])
    given = tokens[:, : 1 + _GIVEN * SIDE].to(device.name)
    recorder.progress(0, 1, "completing images")
    generator = torch.Generator(device.name).manual_seed(config.seed)
    written = generate(network, given, SIDE * SIDE - _GIVEN * SIDE, temperature=1.0, generator=generator)
    rows: list[dict[str, Any]] = []
    for role, ids in (("truth", tokens), ("completion", written.cpu())):
        grey = ids[:, 1:].clamp(max=GREYS - 1).numpy().astype(np.float32) * (255 / (GREYS - 1))
        for number, index in enumerate(chosen):
            rows.append(
                {
                    "role": role,
                    "number": number,
                    "label": int(test.labels[index]),
                    "predicted": None,
                    "probability": None,
                    "given_rows": _GIVEN,
                    "height": SIDE,
                    "width": SIDE,
                    "pixels": np.rint(grey[number]).astype(np.uint8).tobytes(),
                }
            )
    recorder.write(IMAGES.name, table(IMAGES, rows))


def _speed(network: Network, recorder: Recorder, device: Device) -> None:
    """Wall clock of generating whole images with the smallest memory that is exact."""
    rows: list[dict[str, Any]] = []
    given = torch.full((_BATCH, 1), GREYS, device=device.name)
    for repetition in range(_REPETITIONS):
        recorder.progress(repetition, _REPETITIONS, "timing generation")
        held = memories(network)
        generator = torch.Generator(device.name).manual_seed(repetition)
        clock = time.perf_counter()
        generate(network, given, SIDE * SIDE, generator=generator, memory=held)
        seconds = time.perf_counter() - clock
        rows.append(
            {
                "memory": memory_kind(network),
                "repetition": repetition,
                "tokens": SIDE * SIDE,
                "batch": _BATCH,
                "seconds": seconds,
                "memory_bytes": sum(m.nbytes for m in held) // _BATCH,
            }
        )
    recorder.write(GENERATION.name, table(GENERATION, rows))
