"""Particles against the reference values of the spec, exact identities, and clusters known by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from models.attention.particles import (
    Rule,
    cluster_count,
    clusters,
    hegselmann_krause,
    kept_steps,
    measure,
    order_parameter,
    simulate,
    start_circle,
    start_sphere,
    step,
)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_softmax_at_beta_one_reaches_consensus(seed: int) -> None:
    """Order parameter >= 0.99 after 100 steps of 0.1, one cluster when it rests."""
    path = simulate(start_circle(200, seed), Rule("softmax", 1.0), 400, keep=[0, 100, 400])
    assert order_parameter(path.points[1]) >= 0.99
    assert cluster_count(path.points[2]) == 1


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_radius_one_half_keeps_five_clusters(seed: int) -> None:
    path = simulate(start_circle(200, seed), Rule("radius", 1.0, 0.5), 3_000, keep=[100, 300, 3_000])
    assert [cluster_count(points) for points in path.points] == [5, 5, 5]


@pytest.mark.parametrize(("k", "steps", "counts"), [(10, 300, [13, 12, 13]), (40, 1_000, [3, 3, 3])])
def test_the_nearest_k_keep_several_clusters(k: int, steps: int, counts: list[int]) -> None:
    """12 to 13 clusters with k = 10 and 3 with k = 40 after 3,000 steps; these starts hold them by then."""
    rule = Rule("topk", 1.0, k)
    paths = [simulate(start_circle(200, seed), rule, steps, keep=[steps]) for seed in (0, 1, 2)]
    assert [cluster_count(path.points[0]) for path in paths] == counts


@pytest.mark.parametrize("start", [start_circle(200, 4), start_sphere(200, 4)], ids=["circle", "sphere"])
def test_at_rest_clusters_lie_out_of_reach_of_each_other(start: np.ndarray) -> None:
    """Compact kernel of radius R: clusters further apart than R never meet, and at rest all are."""
    path = simulate(start, Rule("radius", 4.0, 0.5), 3_000)
    assert path.rest is not None
    found = clusters(path.points[-1])
    centres = np.stack([path.points[-1][found == c].mean(axis=0) for c in range(found.max() + 1)])
    apart = np.linalg.norm(centres[:, None] - centres[None], axis=-1)[~np.eye(len(centres), dtype=bool)]
    assert len(centres) > 1 and apart.min() > 0.5


@pytest.mark.parametrize(("beta", "dimension"), [(1.0, 2), (9.0, 2), (4.0, 3)])
def test_negative_control_the_full_gaussian_kernel_is_softmax(beta: float, dimension: int) -> None:
    """With sigma^2 = 1/beta on the sphere both give the same trajectory, to 1e-10."""
    start = start_circle(80, 3) if dimension == 2 else start_sphere(80, 3)
    softmax = simulate(start, Rule("softmax", beta), 300)
    kernel = simulate(start, Rule("rbf", beta), 300)
    assert np.abs(softmax.points - kernel.points).max() < 1e-10


def test_high_beta_softmax_looks_clustered_and_so_does_the_gaussian() -> None:
    """After 3,000 steps at beta = 9: 3, 2 and 3 clusters, for both."""
    ends = [measure("rbf", 9.0, seed, 3_000)[-1] for seed in (0, 1, 2)]
    assert [row["clusters"] for row in ends] == [3, 2, 3]
    assert all(row["difference"] is not None and row["difference"] < 1e-10 for row in ends)


@pytest.mark.parametrize(
    ("eps", "count", "steps"),
    [(0.05, 8, 10), (0.1, 4, 10), (0.15, 2, 43), (0.2, 2, 7), (0.25, 1, 9), (0.3, 1, 4), (0.5, 1, 2)],
)
def test_equispaced_opinions_settle_as_in_the_reference(eps: float, count: int, steps: int) -> None:
    path = hegselmann_krause(np.linspace(0, 1, 201), eps)
    assert cluster_count(path.points[-1], 1e-3) == count
    assert path.rest == steps


def test_drawn_opinions_settle_as_in_the_reference() -> None:
    """Means over 10 starts of 200: 7.8, 4.2, 2.5, 2.0, 1.1, 1.0, 1.0; within 0.3, their spread."""
    expected = {0.05: 7.8, 0.1: 4.2, 0.15: 2.5, 0.2: 2.0, 0.25: 1.1, 0.3: 1.0, 0.5: 1.0}
    for eps, mean in expected.items():
        counts = [measure("opinions", eps, seed, 0)[-1]["clusters"] for seed in range(1, 11)]
        assert np.mean([c for c in counts if c is not None]) == pytest.approx(mean, abs=0.3), eps


def test_opinions_never_cross() -> None:
    path = hegselmann_krause(np.sort(np.random.default_rng(4).uniform(0, 1, 60)), 0.12)
    assert (np.diff(path.points[..., 0], axis=1) >= -1e-12).all()
    ends = np.unique(np.round(path.points[-1, :, 0], 6))
    assert (np.diff(ends) > 0.12).all()


def test_clusters_are_chains_of_touching_particles() -> None:
    points = np.array([[0.0, 0], [0.04, 0], [0.08, 0], [1.0, 0], [1.04, 0], [2.0, 0]])
    assert clusters(points, 0.05).tolist() == [0, 0, 0, 1, 1, 2]
    assert cluster_count(points, 0.01) == 6


def test_clusters_are_connected_components() -> None:
    """Against a plain walk from neighbour to neighbour."""
    for seed, touch in [(0, 0.02), (1, 0.05), (2, 0.2), (3, 0.6)]:
        points = start_sphere(150, seed)
        near = np.linalg.norm(points[:, None] - points[None], axis=-1) < touch
        label = np.full(150, -1)
        for first in range(150):
            waiting = [first] if label[first] < 0 else []
            number = label.max() + 1
            while waiting:
                one = waiting.pop()
                label[one] = number
                waiting += [int(n) for n in np.flatnonzero(near[one]) if label[n] < 0]
        assert clusters(points, touch).tolist() == label.tolist()


@pytest.mark.parametrize("dimension", [2, 3])
def test_weights_are_those_of_the_definitions(dimension: int) -> None:
    """Distances, cuts and softmax written out; places rounded, so that many distances tie."""
    x = np.round(start_circle(90, 5) if dimension == 2 else start_sphere(90, 5), 1)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    rbf = np.exp(-(np.linalg.norm(x[:, None] - x[None], axis=-1) ** 2) * 3.0 / 2)
    near = np.linalg.norm(x[:, None] - x[None], axis=-1) <= 0.7
    for rule, affinity in [
        (Rule("softmax", 3.0), np.exp(3.0 * x @ x.T)),
        (Rule("rbf", 3.0), rbf),
        (Rule("radius", 3.0, 0.7), rbf * near),
        (Rule("topk", 3.0, 90), rbf),
    ]:
        expected = affinity / affinity.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(rule.weights(x), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("k", [1, 3, 20])
def test_exactly_k_are_kept_the_nearest(k: int) -> None:
    """A sort of the distances says which; half the particles stand on another one."""
    x = np.concatenate([start_circle(30, 6)] * 2)
    squared = np.square(x[:, None] - x[None]).sum(axis=-1).round(12)
    kept = Rule("topk", 1.0, k).weights(x) > 0
    assert (kept.sum(axis=1) == k).all()
    order = np.argsort(squared, axis=1, kind="stable")[:, :k]
    np.testing.assert_allclose(
        np.sort(np.where(kept, squared, np.inf), axis=1)[:, :k],
        np.take_along_axis(squared, order, axis=1),
        atol=1e-12,
    )


def test_a_step_is_a_move_along_the_tangent() -> None:
    """Two particles at a right angle, beta 0: each is pulled by half of the other, times 0.1."""
    moved = step(np.array([[1.0, 0], [0, 1.0]]), Rule("softmax", 0.0))
    np.testing.assert_allclose(moved, np.array([[1, 0.05], [0.05, 1]]) / np.hypot(1, 0.05), atol=1e-15)


@pytest.mark.parametrize(
    ("kind", "beta", "limit"),
    [("nearest", 1.0, 1.0), ("softmax", -1.0, 0.0), ("radius", 1.0, -0.5), ("topk", 1.0, 0.0)],
)
def test_rules_that_make_no_sense_are_refused(kind: Any, beta: float, limit: float) -> None:
    with pytest.raises(ValueError, match=kind):
        Rule(kind, beta, limit)


def test_a_step_stays_on_the_sphere_and_a_lone_particle_stays_put() -> None:
    moved = step(start_sphere(30, 0), Rule("softmax", 2.0))
    np.testing.assert_allclose(np.linalg.norm(moved, axis=1), 1, atol=1e-12)
    alone = start_circle(1, 0)
    np.testing.assert_allclose(step(alone, Rule("topk", 1.0, 1)), alone, atol=1e-15)


def test_neighbours_tie_to_the_smaller_index_and_include_oneself() -> None:
    square = np.array([[1.0, 0], [0, 1], [-1, 0], [0, -1]])
    weights = Rule("topk", 1.0, 2).weights(square)
    assert (weights > 0).tolist() == [
        [True, True, False, False],
        [True, True, False, False],
        [False, True, True, False],
        [True, False, False, True],
    ]


def test_at_rest_the_last_places_fill_the_frames() -> None:
    path = simulate(start_circle(50, 1), Rule("radius", 1.0, 2.0), 5_000)
    assert path.rest is not None and path.rest < 5_000 and len(path.points) == len(path.steps)
    assert path.steps[0] == 0 and path.steps[-1] == 5_000
    np.testing.assert_array_equal(path.points[-1], path.points[-2])


def test_kept_steps_begin_at_zero_and_end_at_the_end() -> None:
    assert kept_steps(5) == [0, 1, 2, 3, 4, 5]
    many = kept_steps(3_000)
    assert many[0] == 0 and many[-1] == 3_000 and len(many) <= 61


def test_what_was_cut_off_is_not_at_rest() -> None:
    x = np.linspace(0, 1, 201)
    assert hegselmann_krause(x, 0.15, most=5).rest is None
    assert hegselmann_krause(x, 0.15).rest == 43


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no rule 'nonsense'"):
        measure("nonsense", 1.0, 0, 10)
