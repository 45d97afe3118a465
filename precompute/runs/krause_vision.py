"""Vision transformers with different attention: accuracy, cost, and where each patch looks."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from data.records.krause_attention import IMAGES
from data.sources.fashion_mnist import SIDE
from models.attention.networks import Network
from models.checkpoints import save
from precompute.runs.krause_data import as_images, pictures, task
from precompute.runs.krause_measuring import (
    checkpoint_name,
    held_out,
    table,
    write_maps,
    write_results,
    write_training,
)
from precompute.runs.krause_training import trained
from precompute.studies.krause_attention import KrauseConfig
from precompute.study import Device, Recorder

_SHOWN = 10  # test images whose maps are kept: the first of each class


def run_vision(config: KrauseConfig, recorder: Recorder, device: Device) -> None:
    """Train (or take from the cache), test on every held-out image, keep some maps."""
    recipe = config.trained_recipe
    data = task(recipe)
    subject = trained(recipe, data.batches, recorder, device)
    tests = {}
    network: Network | None = None
    for step, network in subject.snapshots(device.name):
        recorder.progress(step, recipe.steps, "testing snapshots")
        tests[step] = held_out(network, data.held_out, device)
    assert network is not None
    write_training(subject, tests, recorder)
    name = checkpoint_name(config.subject, recipe) if config.checkpoint else ""
    write_results(subject, network, tests[recipe.steps], data, name, recorder, device)
    if config.maps:
        _examples(network, config, recorder, device)
    if name:
        recorder.artefact(name, save(network, half=True))


@torch.no_grad()
def _examples(network: Network, config: KrauseConfig, recorder: Recorder, device: Device) -> None:
    test = pictures(config.trained_recipe).test
    chosen = [int(np.flatnonzero(test.labels == label)[0]) for label in range(_SHOWN)]
    inputs = as_images(test.images[chosen]).to(device.name)
    chances = network(inputs).softmax(-1).cpu()
    rows: list[dict[str, Any]] = []
    for number, index in enumerate(chosen):
        probability, predicted = chances[number].max(-1)
        rows.append(
            {
                "role": "classified",
                "number": number,
                "label": int(test.labels[index]),
                "predicted": int(predicted),
                "probability": float(probability),
                "given_rows": SIDE,
                "height": SIDE,
                "width": SIDE,
                "pixels": test.images[index].tobytes(),
            }
        )
    recorder.write(IMAGES.name, table(IMAGES, rows))
    write_maps(network, inputs, recorder)
