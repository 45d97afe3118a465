"""Figures of the Krause page on frames whose numbers are known: what is drawn, what is said."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from app.figures import krause_adaptation, krause_cost, krause_generation, krause_grid, krause_particles
from app.figures.krause_emergence import apart, by_query, emergence
from app.figures.krause_settings import of_setting, setting_name, settings, spread, two_lines
from app.figures.krause_text import METRICS, ceiling, maps_grid, sinks_dots, sinks_reading
from app.figures.krause_vision import COSTS, accuracy_cost, looks_reading, picture, query_name, tiles
from app.theme import DARK, LIGHT
from models.attention.particles import Rule, hegselmann_krause, simulate, start_circle, start_sphere

NONE = float("nan")


def ends(values: dict[tuple[str, float, float], list[float]], metric: str = "first_mass") -> pd.DataFrame:
    """Final sink metrics: setting -> one value a seed."""
    rows = [
        {"mechanism": m, "window": w, "topk": k, "sigma": "head", "seed": seed, metric: value}
        for (m, w, k), found in values.items()
        for seed, value in enumerate(found)
    ]
    return pd.DataFrame(rows)


SINKS = {
    ("softmax", NONE, NONE): [0.75, 0.76, 0.74],
    ("null_key", NONE, NONE): [0.74, 0.75, 0.73],
    ("krause", 16.0, 8.0): [0.01, 0.0, 0.0],
    ("krause", 64.0, 8.0): [0.2, 0.3, 0.1],
    ("window_topk", 64.0, 8.0): [0.75, 0.75, 0.75],
}


def test_settings_keep_the_studys_order_with_wide_windows_first() -> None:
    assert settings(ends(SINKS)) == [
        ("softmax", None, None),
        ("null_key", None, None),
        ("krause", 64, 8),
        ("krause", 16, 8),
        ("window_topk", 64, 8),
    ]
    assert len(of_setting(ends(SINKS), ("krause", 16, 8))) == 3
    assert len(of_setting(ends(SINKS), ("softmax", None, None))) == 3


def test_settings_have_names() -> None:
    assert setting_name("krause", 64.0, 8.0) == "Krause, window 64, k 8"
    assert setting_name("krause", 64.0, NONE, short=True) == "Krause, W 64"
    assert setting_name("softmax", NONE, NONE) == "Softmax"
    assert two_lines("window_topk", 16, 8) == "Same support<br>W 16, k 8"
    assert setting_name("unheard_of", 1, 2) == "unheard_of"


def test_a_spread_is_students_and_one_seed_has_none() -> None:
    assert spread([1.0, 2.0, 3.0]) == pytest.approx((2.0, 2 - 2.48414, 2 + 2.48414), abs=1e-4)
    assert spread([0.4]) == (0.4, 0.4, 0.4)


def test_ceilings_are_those_of_the_window() -> None:
    assert ceiling("first_mass", 16, 64, 0.3) == pytest.approx(15 / 63)
    assert ceiling("sink_rate", 16, 64, 0.3) == 0.0  # 16/64 lies below the threshold
    assert ceiling("sink_rate", 32, 64, 0.3) is None
    assert ceiling("first_mass", 64, 64, 0.3) is None and ceiling("first_mass", None, 64, 0.3) is None
    assert ceiling("early_first_mass", 16, 64, 0.3) is None  # no window hides anything there


@pytest.mark.parametrize("palette", [LIGHT, DARK])
def test_sinks_side_by_side_draw_every_seed_and_every_ceiling(palette: Any) -> None:
    figure = sinks_dots(ends(SINKS), METRICS["first_mass"], 64, 0.3, palette)
    drawn = sum(len(t.x) for t in figure.fig.data if t.mode == "markers" and t.marker.size == 7)
    assert drawn == 15
    lines = [s for s in figure.fig.layout.shapes if s.x0 == s.x1]
    assert [s.x0 for s in lines] == [pytest.approx(15 / 63)]  # the narrow Krause alone
    assert "Krause, window 64, k 8 20" in figure.alt


def test_the_reading_separates_window_from_score() -> None:
    text = sinks_reading(ends(SINKS), METRICS["first_mass"], 64, 0.3)
    assert "With softmax **75\N{NO-BREAK SPACE}%** of attention is on the first token" in text
    assert "gives 75\N{NO-BREAK SPACE}% and Krause **20\N{NO-BREAK SPACE}%**" in text
    assert "A window of 16 in 64 tokens cannot exceed 24\N{NO-BREAK SPACE}%" in text
    assert "A null key beside softmax does not take the sink over" in text


def test_the_reading_says_when_there_is_no_sink() -> None:
    weak = {("softmax", NONE, NONE): [0.01, 0.02], ("krause", 64.0, 16.0): [0.0, 0.01]}
    text = sinks_reading(ends(weak), METRICS["first_mass"], 256, 0.3)
    assert "No sink forms at this size" in text and "due to the distance" not in text


def test_the_reading_of_nothing_is_a_sentence() -> None:
    empty = ends(SINKS, "null_mass").iloc[:0]
    assert sinks_reading(empty, METRICS["null_mass"], 64, 0.3) == "No attention here has a null key."


def test_maps_stand_side_by_side_on_one_scale() -> None:
    weights = np.tril(np.ones((8, 8))) / np.arange(1, 9)[:, None]
    maps = [(("softmax", None, None), weights), (("krause", 64, 8), np.eye(8))] * 2
    figure = maps_grid(maps, ["<s>", *"abcdefg"], (0, 0), LIGHT)
    assert sum(t.type == "image" for t in figure.fig.data) == 4
    assert "Softmax 25" in figure.alt and "Krause, window 64, k 8 0" in figure.alt
    assert any("&lt;s&gt;abcdefg" in (a.text or "") for a in figure.fig.layout.annotations)


def test_labels_are_pushed_apart_in_order_and_not_below_the_floor() -> None:
    placed = apart([0.5, 0.5, 0.0, 0.01], 0.1, 0.0)
    assert placed[2] >= 0 and placed[3] - placed[2] >= 0.1 - 1e-9
    assert abs(placed[0] - placed[1]) >= 0.1 - 1e-6
    assert apart([0.1, 0.9], 0.1) == [0.1, 0.9]


def curves() -> tuple[pd.DataFrame, pd.DataFrame]:
    rows, losses = [], []
    for mechanism, window, topk, end in (("softmax", NONE, NONE, 0.8), ("krause", 64.0, 8.0, 0.2)):
        for seed in (0, 1):
            base = {"mechanism": mechanism, "window": window, "topk": topk, "seed": seed}
            for step, share in ((0, 0.05), (50, 0.3), (100, 0.7), (400, 1.0)):
                rows.append(base | {"step": step, "first_mass": end * share})
                losses.append(base | {"step": step, "split": "validation", "bits": 6 - 4 * share})
    losses.append(
        {
            "mechanism": "softmax",
            "window": NONE,
            "topk": NONE,
            "seed": 0,
            "step": 0,
            "split": "floor",
            "bits": 1.9,
        }
    )
    return pd.DataFrame(rows), pd.DataFrame(losses)


def test_emergence_says_when_the_sink_is_half_grown() -> None:
    sinks, losses = curves()
    figure = emergence(sinks, losses, METRICS["first_mass"], "bits per character", LIGHT)
    assert "half of its 80\N{NO-BREAK SPACE}% within **100 updates** of 400" in figure.reading
    assert "Krause predicts as well as softmax (2 against 2 bits per character)" in figure.reading
    assert any("the process itself: 1.9" in (a.text or "") for a in figure.fig.layout.annotations)


def test_a_curve_that_stays_low_has_no_sink() -> None:
    sinks, losses = curves()
    sinks["first_mass"] *= 0.1
    figure = emergence(sinks, losses, METRICS["first_mass"], "bits per byte", DARK)
    assert "no sink forms in 400 updates" in figure.reading


def test_by_query_names_what_is_zero_by_construction() -> None:
    rows = [
        {"mechanism": m, "window": w, "topk": k, "query": q, "mass": 0.5 if w != 4.0 or q < 4 else 0.0}
        for m, w, k in (("softmax", NONE, NONE), ("krause", 4.0, 2.0))
        for q in range(12)
    ]
    figure = by_query(pd.DataFrame(rows), LIGHT)
    assert "Under a window of 4 keys the curve is 0 from query 4 on, **by construction**" in figure.reading


def test_the_grid_names_the_best_and_the_worst() -> None:
    rows = [
        {"window": w, "topk": k, "sigma": s, "seed": 0, "loss_nats": bits * np.log(2), "first_mass": 0.1}
        for w, k, s, bits in (
            (16, 4, "head", 2.6),
            (64, 4, "head", 2.4),
            (64, 16, "head", 2.1),
            (64, NONE, "head", 2.2),
            (64, 16, "fixed", 2.15),
        )
    ]
    figure = krause_grid.window_grid(pd.DataFrame(rows), 2.0 * np.log(2), LIGHT)
    assert (
        "From 2.6 with 4 keys of a window of 16 to **2.1 with 16 keys of a window of 64**" in figure.reading
    )
    assert "Softmax over everything is 0.1 bits better" in figure.reading
    assert "a fixed width 2.15" in figure.reading


# --- vision --------------------------------------------------------------------------------------


def outcomes(gap: float) -> pd.DataFrame:
    rows = []
    for mechanism, window, topk, pairs, add in (
        ("softmax", NONE, NONE, 2_500, 0.0),
        ("krause", 1.0, 2.0, 316, gap),
        ("window_topk", 1.0, 2.0, 316, 0.0),
    ):
        for seed, noise in enumerate((0.001, -0.001, 0.0)):
            twist = noise if mechanism == "krause" else -noise
            rows.append(
                {
                    "mechanism": mechanism,
                    "window": window,
                    "topk": topk,
                    "seed": seed,
                    "accuracy": 0.86 + add + twist,
                    "pairs": pairs,
                    "pairs_dense": 2_500,
                    "train_seconds": 200.0 if mechanism == "krause" else 100.0,
                    "forward_ms": 20.0 if mechanism == "krause" else 10.0,
                    "loss_nats": 0.4,
                }
            )
    return pd.DataFrame(rows)


def test_no_difference_is_claimed_when_the_interval_contains_zero() -> None:
    figure = accuracy_cost(outcomes(0.001), COSTS["pairs"], LIGHT)
    assert "no difference can be claimed" in figure.reading
    assert (
        "a forward pass takes 2 times as long" in figure.reading
        and "87\N{NO-BREAK SPACE}% fewer pairs" in figure.reading
    )


def test_a_difference_is_given_with_its_paired_interval() -> None:
    """Differences 0.022, 0.018, 0.020: mean 2.00 points, s = 0.2, t(2) = 4.3027: ± 0.50."""
    figure = accuracy_cost(outcomes(0.02), COSTS["forward_ms"], DARK)
    assert "**+2.00 points [+1.50, +2.50]** over 3 paired seeds; the interval leaves out 0" in figure.reading


def test_a_patch_has_a_name_and_is_clickable() -> None:
    assert query_name(0, 7) == "the class token" and query_name(25, 7) == "the patch in row 4, column 4"
    figure = picture(np.zeros((28, 28), np.uint8), 7, 25, "Bag", LIGHT)
    marks = next(t for t in figure.fig.data if t.type == "scatter")
    assert [c[0] for c in marks.customdata] == list(range(1, 50))
    assert (marks.x[24], marks.y[24]) == (13.5, 13.5)


def test_tiles_show_the_query_and_the_class_tokens_share() -> None:
    maps = np.zeros((2, 3, 50, 50), np.float32)
    maps[:, :, 25, 0], maps[:, :, 25, 25] = 0.25, 0.75
    figure = tiles(maps, 25, 7, 0.75, LIGHT)
    assert sum("cls 25" in (a.text or "") for a in figure.fig.layout.annotations) == 6
    even = np.full((2, 3, 50, 50), 0.02, np.float32)
    text = looks_reading(even, maps, "Krause", 25, 7)
    assert "over **1.8** keys under Krause and over 50 of 50 under softmax" in text  # 2^0.811
    assert text.startswith("The patch in row 4, column 4")


# --- cost, generation, adaptation ------------------------------------------------------------------


def test_cost_reads_slopes_and_the_crossing() -> None:
    rows = []
    for path, topk, power, scale in (
        ("gathered", 0, 1.0, 4e-6),
        ("dense", 0, 2.0, 1e-8),
        ("sdpa", 0, 2.0, 0.9e-9),
        ("gathered", 96, 1.0, 9e-6),
    ):
        for n in (256, 512, 1024, 2048, 4096, 8192):
            for repetition in range(3):
                rows.append(
                    {
                        "path": path,
                        "topk": topk,
                        "length": n,
                        "repetition": repetition,
                        "seconds": scale * n**power,
                        "peak_bytes": 1000 * n,
                    }
                )
    figure = krause_cost.cost_curves(pd.DataFrame(rows), LIGHT)
    assert "gathered Krause attention grows as N^**1.00**" in figure.reading
    assert "dense scores grow as N^**2.00**" in figure.reading
    assert (
        "Without top-k gathered attention is ahead of the fused kernel from **8,192 tokens** on, 1.8 times"
        in figure.reading
    )
    assert "gathered attention is behind the fused kernel up to 8,192" in figure.reading


def test_completions_stack_truth_and_every_attention() -> None:
    frame = pd.DataFrame(
        {
            "number": [0, 1],
            "given_rows": [14, 14],
            "pixels": [np.full((28, 28), v, np.uint8) for v in (10, 200)],
        }
    )
    figure = krause_generation.completions(frame, {"softmax": frame, "krause": frame}, LIGHT)
    assert figure.fig.data[0].z.shape == (3 * 32 - 4, 2 * 32 - 4, 4)
    assert len(figure.fig.layout.shapes) == 2 and "given 14 of 28 rows" in figure.reading


def test_bits_are_compared_in_pairs() -> None:
    frame = outcomes(0.0)
    frame.loc[frame["mechanism"] == "krause", "loss_nats"] = [0.41, 0.42, 0.43]
    figure = krause_generation.bits_dots(frame, LIGHT)
    assert "**+0.0289 bits per pixel" in figure.reading  # 0.02 / ln 2
    assert "no difference can be claimed" in figure.reading or "leaves out 0" in figure.reading


def test_speed_counts_images_per_second() -> None:
    frame = pd.DataFrame(
        [
            {
                "mechanism": "krause",
                "window": 128.0,
                "topk": 96.0,
                "memory": "ring",
                "repetition": r,
                "tokens": 784,
                "batch": 4,
                "seconds": 2.0,
                "memory_bytes": 2048,
            }
            for r in range(2)
        ]
    )
    figure = krause_generation.speed_bars(frame, LIGHT)
    assert figure.fig.data[0].x == (2.0,) and "2 images/s with 2\N{NO-BREAK SPACE}KiB" in figure.reading


def adapted(standard: float) -> pd.DataFrame:
    rows = []
    for stage, values in (
        ("base", (0.6, None, 0.6, None)),
        ("trained", (standard, 0.05, 0.5, 0.2)),
        ("control", (0.61, None, 0.61, None)),
    ):
        for layer in range(3):
            first, krause, mixed, gate = values
            rows.append(
                {
                    "seed": 0,
                    "stage": stage,
                    "layer": layer,
                    "standard_first": first,
                    "krause_first": krause,
                    "mixed_first": mixed,
                    "gate": gate,
                }
            )
    return pd.DataFrame(rows).astype({"krause_first": float, "gate": float})


def test_adaptation_says_what_the_gate_does_by_construction() -> None:
    figure = krause_adaptation.first_token_by_layer(adapted(0.6), 32, 256, LIGHT)
    assert (
        "gets 60\N{NO-BREAK SPACE}% of attention" in figure.reading
        and "**by construction**" in figure.reading
    )
    assert "keeps its sink: 60\N{NO-BREAK SPACE}%, 1.00 times" in figure.reading
    assert "falls to 30\N{NO-BREAK SPACE}%, 0.50 times" in krause_adaptation.adaptation_reading(
        adapted(0.3), 32
    )
    assert any("ceiling of the Krause branch: 12" in (a.text or "") for a in figure.fig.layout.annotations)


def test_perplexities_are_exponentials_of_the_losses() -> None:
    rows = [
        {"run_id": "a", "seed": 0, "step": step, "split": split, "loss_nats": np.log(value)}
        for split, pair in (("validation", (30.0, 20.0)), ("control", (24.0, 19.0)))
        for step, value in zip((0, 40), pair, strict=True)
    ]
    text = krause_adaptation.perplexity_lines(pd.DataFrame(rows), LIGHT).reading
    assert "from 24 to 30; after training it is **20**, against 19" in text


# --- particles -------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [start_circle(60, 0), start_sphere(60, 0)])
def test_the_animation_has_a_frame_for_every_kept_step(start: np.ndarray) -> None:
    left = simulate(start, Rule("softmax", 1.0), 200)
    right = simulate(start, Rule("radius", 1.0, 0.5), 200)
    figure = krause_particles.animation(left, right, ("softmax, β = 1", "Krause, radius 0.5"), LIGHT)
    assert len(figure.fig.frames) == len(left.steps) == len(figure.fig.layout.sliders[0].steps)
    assert "after 200 steps: **1** cluster under softmax" in figure.reading


def test_the_negative_control_says_rounding() -> None:
    start = start_circle(60, 0)
    pair = [simulate(start, Rule(kind, 9.0), 100) for kind in ("softmax", "rbf")]
    text = krause_particles.negative_control(*pair, 9.0, DARK).reading
    assert "which is rounding" in text and "truncation makes the clusters that last" in text
    assert "only slow to merge" in text


def test_opinions_are_counted() -> None:
    figure = krause_particles.opinions(hegselmann_krause(np.linspace(0, 1, 201), 0.1), 0.1, LIGHT)
    assert "201 opinions settle in **4 clusters** after 10 steps" in figure.reading
