"""Codecs of attention maps: exactness, error bounds, damage."""

from __future__ import annotations

import zlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from data.blobs import CODECS, decode_map, encode_map
from data.errors import CloudChamberError


def causal(size: int, seed: int = 0) -> np.ndarray:
    """A causal softmax map with a sink at position 0."""
    logits = np.random.default_rng(seed).standard_normal((size, size)) * 2
    logits[:, 0] += 6
    logits[np.triu_indices(size, 1)] = -np.inf
    weights = np.exp(logits - logits.max(1, keepdims=True))
    return (weights / weights.sum(1, keepdims=True)).astype(np.float32)


def test_f16_is_exactly_half_precision() -> None:
    weights = causal(65)
    assert np.array_equal(decode_map(encode_map(weights, "f16"), 65, 65, "f16"), weights.astype(np.float16))


@given(
    hnp.arrays(np.float16, hnp.array_shapes(min_dims=2, max_dims=2, max_side=9),
               elements=st.floats(width=16, allow_nan=False, allow_infinity=False))
)  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_f16_round_trip_of_any_half(weights: np.ndarray) -> None:
    again = decode_map(encode_map(weights, "f16"), *weights.shape, "f16")
    assert again.dtype == np.float32
    assert again.tobytes() == weights.astype(np.float32).tobytes()  # signed zeros too


@given(
    hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=2, max_side=9),
               elements=st.floats(0, 1, width=32)),
    st.sampled_from(sorted(CODECS)),
)  # fmt: skip
@settings(max_examples=200, deadline=None)
def test_codecs_hold_their_error_bound(weights: np.ndarray, codec: str) -> None:
    again = decode_map(encode_map(weights, codec), *weights.shape, codec)
    bound = CODECS[codec].relative * weights.astype(np.float64) + CODECS[codec].absolute
    assert (np.abs(again.astype(np.float64) - weights) <= bound * (1 + 1e-5)).all()


def test_log8_known_values() -> None:
    weights = np.array([[1.0, 0.0, 2.0**-11, 2.0**-11.6, 2.0**-5.5]])
    again = decode_map(encode_map(weights, "log8"), 1, 5, "log8")
    assert again[0, :2].tolist() == [1.0, 0.0]
    assert again[0, 2] == np.float32(2.0**-11)
    assert again[0, 3] == 0.0
    assert again[0, 4] == pytest.approx(2.0**-5.5, rel=1e-6)  # code 128 exactly


def test_log8_is_much_smaller() -> None:
    weights = causal(256)
    assert len(encode_map(weights, "log8")) < 0.4 * len(encode_map(weights, "f16"))


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_every_damage_is_found(codec: str) -> None:
    blob = encode_map(causal(16), codec)
    damaged = [b"", blob[:3], blob[:-1], blob[: len(blob) // 2], blob + b"x", b"\0" * len(blob)]
    damaged += [blob[:i] + bytes([blob[i] ^ 1]) + blob[i + 1 :] for i in range(len(blob))]
    for bad in damaged:
        try:
            again = decode_map(bad, 16, 16, codec)
        except CloudChamberError as error:
            assert error.kind == "map_damaged"  # noqa: PT017  (some flips may be harmless)
        else:
            assert np.array_equal(again, decode_map(blob, 16, 16, codec))
    for rows, cols in ((15, 16), (16, 17), (8, 16), (0, 0), (-1, -256)):
        with pytest.raises(CloudChamberError, match="damaged"):
            decode_map(blob, rows, cols, codec)


def test_a_bomb_does_not_unpack() -> None:
    """A frame that would unpack to 1 GB is refused by the size the map must have."""
    frame = pa.Codec("zstd").compress(b"\0" * 10**8, asbytes=True)
    blob = zlib.crc32(b"\0" * 32).to_bytes(4, "little") + frame
    with pytest.raises(CloudChamberError, match="damaged"):
        decode_map(blob, 4, 4, "f16")


@pytest.mark.parametrize(
    ("weights", "codec", "kind"),
    [
        (np.array([[np.nan]]), "f16", "map_invalid"),
        (np.array([[1e6]]), "f16", "map_invalid"),
        (np.array([[np.nan]]), "log8", "map_invalid"),
        (np.array([[-0.1]]), "log8", "map_invalid"),
        (np.array([[1.5]]), "log8", "map_invalid"),
        (np.array([0.5]), "f16", "map_invalid"),
        (np.array([[0.5]]), "jpeg", "map_codec"),
    ],
)
def test_refusals(weights: np.ndarray, codec: str, kind: str) -> None:
    with pytest.raises(CloudChamberError) as caught:
        encode_map(weights, codec)
    assert caught.value.kind == kind
    if kind == "map_codec":
        assert "f16, log8" in caught.value.remedy
