"""The work of the attention-sink study: load a subject, look at it, write what was seen."""

from __future__ import annotations

from functools import lru_cache, partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from data import paths
from data.records.attention_sinks import INTERVENTIONS, MODELS, STREAMING, TOKENS
from models.attention.interventions import measure
from models.attention.streaming import DENSE, Policy, binned, stream_nll
from models.attention.trace import trace
from precompute.runs import attention_tables as rows
from precompute.runs import subjects
from precompute.runs.attention_looking import Looked, look
from precompute.runs.attention_samples import Samples, batches, make_samples
from precompute.runs.subjects import Subject
from precompute.studies.attention_sinks import SUBJECTS, AttentionConfig
from precompute.study import Device, Recorder

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
    samples = make_samples(config, subject.tokenizer, recorder)
    if config.task == "trace":
        recorder.write(MODELS.name, _card(subject))
        recorder.write(
            TOKENS.name, rows.tokens(samples.ids, subject.tokenizer.pieces, subject.tokenizer.is_special)
        )
        groups = tuple((group, torch.tensor([samples.ids[i] for i in group])) for group in batches(samples))
        look(config, Looked(subject.layers, partial(trace, subject.model), groups), recorder)
    elif config.task == "intervene":
        _intervene(subject, samples, recorder)
    else:
        _stream(config, subject, samples, recorder)


def _card(subject: Subject) -> pa.Table:
    """What the packaged models are, as they would be described if somebody brought them."""
    spec, settings = SUBJECTS[subject.slug], subject.model.config
    return rows.model(
        name=spec.title,
        format=spec.source,
        architecture=type(subject.model).__name__,
        family=str(settings.model_type),
        layers=subject.layers,
        heads=subject.heads,
        kv_heads=subject.kv_heads,
        parameters=subject.parameters,
        vocabulary=int(settings.vocab_size),
        max_positions=subject.max_positions,
        dtype="float32",
        tokenizer=f"{subject.tokenizer.vocabulary:,} tokens",
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
        recorder.write(INTERVENTIONS.name, rows.table(INTERVENTIONS, columns))


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
    return rows.table(
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
