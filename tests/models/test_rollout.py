"""Attention rollout on maps whose flow is known."""

from __future__ import annotations

import numpy as np

from models.attention.rollout import rollout


def test_identity_attention_takes_nothing_in() -> None:
    np.testing.assert_allclose(rollout(np.broadcast_to(np.eye(3), (4, 2, 3, 3)), query=1), [0, 1, 0])


def test_two_layers_by_hand() -> None:
    """Token 0 looks at 1 in the first layer, at 2 in the second; half stays with the residual stream."""
    first = np.array([[0, 1, 0], [0, 1, 0], [0, 0, 1.0]])
    second = np.array([[0, 0, 1], [0, 1, 0], [0, 0, 1.0]])
    # layer 1: row 0 = (1/2, 1/2, 0); layer 2: row 0 = half of that, half of token 2
    np.testing.assert_allclose(rollout(np.stack([first, second])[:, None]), [0.25, 0.25, 0.5])


def test_heads_are_averaged() -> None:
    one, two = np.eye(2), np.array([[0, 1], [0, 1.0]])
    np.testing.assert_allclose(rollout(np.stack([one, two])[None]), [0.75, 0.25])
