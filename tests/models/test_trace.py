"""The streaming tracer against full maps from transformers, on tiny models of every kind."""

from __future__ import annotations

import sys
from subprocess import run
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from models.attention import kernel, metrics
from models.attention.kernel import Inputs, Workspace, attend
from models.attention.trace import IMPLEMENTATION, Trace, collect, trace
from models.attention.visibility import Plain
from tests.models import oracle

CAUSAL = {"llama": True, "mistral": True, "bert": False, "albert": False}
LOOSE = {"effective_keys": 5e-5, "mean_distance": 5e-5}  # of size T, the others of size 1


def ids_of(samples: int, length: int) -> Tensor:
    return torch.randint(0, 100, (samples, length), generator=torch.Generator().manual_seed(length))


def compare(traced: Trace, attention: np.ndarray, causal: bool, valid: np.ndarray | None = None) -> None:
    """Every metric of the trace against the oracle on transformers' maps."""
    expected = oracle.heads(attention, causal, valid)
    for name, value in expected.items():
        got = traced.attention[name]
        assert got.shape == value.shape, name
        np.testing.assert_allclose(got, value, atol=LOOSE.get(name, 1e-5), err_msg=name)
    importance = traced.attention["importance"]
    best = traced.attention["top_key"]
    picked = np.take_along_axis(importance, best[..., None], -1)[..., 0]
    np.testing.assert_array_equal(picked, traced.attention["top_key_importance"])


@pytest.mark.parametrize("kind", CAUSAL)
@pytest.mark.parametrize("length", [1, 2, 3, 17, 64, 65, 130])
def test_metrics_agree_with_eager_attention(kind: str, length: int) -> None:
    model, ids = oracle.tiny(kind), ids_of(2, length)
    attention, _ = oracle.eager(model, ids)
    compare(collect(model, ids), attention, CAUSAL[kind])


@pytest.mark.parametrize("kind", CAUSAL)
def test_maps_come_one_head_at_a_time_and_agree(kind: str) -> None:
    model, ids = oracle.tiny(kind), ids_of(3, 90)
    attention, _ = oracle.eager(model, ids)
    seen: list[tuple[int, int, int]] = []

    def on_map(layer: int, sample: int, head: int, weights: np.ndarray) -> None:
        seen.append((layer, sample, head))
        np.testing.assert_allclose(weights, attention[sample, layer, head], atol=1e-5)

    trace(model, ids, on_map=on_map, map_samples=(0, 2))
    assert seen == [(layer, n, head) for layer in range(3) for n in (0, 2) for head in range(6)]


@pytest.mark.parametrize("kind", CAUSAL)
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_neither_seen_nor_counted(kind: str, side: str) -> None:
    model, ids = oracle.tiny(kind), ids_of(3, 80)
    mask = torch.ones_like(ids)
    for sample, padding in enumerate((0, 7, 70)):
        if padding:
            mask[sample, :padding] = 0 if side == "left" else 1
            mask[sample, -padding:] = 0 if side == "right" else 1
    attention, _ = oracle.eager(model, ids, mask)
    traced = collect(model, ids, mask)
    compare(traced, attention, CAUSAL[kind], mask.bool().numpy())
    hidden = np.broadcast_to(mask.numpy()[:, None, None] == 0, traced.attention["importance"].shape)
    assert (traced.attention["importance"][hidden] == 0).all()
    if side == "right":  # a padded sample is the shorter sample
        alone = collect(model, ids[2:, :10])
        for name, value in alone.attention.items():
            got = traced.attention[name][2:]
            got = got[..., : value.shape[-1]] if value.ndim > 3 else got
            if name != "seen_by":
                np.testing.assert_allclose(got, value, atol=1e-4, err_msg=name)


