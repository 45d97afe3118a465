"""Particles against the reference values of the spec, exact identities, and clusters known by hand."""

from __future__ import annotations

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


@pytest.mark.parametrize(("k", "counts"), [(10, {12, 13}), (40, {3})])
def test_the_nearest_k_keep_several_clusters(k: int, counts: set[int]) -> None:
    for seed in (0, 1, 2):
        path = simulate(start_circle(200, seed), Rule("topk", 1.0, k), 1_500, keep=[1_500])
        assert cluster_count(path.points[0]) in counts


@pytest.mark.parametrize(("beta", "dimension"), [(1.0, 2), (9.0, 2), (4.0, 3)])
def test_negative_control_the_full_gaussian_kernel_is_softmax(beta: float, dimension: int) -> None:
    """With sigma^2 = 1/beta on the sphere both give the same trajectory, to 1e-10."""
    start = start_circle(80, 3) if dimension == 2 else start_sphere(80, 3)
    softmax = simulate(start, Rule("softmax", beta), 300)
    kernel = simulate(start, Rule("rbf", beta), 300)
    assert np.abs(softmax.points - kernel.points).max() < 1e-10


def test_high_beta_softmax_looks_clustered_because_it_is_slow() -> None:
    rows = [measure("softmax", 9.0, seed, 1_000)[-1]["clusters"] for seed in (0, 1, 2)]
    assert rows == [3, 2, 3] or all(count is not None and count > 1 for count in rows)


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
