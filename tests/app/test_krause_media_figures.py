"""What the Krause figures claim of costs, of the adapted model and of single seeds, on known numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

from app.figures.krause_adaptation import GATE_START, first_token_by_layer, perplexity_lines
from app.figures.krause_cost import ahead_from, cost_curves
from app.figures.krause_generation import bits_dots, bits_reading, completions
from app.figures.krause_vision import accuracy_reading
from app.theme import DARK, LIGHT
from tests.app.krause_store import fill


def timings(spread: float, lengths: tuple[int, ...] = (512, 1_024, 2_048, 4_096)) -> pd.DataFrame:
    """Gathered attention at 1 µs a token, a fused kernel at 1 ns a pair; they cross at 1,000 tokens."""
    rows = [
        {"path": path, "topk": 0, "length": n, "repetition": r, "seconds": s * f, "peak_bytes": 100 * n}
        for n in lengths
        for path, s in (("gathered", 1e-6 * n), ("sdpa", 1e-9 * n * n))
        for r, f in enumerate((1 / spread, 1.0, spread))
    ]
    return pd.DataFrame(rows)


def test_ahead_holds_from_a_length_on() -> None:
    ours, theirs = pd.Series({1: 1.0, 2: 3.0, 4: 1.0, 8: 1.0}), pd.Series({1: 2.0, 2: 2.0, 4: 2.0, 8: 2.0})
    assert ahead_from(ours, theirs) == 4  # at 1 it was ahead too, but not at 2
    assert ahead_from(theirs, ours) is None
    assert ahead_from(ours, pd.Series({16: 1.0})) is None


@pytest.mark.parametrize(
    ("spread", "said"),
    [
        (1.001, "from **1,024 tokens** on, 4.1 times at 4,096."),
        (1.2, "from **1,024 tokens** on, 4.1 times at 4,096; in every repetition only from 2,048 on."),
        (3.0, "4.1 times at 4,096, but repetitions of the two overlap."),
    ],
)
def test_a_crossing_within_the_noise_is_no_crossing(spread: float, said: str) -> None:
    assert said in cost_curves(timings(spread), LIGHT).reading


def test_the_fused_kernel_has_its_exponent_and_every_line_its_interval() -> None:
    figure = cost_curves(timings(1.0), DARK)
    assert "and the fused kernel grows as N^**2.00** [2.00, 2.00]" in figure.reading
    assert sum("[1.00, 1.00]" in (t.hovertemplate or "") for t in figure.fig.data) == 1


def test_lengths_on_the_axis_leave_room_and_keep_the_longest() -> None:
    axis = cost_curves(timings(1.0, (256, 512, 1_024, 2_048, 4_096, 8_192)), LIGHT).fig.layout.xaxis2
    assert sorted(axis.tickvals) == [512, 2_048, 8_192]


def layers(gates: tuple[float, ...]) -> pd.DataFrame:
    rows = [
        {"seed": 0, "stage": stage, "layer": n, "standard_first": 0.6, "krause_first": 0.05}
        | {"mixed_first": 0.5, "gate": gate if stage == "trained" else None}
        for stage in ("base", "trained")
        for n, gate in enumerate(gates)
    ]
    return pd.DataFrame(rows).astype({"gate": float})


def test_the_gate_is_drawn_by_layer_beside_its_start() -> None:
    figure = first_token_by_layer(layers((0.1, 0.3, 0.5)), 32, 256, LIGHT)
    lower = [t for t in figure.fig.data if t.yaxis == "y2"]
    assert len(lower) == 1 and list(lower[0].y) == [0.1, 0.3, 0.5]
    assert any(s.y0 == GATE_START and s.yref == "y2" for s in figure.fig.layout.shapes)
    space = "\N{NO-BREAK SPACE}"
    assert f"between 10{space}% (layer 0) and 50{space}% (layer 2)" in figure.reading


def test_the_gate_of_the_figure_is_that_of_the_method() -> None:
    from models.attention.gated import GateSpec

    assert GateSpec(window=32, topk=16, sigma=1.0).branch == GATE_START


def final(gaps: tuple[float, ...]) -> pd.DataFrame:
    rows = [
        {"seed": seed, "step": step, "split": split, "loss_nats": 3.0 + (gap if split == "validation" else 0)}
        for seed, gap in enumerate(gaps)
        for step in (0, 24)
        for split in ("validation", "control")
    ]
    return pd.DataFrame(rows)


def test_perplexities_are_compared_in_pairs() -> None:
    same = perplexity_lines(final((-0.1, 0.1)), LIGHT).reading
    assert "ratio is 1.000 [" in same and "no difference can be claimed" in same
    worse = perplexity_lines(final((np.log(2), np.log(2))), LIGHT).reading
    assert "ratio is 2.000 [2.000, 2.000] over 2 paired seeds; the interval leaves out 1" in worse
    assert "One seed" in perplexity_lines(final((0.1,)), LIGHT).reading


def test_one_seed_claims_no_accuracy() -> None:
    row = {"pairs": 10.0, "pairs_dense": 100.0, "forward_ms": 2.0, "window": None, "topk": None, "seed": 0}
    frame = pd.DataFrame(
        [row | {"mechanism": m, "accuracy": a} for m, a in (("softmax", 0.8), ("krause", 0.9))]
    )
    text = accuracy_reading(frame)
    assert "One seed each" in text and "90\N{NO-BREAK SPACE}% fewer pairs" in text


def bits(values: dict[str, tuple[float, ...]]) -> pd.DataFrame:
    """Outcomes whose losses are `values` bits, by mechanism and seed."""
    return pd.DataFrame(
        [
            {"mechanism": m, "window": None, "topk": None, "seed": s, "loss_nats": np.log(2) * v}
            for m, found in values.items()
            for s, v in enumerate(found)
        ]
    )


def test_bits_are_paired_with_softmax_and_with_the_same_support() -> None:
    krause = (1.0, 1.5, 2.0)
    text = bits_reading(
        bits({"softmax": (0.9, 1.4, 1.9), "krause": krause, "window_topk": (0.9, 1.5, 2.1), "linear": (3.0,)})
    )
    assert "Krause against softmax: **+0.1000 bits per pixel [+0.1000, +0.1000]**" in text
    # Student: t(0.975, 2) = 4.3027, spread 0.1, over the root of 3
    assert "the same support: **+0.0000 bits per pixel [−0.2484, +0.2484]** over 3 paired seeds; no" in text
    assert text.endswith("Linear (elu + 1) has one seed and no interval.")


def test_one_seed_claims_no_bits() -> None:
    text = bits_reading(bits({"softmax": (1.0,), "krause": (0.5,)}))
    assert text == "One seed each: there is no interval, so no difference can be claimed."
    drawn = bits_dots(bits({"linear": (1.0,)}), LIGHT).fig.data
    assert any("1 seed<extra>" in (t.hovertemplate or "") for t in drawn)


def test_a_lone_seed_beside_paired_ones_is_named() -> None:
    row = {"pairs": 10.0, "pairs_dense": 100.0, "forward_ms": 2.0, "window": None, "topk": None}
    frame = pd.DataFrame(
        [
            row | {"mechanism": m, "seed": s, "accuracy": 0.8}
            for m, seeds in (("softmax", 3), ("krause", 3), ("linear", 1))
            for s in range(seeds)
        ]
    )
    text = accuracy_reading(frame)
    assert "Linear (elu + 1) has one seed and no interval." in text and "One seed each" not in text


def test_no_interval_of_bits_ends_on_the_edge() -> None:
    frame = pd.DataFrame(
        [
            {"mechanism": "softmax", "window": None, "topk": None, "seed": s, "loss_nats": np.log(2) * v}
            for s, v in enumerate((1.0, 1.1, 1.2))
        ]
    )
    figure = bits_dots(frame, LIGHT)
    low, high = figure.fig.layout.xaxis.range
    ends = [x for t in figure.fig.data for x in t.x]
    assert low < min(ends) and max(ends) < high


def test_six_pictures_take_no_more_height_than_their_width() -> None:
    frame = pd.DataFrame(
        {"number": range(6), "given_rows": [14] * 6, "pixels": [np.zeros((28, 28), np.uint8)] * 6}
    )
    assert completions(frame, {"softmax": frame}, LIGHT).fig.layout.height == 24 + 2 * 84


def test_prompts_are_bold_and_what_was_written_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stars beside a space or an escaped sign are text to Markdown; the store's prompt ends in one."""
    fill(tmp_path / "traces.duckdb", tmp_path / "staging")
    monkeypatch.setenv("CLOUDCHAMBER_HOME", str(tmp_path))

    def page() -> None:
        from app.views.krause_generation import generation
        from app.widgets.store import current_store

        generation(current_store())

    test = AppTest.from_function(page, default_timeout=60).run()
    assert not test.exception
    shown = [m.value for m in test.markdown if "beginning" in m.value]
    assert shown == [r"**In the \<b\>** beginning \*was\*"] * 3
    assert [c.value for c in test.caption][:3] == ["Softmax", "Krause, W 64", "Krause, W 16"]
