"""Sink metrics by the shortest possible loops over full maps, and tiny models to compute them on.

Nothing here uses models.attention: it is what the tracer is compared with.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import (
    AlbertConfig,
    AlbertModel,
    BertConfig,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
)

SMALL = {"vocab_size": 100, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 3}
GROUPED = {**SMALL, "num_attention_heads": 6, "num_key_value_heads": 2}


def tiny(kind: str, **settings: Any) -> PreTrainedModel:
    """A random model with peaked attention (weights four times the usual size)."""
    make: dict[str, Any] = {
        "llama": lambda: LlamaForCausalLM(LlamaConfig(**{**GROUPED, **settings})),
        "mistral": lambda: MistralForCausalLM(MistralConfig(**{**GROUPED, "sliding_window": 33, **settings})),
        "bert": lambda: BertModel(BertConfig(**{**SMALL, "num_attention_heads": 6, **settings})),
        "albert": lambda: AlbertModel(
            AlbertConfig(**{**SMALL, "embedding_size": 16, "num_attention_heads": 6, **settings})
        ),
    }
    torch.manual_seed(0)
    model: PreTrainedModel = make[kind]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4)
    model.set_attn_implementation("eager")
    return model


def eager(model: PreTrainedModel, ids: Tensor, mask: Tensor | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Attention `(N, L, H, T, T)` and hidden states `(N, L+1, T, D)` as transformers gives them.

    The last hidden state may have passed the model's final normalisation.
    """
    model.set_attn_implementation("eager")
    with torch.no_grad():
        out = model(ids, attention_mask=mask, output_attentions=True, output_hidden_states=True)
    attention = torch.stack(out.attentions, 1).double().numpy()
    return attention, torch.stack(out.hidden_states, 1).double().numpy()


def heads(attention: np.ndarray, causal: bool, valid: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """Every scalar and per-key metric of maps `(N, L, H, T, T)`; `valid (N, T)` marks real tokens."""
    n, layers, h, t, _ = attention.shape
    valid = np.ones((n, t), dtype=bool) if valid is None else valid
    rows: dict[str, list[Any]] = {}
    for sample in range(n):
        for layer in range(layers):
            for head in range(h):
                one = _head(attention[sample, layer, head], causal, valid[sample])
                for name, value in one.items():
                    rows.setdefault(name, []).append(value)
    return {k: np.array(v).reshape(n, layers, h, *np.shape(v[0])) for k, v in rows.items()}


def _head(a: np.ndarray, causal: bool, valid: np.ndarray) -> dict[str, Any]:
    t = len(a)
    real = [i for i in range(t) if valid[i]]
    importance, received = np.zeros(t), np.zeros(t)
    for k in range(t):
        judges = [q for q in real if q >= k or not causal]
        received[k] = a[real, k].sum()
        importance[k] = received[k] / len(judges) if judges else 0.0
    entropy = np.array([-sum(p * np.log2(p)) for p in (row[row > 0] for row in a[real])])
    bins = np.zeros((t - 1).bit_length() + 1)
    distance = 0.0
    away = np.abs(np.arange(t)[:, None] - np.arange(t))
    for d in range(t):
        mass = a[real][away[real] == d].sum()
        bins[d.bit_length()] += mass
        distance += mass * d
    later = [q for q in real if q > real[0]]
    some = [received[k] for k in real]
    m = len(some)
    differences = np.abs(np.subtract.outer(some, some)).sum()
    return {
        "importance": importance,
        "first_token_mass": np.mean([a[q, real[0]] for q in later]) if later else np.nan,
        "row_entropy_bits": entropy.mean(),
        "effective_keys": (2.0**entropy).mean(),
        "column_gini": differences / (2 * m * sum(some)) * m / (m - 1) if m > 1 else 0.0,
        "top_key_share": received.max() / received.sum(),
        "mean_distance": distance / len(real),
        "distance_mass": bins / bins.sum(),
    }
