"""Stored attention maps: every layout and type gives the numbers of the maps themselves."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from models.attention.from_maps import reduce_map
from models.attention.trace import LayerAttention
from models.checkpoints.attention import AttentionModel
from models.checkpoints.bundle import Bundle, Item, Limits
from models.checkpoints.openers import maps as opener
from models.checkpoints.refused import Refused

N, L, H, T = 3, 4, 2, 20


def attention(*shape: int, causal: bool = True) -> np.ndarray:
    scores = np.random.default_rng(5).normal(size=shape)
    if causal:
        scores = np.where(np.tril(np.ones(shape[-2:], dtype=bool)), scores, -np.inf)
    weights = np.exp(scores)
    return weights / weights.sum(-1, keepdims=True)


def bundle(folder: Path, content: bytes, name: str) -> Bundle:
    path = folder / "0"
    path.write_bytes(content)
    return Bundle((Item(name, path),))


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def npz(arrays: Mapping[str, Any], save: Callable[..., None] = np.savez) -> bytes:
    buffer = io.BytesIO()
    save(buffer, **arrays)
    return buffer.getvalue()


def traced(model: AttentionModel) -> tuple[list[LayerAttention], dict[tuple[int, int, int], np.ndarray]]:
    layers: list[LayerAttention] = []
    drawn: dict[tuple[int, int, int], np.ndarray] = {}

    def never(_: Any) -> None:
        raise AssertionError("stored maps know no hidden states")

    steps: list[tuple[int, int]] = []
    model.trace(
        None,
        on_attention=layers.append,
        on_states=never,
        on_map=lambda layer, sample, head, m: drawn.__setitem__((layer, sample, head), m),
        map_samples=(0,),
        progress=lambda *at: steps.append(at),
    )
    assert steps == [(i + 1, model.layers) for i in range(model.layers)]
    return layers, drawn


def check(found: Bundle, weights: np.ndarray, tolerance: float = 1e-6) -> AttentionModel:
    """The opened bundle measures what `weights (N, L, H, T, T)` measure."""
    assert opener.recognises(found)
    card = opener.inspect(found, Limits())
    assert card.refusal is None
    assert (card.samples, card.layers, card.heads, card.length) == (*weights.shape[:3], weights.shape[-1])
    assert card.takes == "nothing"
    model = opener.open_model(found, Limits(), "cpu")
    assert (model.samples, model.layers, model.heads, model.length) == (
        card.samples,
        card.layers,
        card.heads,
        card.length,
    )
    layers, drawn = traced(model)
    assert [x.layer for x in layers] == list(range(model.layers))
    for layer in layers:
        expected = reduce_map(layer.layer, weights[:, layer.layer])
        for name in ("importance", "first_token_mass", "row_entropy_bits", "distance_mass"):
            np.testing.assert_allclose(
                getattr(layer, name), getattr(expected, name), atol=tolerance, err_msg=name
            )
        np.testing.assert_array_equal(layer.seen_by, expected.seen_by)
    assert sorted(drawn) == [(x, 0, h) for x in range(model.layers) for h in range(model.heads)]
    for (layer_, sample, head), drawing in drawn.items():
        np.testing.assert_allclose(drawing, weights[sample, layer_, head], atol=tolerance)
    return model


@pytest.mark.parametrize("causal", [True, False])
def test_one_array_of_all_samples(tmp_path: Path, causal: bool) -> None:
    weights = attention(N, L, H, T, T, causal=causal)
    check(bundle(tmp_path, npy(weights), "maps.npy"), weights)


def test_one_array_of_one_sample(tmp_path: Path) -> None:
    weights = attention(1, L, H, T, T)
    check(bundle(tmp_path, npy(weights[0]), "maps.npy"), weights)


def test_three_axes_are_one_layer_and_that_is_said(tmp_path: Path) -> None:
    weights = attention(1, 1, H, T, T)
    model = check(bundle(tmp_path, npy(weights[0, 0]), "maps.npy"), weights)
    assert [n.kind for n in model.notices] == ["one_layer"]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_archive_of_layers_in_the_order_of_their_numbers(tmp_path: Path, save: Any) -> None:
    weights = attention(N, 12, H, T, T)
    arrays = {f"layer_{i}": weights[:, i] for i in (11, 3, 10, 2, 1, 0, 4, 5, 6, 7, 8, 9)}
    model = check(bundle(tmp_path, npz(arrays, save), "maps.npz"), weights)
    assert model.notices == ()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_names_of_the_positions(tmp_path: Path, save: Any) -> None:
    weights = attention(N, L, H, T, T)
    names = np.array([f"wörd{i}" for i in range(T)])
    found = bundle(tmp_path, npz({"attention": weights, "tokens": names, "loss": 3.0}, save), "maps.npz")
    model = check(found, weights)
    assert model.pieces == tuple(names)
    assert [(n.kind, n.count) for n in model.notices] == [("arrays_left_out", 1)]
    by_sample = npz({"a": weights, "tokens": np.array([names, names[::-1], names])}, save)
    assert check(bundle(tmp_path, by_sample, "maps.npz"), weights).pieces == tuple(names)


@pytest.mark.parametrize(
    ("kind", "name", "tolerance", "notices"),
    [
        ("<f4", "F32", 1e-6, []),
        (">f4", "F32", 1e-6, []),
        (">f8", "F64", 1e-12, []),
        ("<f2", "F16", 1e-3, ["renormalised"]),
        (ml_dtypes.bfloat16, "BF16", 1e-2, ["bfloat16", "renormalised"]),
    ],
)
def test_types(tmp_path: Path, kind: Any, name: str, tolerance: float, notices: list[str]) -> None:
    weights = attention(N, L, H, T, T)
    model = check(bundle(tmp_path, npy(weights.astype(kind)), "maps.npy"), weights, tolerance)
    assert model.dtype == name
    assert [n.kind for n in model.notices] == notices


def test_column_major_arrays(tmp_path: Path) -> None:
    weights = attention(N, L, H, T, T)
    check(bundle(tmp_path, npy(np.asfortranarray(weights)), "maps.npy"), weights)


def test_repairs_are_said_with_a_count(tmp_path: Path) -> None:
    weights = attention(N, L, H, T, T)
    broken = weights.copy()
    broken[0, 1, 1, 7] *= 1.005
    broken[1, 2, 0, 3:5] = np.nan
    weights[1, 2, 0, 3:5] = np.nan
    model = opener.open_model(bundle(tmp_path, npy(broken), "maps.npy"), Limits(), "cpu")
    assert [(n.kind, n.count) for n in model.notices] == [("renormalised", 1), ("rows_left_out", 2)]
    layers, _ = traced(model)
    expected = reduce_map(2, weights[:, 2])
    np.testing.assert_allclose(layers[2].importance, expected.importance, atol=1e-7)
    assert np.isfinite(layers[2].importance).all()


@pytest.mark.parametrize(
    ("make", "what", "remedy"),
    [
        (lambda w: np.log(w + 1e-9), "never negative", "softmax"),
        (lambda w: w * 3, "sum to 3", "softmax"),
        (lambda w: w * np.nan, "No row", "numpy.save"),
    ],
)
def test_scores_are_not_weights(tmp_path: Path, make: Any, what: str, remedy: str) -> None:
    found = bundle(tmp_path, npy(make(attention(1, 1, H, T, T))), "scores.npy")
    with pytest.raises(Refused) as refused:
        opener.open_model(found, Limits(), "cpu")
    assert what in refused.value.message
    assert remedy in refused.value.remedy


@pytest.mark.parametrize(
    ("content", "kind", "what"),
    [
        (npy(np.zeros((2, 2, 5, 6))), "brought_unsupported", "two axes are equal"),
        (npy(np.zeros((2, 2, 5, 5), dtype=np.int64)), "brought_unsupported", "two axes are equal"),
        (npy(np.zeros((1, 1, 1025, 1025), dtype=np.float16)), "brought_too_large", "1,025 positions"),
        (npy(np.zeros((0, 2, 5, 5))), "brought_unsupported", "empty"),
        (npz({"a": np.eye(5)[None], "b": np.eye(6)[None]}), "brought_mismatch", "shapes differ"),
        (npz({"a": np.eye(5)[None], "tokens": np.array(["x", "y"])}), "brought_mismatch", "names"),
    ],
)
def test_what_is_no_map_keeps_its_card(tmp_path: Path, content: bytes, kind: str, what: str) -> None:
    found = bundle(tmp_path, content, "x.npy")
    card = opener.inspect(found, Limits())
    assert card.refusal is not None
    assert card.refusal["kind"] == kind
    assert what in card.refusal["message"]
    assert card.tensors
    with pytest.raises(Refused):
        opener.open_model(found, Limits(), "cpu")
