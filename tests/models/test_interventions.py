"""First token removed or replaced."""

from __future__ import annotations

import numpy as np
import torch

from models.attention.interventions import measure
from tests.models import oracle


def test_each_variant_is_measured_on_its_own_ids() -> None:
    model = oracle.tiny("llama")
    ids = torch.randint(0, 100, (3, 30), generator=torch.Generator().manual_seed(3))
    calls: list[tuple[int, int]] = []
    results = list(measure(model, ids, {"seven": 7, "nine": 9}, progress=lambda *at: calls.append(at)))
    assert [r.variant for r in results] == ["original", "removed", "replaced: seven", "replaced: nine"]
    assert calls == [(i, 12) for i in range(1, 13)]
    for result in results:
        attention, _ = oracle.eager(model, torch.tensor(result.ids))
        importance = oracle.heads(attention, causal=True)["importance"]
        np.testing.assert_allclose(result.first_importance, importance[..., 0], atol=1e-5)
        np.testing.assert_allclose(result.second_importance, importance[..., 1], atol=1e-5)
        eligible = importance[..., : result.ids.shape[1] - 7]  # seen by at least 8 queries
        np.testing.assert_array_equal(result.top_key, eligible.argmax(-1))
        np.testing.assert_allclose(result.top_key_importance, eligible.max(-1), atol=1e-5)
    original, removed, seven, nine = (r.ids for r in results)
    np.testing.assert_array_equal(removed, original[:, 1:])
    assert (seven[:, 0] == 7).all()
    assert (nine[:, 0] == 9).all()
    np.testing.assert_array_equal(seven[:, 1:], original[:, 1:])


def test_a_single_token_cannot_be_removed() -> None:
    results = list(measure(oracle.tiny("llama"), torch.tensor([[4]]), {}))
    assert [r.variant for r in results] == ["original"]
    assert np.isnan(results[0].second_importance).all()
    assert (results[0].first_importance == 1).all()
