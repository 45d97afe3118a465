"""The work of the attention-sink study: load a subject, look at it, write what was seen."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from data import paths
from data.blobs import encode_map
from data.records.attention_sinks import HEADS, INTERVENTIONS, LAYERS, MAPS, STREAMING, TOKENS
from data.schema import TableSpec
from models.attention.interventions import measure
from models.attention.streaming import DENSE, Policy, binned, stream_nll
from models.attention.tokens import token_kind
from models.attention.trace import LayerAttention, LayerStates, trace
from precompute.runs import subjects
from precompute.runs.attention_samples import Samples, batches, make_samples
from precompute.runs.subjects import Subject
from precompute.studies.attention_sinks import AttentionConfig
from precompute.study import Device, Recorder

_IMPORTANCE_STEPS = 2.0**14  # rounding makes published importances compress; error <= 3e-5
_STREAM_BINS = 32  # a stream is averaged over this many bins of equal length
_KEPT = (0, 1, 2, 4)  # Xiao et al. 2024, table 2


@lru_cache(maxsize=1)
def _subject(slug: str, device: str) -> Subject:
    """Kept between the runs of one worker: loading a model takes longer than tracing a text."""
    return subjects.load(slug, paths.cache_dir(), device)


def run(config: AttentionConfig, recorder: Recorder, device: Device) -> None:
    """One run of the study; see AttentionConfig for what it does."""
    recorder.progress(0, 1, "loading the model")
    subject = _subject(config.subject, device.name)
    samples = make_samples(config, subject, recorder)
    if config.task == "trace":
        _trace(config, subject, samples, recorder)
    elif config.task == "intervene":
        _intervene(subject, samples, recorder)
    else:
        _stream(config, subject, samples, recorder)


def _table(spec: TableSpec, columns: dict[str, Any]) -> pa.Table:
    """Columns of any length-one or sequence values to a table of `spec`."""
    return pa.table({c.name: pa.array(columns[c.name], type=c.type) for c in spec.columns})


def _trace(config: AttentionConfig, subject: Subject, samples: Samples, recorder: Recorder) -> None:
    _write_tokens(subject, samples, recorder)
    groups = batches(samples)
    total = subject.layers * len(groups)
    for number, group in enumerate(groups):
        ids = torch.tensor([samples.ids[i] for i in group])

        def on_attention(layer: LayerAttention, group: Any = group) -> None:
            recorder.write(HEADS.name, _heads(layer, group))

        def on_states(states: LayerStates, group: Any = group) -> None:
            recorder.write(LAYERS.name, _layers(states, group))

        def progress(done: int, _: int, before: int = number * subject.layers) -> None:
            recorder.progress(before + done, total, "tracing layers")

        def on_map(layer: int, sample: int, head: int, weights: npt.NDArray[np.float32]) -> None:
            recorder.write(MAPS.name, _map(layer, head, weights, config.codec))

        trace(
            subject.model,
            ids,
            on_attention=on_attention,
            on_states=on_states,
            on_map=on_map if config.maps and number == 0 else None,  # the first sample is in the first group
            map_samples=(0,),
            progress=progress,
        )


def _write_tokens(subject: Subject, samples: Samples, recorder: Recorder) -> None:
    columns: dict[str, list[Any]] = {c.name: [] for c in TOKENS.columns}
    for sample, ids in enumerate(samples.ids):
        pieces = subject.tokenizer.pieces(ids)
        columns["sample"] += [sample] * len(ids)
        columns["position"] += range(len(ids))
        columns["token_id"] += ids
        columns["token"] += pieces
        columns["kind"] += [
            token_kind(piece, special=subject.tokenizer.is_special(i))
            for i, piece in zip(ids, pieces, strict=True)
        ]
    recorder.write(TOKENS.name, _table(TOKENS, columns))


def _heads(layer: LayerAttention, group: Any) -> pa.Table:
    n, h, _ = layer.importance.shape
    importance = np.round(layer.importance * _IMPORTANCE_STEPS) / _IMPORTANCE_STEPS
    columns: dict[str, Any] = {
        "sample": np.repeat(np.asarray(group), h),
        "layer": np.full(n * h, layer.layer),
        "head": np.tile(np.arange(h), n),
        "importance": list(importance.reshape(n * h, -1)),
        "distance_mass": list(layer.distance_mass.reshape(n * h, -1)),
    }
    for column in HEADS.columns:
        if column.name not in columns:
            columns[column.name] = getattr(layer, column.name).reshape(-1)
    return _table(HEADS, columns)


def _layers(states: LayerStates, group: Any) -> pa.Table:
    columns: dict[str, Any] = {"sample": list(group), "layer": [states.layer] * len(group)}
    for column in LAYERS.columns:
        if column.name not in columns:
            columns[column.name] = getattr(states, column.name)
    return _table(LAYERS, columns)


def _map(layer: int, head: int, weights: npt.NDArray[np.float32], codec: str) -> pa.Table:
    rows, cols = weights.shape
    return _table(
        MAPS,
        {
            "sample": [0],
            "layer": [layer],
            "head": [head],
            "rows": [rows],
            "cols": [cols],
            "codec": [codec],
            "weights": [encode_map(weights, codec)],
        },
    )


def _intervene(subject: Subject, samples: Samples, recorder: Recorder) -> None:
    """Xiao et al. 2024, section 3.1: is it the token, or the place?"""
    tokenizer = subject.tokenizer
    replacements = {"a line break": "\n", "a full stop": ".", "“the”": " the", "“Paris”": " Paris"}
    ids = {name: tokenizer.encode(text, special=False)[0] for name, text in replacements.items()}
    ids["the start token"] = subject.bos_id
    batch = torch.tensor(samples.ids)
    for result in measure(
        subject.model,
        batch,
        ids,
        progress=lambda done, total: recorder.progress(done, total, "replacing the first token"),
    ):
        n, layers, heads = result.first_importance.shape
        first = tokenizer.pieces([int(i) for i in result.ids[:, 0]])
        top = np.take_along_axis(result.ids, result.top_key.reshape(n, -1), axis=1)
        flat = [int(i) for i in top.reshape(-1)]
        columns = {
            "sample": np.repeat(np.arange(n), layers * heads),
            "variant": [result.variant] * (n * layers * heads),
            "first_token": np.repeat(np.array(first, dtype=object), layers * heads),
            "layer": np.tile(np.repeat(np.arange(layers), heads), n),
            "head": np.tile(np.arange(heads), n * layers),
            "first_importance": result.first_importance.reshape(-1),
            "second_importance": result.second_importance.reshape(-1),
            "top_key": result.top_key.reshape(-1),
            "top_key_importance": result.top_key_importance.reshape(-1),
            "top_token": tokenizer.pieces(flat),
        }
        recorder.write(INTERVENTIONS.name, _table(INTERVENTIONS, columns))


def _stream(config: AttentionConfig, subject: Subject, samples: Samples, recorder: Recorder) -> None:
    """Xiao et al. 2024, figure 3: perplexity against stream position."""
    assert config.cache is not None  # the configuration's own validation
    policies = [DENSE, *(Policy(cache=config.cache, kept=kept) for kept in _KEPT)]
    steps = len(samples.ids) * len(policies)
    width = max(config.length // _STREAM_BINS, 1)
    for stream, ids in enumerate(samples.ids):
        for number, policy in enumerate(policies):

            def progress(done: int, total: int, before: int = stream * len(policies) + number) -> None:
                recorder.progress(before * total + done, steps * total, "streaming")

            nll = stream_nll(subject.model, torch.tensor(ids), policy, progress)
            recorder.write(STREAMING.name, _streaming(stream, policy, nll, width))


def _streaming(stream: int, policy: Policy, nll: npt.NDArray[np.float32], width: int) -> pa.Table:
    start, stop, tokens, mean = zip(*binned(nll, width), strict=True)
    n = len(start)
    return _table(
        STREAMING,
        {
            "stream": [stream] * n,
            "policy": ["dense" if policy.cache is None else "window"] * n,
            "kept": [policy.kept] * n,
            "cache": [policy.cache or 0] * n,
            "start": start,
            "stop": stop,
            "tokens": tokens,
            "nll_nats": mean,
        },
    )