def test_who_sees_what_is_counted() -> None:
    full = collect(oracle.tiny("bert"), ids_of(1, 20)).attention["seen_by"][0, 0]
    causal = collect(oracle.tiny("llama"), ids_of(1, 20)).attention["seen_by"][0, 0]
    window = collect(oracle.tiny("mistral", sliding_window=5), ids_of(1, 20)).attention["seen_by"][0, 0]
    assert full.tolist() == [20] * 20
    assert causal.tolist() == list(range(20, 0, -1))
    assert window.tolist() == [5] * 16 + [4, 3, 2, 1]


def test_a_sliding_window_keeps_its_ceiling() -> None:
    """Window 5 of 20: at most 5 queries see the first token, so its importance is at most 1/4."""
    model, ids = oracle.tiny("mistral", sliding_window=5), ids_of(4, 20)
    traced = collect(model, ids).attention
    assert traced["importance"][..., 0].max() <= metrics.window_importance_ceiling(5, 20) + 1e-6
    assert traced["first_token_mass"].max() <= metrics.window_mass_ceiling(5, 20) + 1e-6
    assert traced["distance_mass"][..., 4:].max() == 0  # nothing from 8 tokens on
    assert traced["distance_mass"][..., 3].max() > 0  # distance 4 is in the window, and in bin [4, 8)


def test_a_ready_made_mask_is_respected() -> None:
    """A 4-D boolean mask reaches the attention as it is."""
    model, ids = oracle.tiny("llama"), ids_of(1, 30)
    view = torch.tril(torch.ones(30, 30, dtype=torch.bool))
    view[10:, 3:9] = False
    model.set_attn_implementation("eager")
    additive = torch.where(view, 0.0, torch.finfo(torch.float32).min)[None, None]
    attention, _ = oracle.eager(model, ids, additive)
    for mask in (additive, view[None, None]):
        maps: dict[tuple[int, int, int], np.ndarray] = {}
        with torch.no_grad():
            _trace_with(model, ids, mask, maps)
        for (layer, sample, head), weights in maps.items():
            np.testing.assert_allclose(weights, attention[sample, layer, head], atol=1e-5)


def _trace_with(model: Any, ids: Tensor, mask: Tensor, maps: dict[tuple[int, int, int], np.ndarray]) -> None:
    """A forward pass whose mask is a tensor of our own, as a model with its own mask code makes it."""
    model.model.register_forward_pre_hook(
        lambda m, a, kw: (a, {**kw, "attention_mask": mask}), with_kwargs=True, prepend=True
    )
    try:
        trace(model, ids, on_map=lambda *at: maps.__setitem__(at[:3], at[3].copy()))
    finally:
        model.model._forward_pre_hooks.clear()
        model.model._forward_pre_hooks_with_kwargs.clear()


def test_grouped_queries_use_their_own_keys() -> None:
    """With 6 query and 2 key-value heads, heads 0-2 share one key, 3-5 the other."""
    model, ids = oracle.tiny("llama"), ids_of(1, 40)
    ratio = collect(model, ids).attention["key_norm_ratio"][0]
    assert (ratio[:, 0:3] == ratio[:, :1]).all()
    assert (ratio[:, 3:6] == ratio[:, 3:4]).all()
    assert not np.allclose(ratio[:, 0], ratio[:, 3])
    # The first layer's keys can be had directly; rotation does not change norms.
    layer = model.model.layers[0]
    with torch.no_grad():
        keys = layer.self_attn.k_proj(layer.input_layernorm(model.model.embed_tokens(ids)))[0].view(40, 2, 8)
        norms = keys.norm(dim=-1)
    np.testing.assert_allclose(ratio[0, [0, 3]], (norms[0] / norms[1:].mean(0)).numpy(), rtol=1e-5)


