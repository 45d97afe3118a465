"""Attention layers as steps of particles that look at each other. Numpy only: pages run it live.

On the circle or sphere a step is x <- normalise(x + eta P_x(sum_j a_ij x_j)), with P_x the projection
on the tangent space at x ("Krause Synchronization Transformers", ICML 2026, theory section; the step
keeps particles on the sphere). P_x takes out the part of the pull along x, so that how far a particle
moves depends on the pull across alone. Softmax weighs every particle, so all are drawn together;
bounded confidence cuts the rest off, so groups that are out of reach of each other stay apart. In one
dimension the classical model is Hegselmann and Krause 2002.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Kind = Literal["softmax", "rbf", "radius", "topk"]

ETA = 0.1  # size of a step on the sphere
TOUCH = 0.05  # particles closer than this are one cluster; a step of the circle's 200 is 0.03 apart
_STILL = 1e-9  # largest movement of a step that counts as rest; below it 3,000 steps show nothing


@dataclass(frozen=True)
class Rule:
    """Who attends to whom, and how much.

    kind        softmax: exp(beta x.y); rbf: exp(-|x-y|^2 beta / 2), over everyone; radius: the same
                within `limit`; topk: the same over the `limit` nearest (ties to the smaller index)
    beta        inverse temperature; 1 / sigma^2 of the Gaussian kernel
    limit       radius, or number of neighbours; the particle itself is among them

    Raises ValueError for an unknown kind, a negative beta, a radius below 0 or fewer than one neighbour.
    """

    kind: Kind
    beta: float = 1.0
    limit: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"unknown rule {self.kind!r}")
        if self.beta < 0 or self.limit < 0 or (self.kind == "topk" and self.limit < 1):
            raise ValueError(f"{self.kind}: no such beta {self.beta:g} or limit {self.limit:g}")

    def weights(self, x: Array) -> Array:
        """Attention of every particle (n, n), rows sum to 1, for unit vectors (n, d)."""
        affinity = self.affinities(x)
        return np.asarray(affinity / affinity.sum(axis=1, keepdims=True))

    def affinities(self, x: Array) -> Array:
        """Weights before their rows are normalised (n, n), for unit vectors (n, d).

        A particle's affinity to itself is 1 and the largest, so no row can vanish.
        """
        if self.kind == "softmax":
            scores = self.beta * (x @ x.T)
            scores -= self.beta
            return np.asarray(np.exp(scores, out=scores))
        squared = _squared_distances(x)
        kept: npt.NDArray[np.bool_] | None = None
        if self.kind == "radius":
            kept = squared <= self.limit**2
        elif self.kind == "topk" and self.limit < len(x):
            kept = _nearest(squared, int(self.limit))
        squared *= -0.5 * self.beta
        np.exp(squared, out=squared)
        if kept is not None:
            squared *= kept
        return squared


def _squared_distances(x: Array) -> Array:
    """|x_i - x_j|^2 (n, n): one product of (x, |x|^2, 1) with (-2x, 1, |x|^2), and 0 on the diagonal."""
    norms, ones = np.einsum("nd,nd->n", x, x)[:, None], np.ones((len(x), 1))
    squared: Array = np.hstack([x, norms, ones]) @ np.hstack([-2 * x, ones, norms]).T
    np.maximum(squared, 0, out=squared)
    np.fill_diagonal(squared, 0)
    return squared


def _nearest(squared: Array, k: int) -> npt.NDArray[np.bool_]:
    """The k smallest of each row (n, n), ties to the smaller index."""
    last = np.partition(squared, k - 1, axis=1)[:, k - 1, None]
    kept = squared <= last
    held = kept.sum(axis=1)
    if (held > k).any():  # more equals than places: keep the first of them
        rows, columns = np.nonzero(squared == last)
        equals = np.bincount(rows, minlength=len(kept))
        rank = np.arange(len(rows)) - (np.cumsum(equals) - equals)[rows]
        late = rank >= (k - held + equals)[rows]
        kept[rows[late], columns[late]] = False
    return kept


def start_circle(n: int, seed: int) -> Array:
    """`n` particles at random on the unit circle, (n, 2)."""
    angle = np.random.default_rng(seed).uniform(0, 2 * np.pi, n)
    return np.stack([np.cos(angle), np.sin(angle)], axis=1)


def start_sphere(n: int, seed: int) -> Array:
    """`n` particles at random on the unit sphere, (n, 3)."""
    x: Array = np.random.default_rng(seed).normal(size=(n, 3))
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))


def step(x: Array, rule: Rule, eta: float = ETA) -> Array:
    """One layer: particles (n, d) on the unit sphere to their next places, eq. of the module's head.

    Row sums come with the product, which spares dividing the n x n weights.
    """
    summed = rule.affinities(x) @ np.hstack([x, np.ones((len(x), 1))])
    pull = summed[:, :-1] / summed[:, -1:]
    tangent = pull - np.einsum("nd,nd->n", pull, x)[:, None] * x
    moved = x + eta * tangent
    result: Array = moved / np.linalg.norm(moved, axis=1, keepdims=True)
    return result


def kept_steps(steps: int, most: int = 60) -> list[int]:
    """At most `most` steps from 0 to `steps`, denser at the start, where things happen."""
    if steps < most:
        return list(range(steps + 1))
    wanted = np.unique(np.round(np.geomspace(1, steps, most)).astype(int))
    return [0, *wanted.tolist()]


@dataclass(frozen=True)
class Trajectory:
    """Particles at some steps: `steps` (m,), `points` (m, n, d).

    `rest` is the step from which on no particle moves by 1e-9 any more; None while they do. Metastable
    clusters can be that slow too.
    """

    steps: tuple[int, ...]
    points: Array
    rest: int | None


def simulate(x: Array, rule: Rule, steps: int, eta: float = ETA, keep: list[int] | None = None) -> Trajectory:
    """Follow particles (n, d) for `steps` steps and keep those of `keep` (by default `kept_steps`).

    When nothing moves any more the rest is filled with the last places.
    """
    keep = kept_steps(steps) if keep is None else keep
    frames, rest = [], None
    wanted = set(keep)
    for number in range(steps + 1):
        if number in wanted:
            frames.append(x)
        if number == steps or rest is not None:
            continue
        moved = step(x, rule, eta)
        if float(np.abs(moved - x).max()) < _STILL:
            rest = number
        x = moved
    return Trajectory(tuple(sorted(wanted)), np.stack(frames), rest)


def hegselmann_krause(x: Array, eps: float, most: int = 1_000) -> Trajectory:
    """Opinions (n,): each moves to the mean of those within `eps`, until nobody moves.

    Converges in finitely many steps and never crosses opinions (Hegselmann & Krause 2002). Equispaced
    opinions lie at exactly `eps` from each other here and there, and rounding decides who is within:
    their counts are those of this arithmetic, and drawn starts are the sturdier measure.
    `points` is (m, n, 1), every step.
    """
    frames, rest = [x], None
    while rest is None and len(frames) <= most:
        near = np.abs(x[:, None] - x[None]) <= eps
        moved = (near @ x) / near.sum(axis=1)
        if float(np.abs(moved - x).max()) < _STILL:
            rest = len(frames) - 1
        else:
            x = moved
            frames.append(x)
    return Trajectory(tuple(range(len(frames))), np.stack(frames)[..., None], rest)


def clusters(points: Array, touch: float = TOUCH) -> npt.NDArray[np.int64]:
    """The cluster of every particle (n,), numbered from 0 by first member, for particles (n, d).

    Particles closer than `touch` belong together, and so do those linked by a chain of such: the
    connected components of "closer than `touch`". So a ring of particles 0.03 apart is one cluster.
    """
    near = _squared_distances(points) < touch**2
    label = np.arange(len(points))
    while True:  # everyone takes the smallest label around, and then that particle's own label
        smallest = np.where(near, label, len(points)).min(axis=1)
        smallest = smallest[smallest]
        if (smallest == label).all():
            return np.unique(label, return_inverse=True)[1].astype(np.int64)
        label = smallest


def cluster_count(points: Array, touch: float = TOUCH) -> int:
    """Number of clusters of particles (n, d)."""
    return int(clusters(points, touch).max()) + 1


def order_parameter(points: Array) -> float:
    """Length of the mean of unit vectors (n, d): 1 for consensus."""
    return float(np.linalg.norm(points.mean(axis=0)))


Row = dict[str, float | int | None]


def measure(rule: str, parameter: float, start: int, steps: int, n: int = 200) -> list[Row]:
    """Clusters over time for the ledger: rows of step, clusters, order and difference.

    `rule` is softmax, rbf (`parameter` is beta), radius, topk (the limit, at beta 1) or opinions
    (epsilon; start 0 is equispaced, 201 opinions, others are drawn). `difference` is the largest
    distance to the same particle under softmax, for rbf. Raises ValueError for another rule.
    """
    if rule == "opinions":
        drawn = np.random.default_rng(start).uniform(0, 1, n)
        x = np.linspace(0, 1, 201) if start == 0 else np.sort(drawn)
        path = hegselmann_krause(x, parameter)
        twin = None
    else:
        if rule not in get_args(Kind):
            raise ValueError(f"there is no rule {rule!r}; choose from opinions, {', '.join(get_args(Kind))}")
        x = start_circle(n, start)
        limited = rule in ("radius", "topk")
        kind: Kind = rule  # type: ignore[assignment]
        made = Rule(kind, 1.0, parameter) if limited else Rule(kind, parameter)
        path = simulate(x, made, steps)
        twin = simulate(x, Rule("softmax", parameter), steps) if rule == "rbf" else None
    rows: list[Row] = []
    for number, place in enumerate(path.steps):
        points = path.points[number]
        apart = None if twin is None else float(np.linalg.norm(points - twin.points[number], axis=1).max())
        rows.append(
            {
                "step": place,
                "clusters": cluster_count(points, 1e-3 if rule == "opinions" else TOUCH),
                "order": None if rule == "opinions" else order_parameter(points),
                "difference": apart,
            }
        )
    return rows
