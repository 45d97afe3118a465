"""Metrics of ready maps, against the tracer on real models and against closed forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from models.attention import metrics
from models.attention.from_maps import Repairs, View, clean, reduce_map, view_of
from models.attention.trace import collect
from tests.models import oracle

LOOSE = {"effective_keys": 5e-5, "mean_distance": 5e-5}


def compare(model: torch.nn.Module, ids: torch.Tensor, mask: torch.Tensor | None = None) -> None:
    maps, _ = oracle.eager(model, ids, mask)
    if mask is not None:  # eager attention gives padding something to look at; stored maps have zeros
        maps = maps * mask.numpy()[:, None, None, :, None]
    traced = collect(model, ids, mask).attention
    for layer in range(maps.shape[1]):
        got = reduce_map(layer, maps[:, layer])
        assert got.layer == layer
        for name, expected in traced.items():
            if name.endswith("norm_ratio"):
                assert np.isnan(getattr(got, name)).all()
            elif name == "top_key":
                picked = np.take_along_axis(got.importance, getattr(got, name)[..., None], -1)[..., 0]
                np.testing.assert_allclose(picked, got.top_key_importance, atol=1e-6)
            else:
                found = getattr(got, name)
                assert found.dtype == expected.dtype, name
                np.testing.assert_allclose(
                    found, expected[:, layer], atol=LOOSE.get(name, 1e-5), err_msg=name
                )


@pytest.mark.parametrize("kind", ["llama", "bert", "albert"])
@pytest.mark.parametrize("length", [1, 2, 17, 64])
def test_equal_to_the_tracer(kind: str, length: int) -> None:
    ids = torch.randint(0, 100, (2, length), generator=torch.Generator().manual_seed(length))
    compare(oracle.tiny(kind), ids)


@pytest.mark.parametrize("window", [2, 5, 12])
def test_equal_to_the_tracer_under_a_sliding_window(window: int) -> None:
    ids = torch.randint(0, 100, (2, 20), generator=torch.Generator().manual_seed(window))
    compare(oracle.tiny("mistral", sliding_window=window), ids)


@pytest.mark.parametrize("side", ["left", "right"])
def test_rows_of_zeros_are_padding(side: str) -> None:
    ids = torch.randint(0, 100, (2, 30), generator=torch.Generator().manual_seed(3))
    mask = torch.ones_like(ids)
    mask[1, :9] = int(side == "right")
    mask[1, -9:] = int(side == "left")
    compare(oracle.tiny("bert"), ids, mask)


def test_uniform_causal_maps_have_the_closed_form() -> None:
    t = 64
    uniform = np.tril(np.ones((t, t))) / np.arange(1, t + 1)[:, None]
    got = reduce_map(0, uniform[None, None])
    np.testing.assert_allclose(got.importance[0, 0, 0], metrics.uniform_causal_importance(t), rtol=1e-6)
    np.testing.assert_array_equal(got.seen_by[0], np.arange(t, 0, -1))
    np.testing.assert_allclose(got.effective_keys, (t + 1) / 2, rtol=1e-6)
    np.testing.assert_allclose(got.first_token_mass, (1 / np.arange(2, t + 1)).mean(), rtol=1e-6)


def test_maps_that_look_at_one_key_only() -> None:
    t = 16
    maps = np.zeros((1, 2, t, t))
    maps[0, 0, :, 0] = 1  # a perfect sink
    maps[0, 1] = np.eye(t)  # every token at itself
    got = reduce_map(0, maps)
    assert got.importance[0, 0].tolist() == [1] + [0] * (t - 1)
    assert got.first_token_mass.tolist() == [[1, 0]]
    assert got.row_entropy_bits.tolist() == [[0, 0]]
    assert got.column_gini.tolist() == [[1, 0]]
    assert got.top_key_share[0].tolist() == [1, 1 / t]
    assert got.mean_distance[0].tolist() == [(t - 1) / 2, 0]
    np.testing.assert_allclose(got.importance[0, 1], 1 / np.arange(t, 0, -1))


def test_what_the_caller_knows_goes_before_what_shows() -> None:
    identity = np.eye(8)[None, None]
    full = reduce_map(0, identity, causal=False)
    assert full.seen_by[0].tolist() == [8] * 8
    np.testing.assert_allclose(full.importance, 1 / 8)
    near = reduce_map(0, identity, causal=True, window=3)
    assert near.seen_by[0].tolist() == [3] * 6 + [2, 1]
    both = reduce_map(0, identity, causal=False, window=3)
    assert both.seen_by[0].tolist() == [3, 4, 5, 5, 5, 5, 4, 3]


def _band(t: int, low: int, high: int) -> np.ndarray:
    distance = np.arange(t)[:, None] - np.arange(t)[None]
    seen = (distance >= low) & (distance <= high)
    return seen / seen.sum(1, keepdims=True)


def test_what_is_visible_shows_in_the_zeros() -> None:
    assert view_of(_band(12, 0, 11)) == View(0, None)
    assert view_of(_band(12, -11, 11)) == View(None, None)
    assert view_of(_band(12, 0, 3)) == View(0, 3)
    assert view_of(_band(12, -2, 2)) == View(-2, 2)
    assert view_of(np.eye(12)) == View(0, None)  # sharp, not blind
    previous = np.eye(12, k=-1)
    previous[0, 0] = 1
    assert view_of(previous) == View(0, None)
    fading = np.tril(np.exp(-3.0 * np.abs(np.arange(12)[:, None] - np.arange(12)[None])))
    assert view_of(np.float16(fading / fading.sum(1, keepdims=True))) == View(0, None)
    assert view_of(np.ones((1, 1))) == View(None, None)


def test_repairs_are_counted() -> None:
    rng = np.random.default_rng(0)
    maps = rng.dirichlet(np.ones(6), size=(3, 6))
    maps[0, 2] *= 1.004
    maps[1, 4] = np.nan
    maps[2, 5, 3] = np.inf
    maps[2, 0] = 0
    fixed, counts, repairs = clean(maps)
    assert repairs == Repairs(18, 1, 3)
    assert repairs + Repairs(2, 1, 0) == Repairs(20, 2, 3)
    assert sorted(zip(*np.nonzero(~counts), strict=True)) == [(1, 4), (2, 0), (2, 5)]
    np.testing.assert_allclose(fixed.sum(-1), counts.astype(float), atol=1e-12)


@pytest.mark.parametrize(
    ("maps", "what"),
    [
        (np.full((1, 1, 3, 3), 0.5), "sum to 1.5"),
        (np.array([[[[1.5, -0.5], [0.5, 0.5]]]]), "never negative"),
        (np.ones((1, 2, 3)), "samples, heads, T, T"),
        (np.ones((1, 1, 2, 3)), "must be"),
        (np.ones((0, 1, 3, 3)), "not empty"),
    ],
)
def test_what_is_no_attention_is_not_measured(maps: np.ndarray, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        reduce_map(0, maps)