@pytest.mark.parametrize("kind", CAUSAL)
def test_hidden_states_agree_with_transformers(kind: str) -> None:
    model, ids = oracle.tiny(kind), ids_of(2, 33)
    mask = torch.ones_like(ids)
    mask[1, 20:] = 0
    _, hidden = oracle.eager(model, ids, mask)
    states = collect(model, ids, mask).states
    layers = hidden.shape[1] - (CAUSAL[kind])  # the last of a causal model has passed the final norm
    for sample, length in ((0, 33), (1, 20)):
        x = hidden[sample, :layers, :length]
        size = np.abs(x).reshape(layers, -1)
        place = size.argmax(1)
        np.testing.assert_allclose(states["max_abs"][sample, :layers], size.max(1), rtol=1e-5)
        np.testing.assert_array_equal(states["max_position"][sample, :layers], place // 48)
        np.testing.assert_array_equal(states["max_dimension"][sample, :layers], place % 48)
        lower = np.sort(size, axis=1)[:, (size.shape[1] - 1) // 2]
        np.testing.assert_allclose(states["median_abs"][sample, :layers], lower, rtol=1e-4)
        norms = np.linalg.norm(x, axis=-1)
        np.testing.assert_allclose(states["first_token_norm"][sample, :layers], norms[:, 0], rtol=1e-5)
        np.testing.assert_allclose(states["other_norm"][sample, :layers], norms[:, 1:].mean(1), rtol=1e-5)
    assert states["max_abs"].shape == (2, 4)


def test_shared_layers_are_counted_by_call() -> None:
    """ALBERT has one layer module, used three times here."""
    model, ids = oracle.tiny("albert"), ids_of(1, 12)
    assert len(model.encoder.albert_layer_groups) == 1
    order: list[tuple[str, int]] = []
    trace(
        model,
        ids,
        on_attention=lambda a: order.append(("attention", a.layer)),
        on_states=lambda s: order.append(("states", s.layer)),
    )
    assert order == [("states", -1)] + [(what, i) for i in range(3) for what in ("attention", "states")]


def test_values_that_need_a_second_token_are_nan_for_one() -> None:
    traced = collect(oracle.tiny("llama"), ids_of(2, 1))
    for name in ("first_token_mass", "key_norm_ratio", "value_norm_ratio"):
        assert np.isnan(traced.attention[name]).all(), name
    assert np.isnan(traced.states["other_norm"]).all()
    assert (traced.attention["importance"] == 1).all()
    assert (traced.attention["distance_mass"] == 1).all()


def test_tied_scores_are_uniform_attention() -> None:
    """With zero query weights every visible key weighs the same: H_T / T, whatever the text."""
    model = oracle.tiny("llama")
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight.zero_()
    for length in (2, 64, 130):
        traced = collect(model, ids_of(1, length)).attention
        uniform = metrics.uniform_causal_importance(length)
        np.testing.assert_allclose(traced["importance"][..., 0], uniform, atol=1e-6)
        np.testing.assert_allclose(traced["effective_keys"], (length + 1) / 2, rtol=1e-5)


@pytest.mark.parametrize("kind", CAUSAL)
@pytest.mark.parametrize("padded", [False, True])
def test_band_size_does_not_matter(kind: str, padded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = oracle.tiny(kind), ids_of(2, 50)
    mask = torch.ones_like(ids)
    mask[1, 41:] = 0
    given = mask if padded else None
    whole = collect(model, ids, given).attention
    for rows, budget in ((1, 1), (7, 1), (7, 10_000), (50, 10**9)):
        monkeypatch.setattr(kernel, "_CPU_ROWS", rows)
        monkeypatch.setattr(kernel, "_CPU_BYTES", budget)
        for name, value in collect(model, ids, given).attention.items():
            np.testing.assert_allclose(value, whole[name], atol=LOOSE.get(name, 1e-5), err_msg=name)


def test_the_output_of_the_kernel_is_attention() -> None:
    """Against torch's own attention, with far-out scores and an extreme sink."""
    torch.manual_seed(1)
    query, key, value = (
        torch.randn(2, 4, 70, 16) * 6,
        torch.randn(2, 2, 70, 16) * 6,
        torch.randn(2, 2, 70, 16),
    )
    key[:, :, 0] *= 8
    inputs = Inputs(
        query,
        key,
        value,
        0.25,
        Plain(70, True, query.device),
        torch.ones(2, 70, dtype=torch.bool),
        torch.zeros(2, dtype=torch.long),
    )
    output, sums = attend(inputs, Workspace())
    expected = nn.functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=0.25, enable_gqa=True
    )
    torch.testing.assert_close(output.transpose(1, 2), expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(
        sums.columns.sum(-1), torch.full((8,), 70.0, dtype=torch.float64), atol=1e-4, rtol=0
    )
    torch.testing.assert_close(
        sums.diagonals.sum(-1), torch.full((8,), 70.0, dtype=torch.float64), atol=1e-4, rtol=0
    )
    assert bool((sums.diagonals[:, :69] == 0).all())  # nothing from the future


def test_soft_capped_scores() -> None:
    """Gemma 2 squashes its scores by cap * tanh(s / cap)."""
    torch.manual_seed(2)
    q, k, v = (torch.randn(1, 2, 20, 8) * 3 for _ in range(3))
    full = Plain(20, False, q.device)
    one = torch.ones(1, 20, dtype=torch.bool)
    output, _ = attend(Inputs(q, k, v, 1.0, full, one, torch.zeros(1, dtype=torch.long), 5.0), Workspace())
    weights = torch.softmax(5.0 * torch.tanh(q @ k.transpose(2, 3) / 5.0), -1)
    torch.testing.assert_close(output.transpose(1, 2), weights @ v, atol=1e-5, rtol=1e-5)


def test_half_precision_models_are_reduced_in_single() -> None:
    model, ids = oracle.tiny("llama").to(torch.bfloat16), ids_of(1, 40)
    traced = collect(model, ids).attention
    assert traced["importance"].dtype == np.float32
    np.testing.assert_allclose(traced["distance_mass"].sum(-1), 1.0, atol=1e-6)


def test_progress_counts_layers_and_cancels() -> None:
    model, ids = oracle.tiny("llama"), ids_of(1, 10)
    calls: list[tuple[int, int]] = []
    trace(model, ids, progress=lambda *at: calls.append(at))
    assert calls == [(1, 3), (2, 3), (3, 3)]

    class Stop(Exception):
        pass

    def stop(done: int, total: int) -> None:
        if done == 2:
            raise Stop

    layers: list[int] = []
    with pytest.raises(Stop):
        trace(model, ids, on_attention=lambda a: layers.append(a.layer), progress=stop)
    assert layers == [0, 1]
    # The model is as before: its own attention, no hooks left, and it can be traced again.
    assert model.config._attn_implementation == "eager"
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.model.layers)
    assert collect(model, ids).attention["importance"].shape == (1, 3, 6, 10)


@pytest.mark.parametrize(
    ("ids", "what"),
    [(torch.zeros(1, 0, dtype=torch.long), "non-empty"), (torch.zeros(3, dtype=torch.long), "matrix")],
)
def test_ids_must_be_a_matrix(ids: Tensor, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        trace(oracle.tiny("llama"), ids)


def test_training_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="eval"):
        trace(oracle.tiny("llama").train(), ids_of(1, 4))


def test_the_implementation_is_of_no_use_outside_a_trace() -> None:
    model = oracle.tiny("llama")
    model.set_attn_implementation(IMPLEMENTATION)
    with pytest.raises(ValueError, match="inside trace"):
        model(ids_of(1, 4))


_MEMORY = """
import resource, sys, torch
torch.set_num_threads(1)
from tests.models import oracle
from models.attention.trace import trace
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
models = [oracle.tiny(k, num_attention_heads=12, max_position_embeddings=2048) for k in sys.argv[1:]]
for model in models:
    trace(model, torch.zeros(1, 256, dtype=torch.long))
before = peak()
for model in models:
    trace(model, torch.randint(0, 100, (1, 2_000)))
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in other units elsewhere")
def test_memory_grows_with_the_length_not_its_square() -> None:
    """12 heads at T = 2,000 are 192 MB a layer as maps; the tracer needs two bands of 6 MB."""
    command = [sys.executable, "-c", _MEMORY, "llama", "bert", "mistral"]
    done = run(command, check=True, capture_output=True, text=True)
    assert float(done.stdout) < 60
