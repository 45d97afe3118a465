"""Particles on the page: what the figures draw, what they say, and which controls there are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from app.figures import krause_motion as motion
from app.figures import krause_particles as figures
from app.theme import DARK, LIGHT, Palette
from models.attention.particles import (
    Rule,
    Trajectory,
    clusters,
    hegselmann_krause,
    simulate,
    start_circle,
    start_sphere,
)

PALETTES = pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
NAMES = ("softmax, β = 1", "Krause, radius 0.5")


def words(text: str) -> str:
    """Text with plain spaces where numbers are kept together."""
    return text.replace("\N{NO-BREAK SPACE}", " ")


def pair(start: np.ndarray, steps: int = 300) -> tuple[Trajectory, Trajectory]:
    return simulate(start, Rule("softmax", 1.0), steps), simulate(start, Rule("radius", 1.0, 0.5), steps)


CIRCLE, SPHERE = pair(start_circle(200, 0)), pair(start_sphere(200, 0))


@PALETTES
@pytest.mark.parametrize("k", [10, 40])
def test_the_largest_cluster_is_hot_and_neighbours_differ(k: int, palette: Palette) -> None:
    end = simulate(start_circle(200, 0), Rule("topk", 1.0, k), 300).points[-1]
    found, colours = clusters(end), np.array(motion.cluster_colours(end, palette))
    assert set(colours[found == np.bincount(found).argmax()]) == {palette.hot}
    order = colours[np.argsort(np.arctan2(end[:, 1], end[:, 0]), kind="stable")]
    changes = int((order != np.roll(order, 1)).sum())
    assert changes == found.max() + 1  # round the circle the colour changes once per cluster
    assert len(set(map(str.lower, motion.tints(palette)))) == 6


def test_it_opens_at_the_end_and_moves_only_when_asked() -> None:
    fig = motion.animation(*CIRCLE, NAMES, LIGHT).fig
    assert fig.layout.sliders[0].active == len(CIRCLE[0].steps) - 1
    play, pause = fig.layout.updatemenus[0].buttons
    assert play.args[1]["transition"]["duration"] == 0 and not play.args[1]["fromcurrent"]
    assert list(pause.args[0]) == [None]
    for shown, last in zip(fig.data[-2:], fig.frames[-1].data, strict=True):
        np.testing.assert_array_equal(shown.x, last.x)
        np.testing.assert_array_equal(shown.y, last.y)
    assert list(fig.frames[0].traces) == [len(fig.data) - 2, len(fig.data) - 1]


def test_both_panels_start_alike_and_a_particle_keeps_its_angle() -> None:
    fig = motion.animation(*CIRCLE, NAMES, LIGHT).fig
    left, right = fig.frames[0].data
    np.testing.assert_array_equal(left.x, right.x)
    start = start_circle(200, 0)
    np.testing.assert_allclose(
        np.arctan2(left.y, left.x), np.arctan2(start[:, 1], start[:, 0]), atol=1.5 / 600
    )
    assert np.hypot(left.x, left.y).min() == pytest.approx(600, abs=1)


def test_the_far_side_of_the_sphere_is_paler() -> None:
    fig = motion.animation(*SPHERE, NAMES, DARK).fig
    trace = fig.data[-1]
    scale = [colour for _, colour in trace.marker.colorscale]
    drawn = np.array(scale)[np.array(trace.marker.color)]
    far = SPHERE[1].points[-1][:, 2] < 0
    near = set(motion.tints(DARK))
    assert set(drawn[~far]) <= near and not set(drawn[far]) & near and far.any()


@pytest.mark.parametrize("paths", [CIRCLE, SPHERE], ids=["circle", "sphere"])
def test_the_animation_is_light_on_the_wire(paths: tuple[Trajectory, Trajectory]) -> None:
    """60 frames of 2 x 200 particles: under 350 kB, which a page may spend on one figure."""
    assert len(motion.animation(*paths, NAMES, LIGHT).fig.to_json()) < 350_000


def test_the_animation_counts_what_it_shows() -> None:
    figure = motion.animation(*CIRCLE, NAMES, LIGHT)
    assert "**1** cluster under softmax, β = 1 (order parameter 1.00)" in figure.reading
    assert "**5** clusters under Krause, radius 0.5 (0.13)" in figure.reading
    assert "lane of its own" in figure.reading
    assert "on its far side" in motion.animation(*SPHERE, NAMES, LIGHT).reading
    assert figure.alt == (
        "200 particles on a circle, two panels from the same start. After 300 steps: "
        "1 cluster under softmax, β = 1; 5 clusters under Krause, radius 0.5."
    )


@PALETTES
def test_clusters_and_order_over_time(palette: Palette) -> None:
    figure = figures.over_time(*CIRCLE, NAMES, palette)
    assert "Krause, radius 0.5 has **5** clusters from step 70 on" in figure.reading
    assert "0.09 at the start, 1.00 at the end" in figure.reading
    assert f"from step {CIRCLE[0].rest} on no particle moves by more than 10⁻⁹" in figure.reading
    counts, krause = figure.fig.data[0], figure.fig.data[1]
    assert counts.y[0] == krause.y[0] == 45 and counts.y[-1] == 1 and krause.y[-1] == 5
    labels = [note.text for note in figure.fig.layout.annotations]
    assert labels == ["softmax <b>1</b>", "Krause <b>5</b>", "softmax <b>1.00</b>", "Krause <b>0.13</b>"]


def test_labels_of_equal_ends_stand_apart_and_inside_the_axis() -> None:
    """Plotly drops a label outside its axis: both at the top, or both at the bottom."""
    for start, steps in ((start_circle(200, 0), 20), (start_circle(200, 0), 400)):
        path = simulate(start, Rule("softmax", 1.0), steps)
        layout = figures.over_time(path, path, NAMES, LIGHT).fig.layout
        notes = {axis: [n.y for n in layout.annotations if n.yref == axis] for axis in ("y", "y2")}
        for axis, (low, high) in (("y", layout.yaxis.range), ("y2", layout.yaxis2.range)):
            assert len(set(notes[axis])) == 2
            assert low < min(notes[axis]) and max(notes[axis]) < high


@PALETTES
def test_the_negative_control_beside_the_kernel_cut_off(palette: Palette) -> None:
    kernel = simulate(start_circle(200, 0), Rule("rbf", 1.0), 300)
    figure = figures.negative_control(CIRCLE[0], kernel, 1.0, palette, CIRCLE[1], "radius 0.5")
    text = words(figure.reading)
    assert "**2 × 10⁻¹⁵** apart, which is rounding" in text
    assert "**truncation makes the clusters that last** (cut off at radius 0.5, it goes 2.00 away)" in text
    assert "both reach one cluster" in text and "metastable" not in text
    full, cut = figure.fig.data
    assert max(full.y) < 1e-13 and max(cut.y) == pytest.approx(2, abs=0.01)
    assert min(full.x) >= 1  # step 0 is the same start, and a logarithm shows no zero


def test_high_beta_is_called_metastable() -> None:
    paths = [simulate(start_circle(200, 0), Rule(kind, 9.0), 200) for kind in ("softmax", "rbf")]
    text = figures.negative_control(*paths, 9.0, LIGHT).reading
    assert "At β = 9 softmax shows 3 clusters too after 200 steps" in text and "metastable" in text
    early = [simulate(start_circle(200, 0), Rule(kind, 1.0), 60) for kind in ("softmax", "rbf")]
    assert "metastable" not in figures.negative_control(*early, 1.0, LIGHT).reading


def test_a_cut_that_cuts_nothing_is_called_so() -> None:
    """Radius 2 reaches across the sphere."""
    start = start_circle(200, 0)
    kernel, all_of_it = (simulate(start, rule, 300) for rule in (Rule("rbf"), Rule("radius", 1.0, 2.0)))
    figure = figures.negative_control(CIRCLE[0], kernel, 1.0, LIGHT, all_of_it, "radius 2")
    assert "(radius 2 cuts nothing off, so it changes nothing either)" in figure.reading


def test_trajectories_that_differ_are_not_called_the_same() -> None:
    text = figures.negative_control(*CIRCLE, 1.0, LIGHT).reading
    assert "which is rounding" not in text and "The two come 2 apart" in text


def test_opinions_are_labelled_where_they_end() -> None:
    figure = figures.opinions(hegselmann_krause(np.linspace(0, 1, 201), 0.2), 0.2, DARK)
    assert "**2 clusters** after 7 steps" in figure.reading
    labels = [note.text for note in figure.fig.layout.annotations]
    assert len(labels) == 2 and sum(int(label.split(" · ")[1]) for label in labels) == 201


def _view() -> None:
    from app.views.krause_particles import particles

    particles()


def opened(**query: str) -> AppTest:
    test = AppTest.from_function(_view, default_timeout=60)
    for name, value in {"p_n": "60", "p_steps": "50", **query}.items():
        test.query_params[name] = value
    return test.run()


def sliders(test: AppTest) -> dict[str, Any]:
    return {slider.key: slider.value for slider in test.slider}


@pytest.mark.parametrize(
    ("query", "keys"),
    [
        ({}, {"p_n", "p_seed", "p_steps", "p_beta", "p_radius", "p_sigma"}),
        ({"p_rule": "the nearest k"}, {"p_n", "p_seed", "p_steps", "p_beta", "p_k", "p_sigma"}),
        ({"p_space": "Opinions (1-D)"}, {"p_n", "p_seed", "p_eps"}),
    ],
)
def test_only_the_controls_that_matter(query: dict[str, str], keys: set[str]) -> None:
    test = opened(**query)
    assert not test.exception
    assert set(sliders(test)) == keys
    assert all(control.help for control in test.slider)


def test_a_link_sets_the_particles() -> None:
    test = opened(p_rule="the nearest k", p_k="7", p_beta="4.5", p_seed="3")
    assert sliders(test)["p_k"] == 7 and sliders(test)["p_beta"] == 4.5 and sliders(test)["p_seed"] == 3
    said = " ".join(element.value for element in test.markdown)
    assert "Krause, k 7" in said and "softmax, β = 4.5" in said


def test_a_radius_across_the_sphere_is_no_truncation() -> None:
    said = " ".join(element.value for element in opened(p_radius="2", p_steps="400").markdown)
    assert "**1** cluster under Krause, radius 2" in said


def test_more_neighbours_than_particles_is_everyone() -> None:
    test = opened(p_rule="the nearest k", p_k="200", p_steps="400")
    assert not test.exception
    assert "**1** cluster under Krause, k 200" in " ".join(element.value for element in test.markdown)
