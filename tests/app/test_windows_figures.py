"""Windows of attention in the figures: what cannot be seen is hatched and not counted."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from app.figures import attention_windows as windows
from app.figures.attention_depth import importance_by_layer
from app.figures.attention_head import head_view
from app.figures.attention_metrics import METRICS
from app.figures.attention_sinks import heads_map, sink_reading
from app.figures.attention_views import threshold_curve
from app.theme import LIGHT
from tests.app.brought_store import local_map

EPS = 0.3


def seen(*sizes: int | None, length: int = 24) -> pd.DataFrame:
    """Windows of layers, causal."""
    return pd.DataFrame(
        {
            "layer": range(len(sizes)),
            "causal": True,
            "window": pd.array(list(sizes), dtype="Int32"),
            "first_seen": [((size or length) - 1) / (length - 1) for size in sizes],
            "importance_ceiling": [(size or length) / length for size in sizes],
        }
    )


def frames(rates: list[list[float]], seen: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Heads and layers with these sink rates, masked."""
    heads = pd.DataFrame(
        [
            {"layer": layer, "head": head, "sink_rate": rate, "first_importance": rate / 2, "samples": 1}
            for layer, line in enumerate(rates)
            for head, rate in enumerate(line)
        ]
    )
    layers = heads.groupby("layer")["sink_rate"].agg(["mean", "count"]).reset_index()
    layers.columns = pd.Index(["layer", "rate", "heads"])
    return windows.masked(heads, "sink_rate", seen, EPS), windows.masked(layers, "rate", seen, EPS)


def test_a_layer_out_of_sight_is_left_out_of_the_share() -> None:
    table = seen(6, None, 12)  # ceilings 25 %, 100 %, 50 %
    assert windows.out_of_sight(table, EPS) == [0]
    assert windows.out_of_sight(table, 0.5) == [0, 2]
    heads, layers = frames([[0, 0], [1, 0], [1, 1]], table)
    assert heads["sink_rate"].isna().sum() == 2
    said = sink_reading(layers, len(heads), 1, EPS).replace("\N{NO-BREAK SPACE}", " ")
    assert said.startswith("Of the 4 heads that see far enough, **75 %** give the first token")
    assert "no sink" not in said
    said = windows.window_reading(table, EPS, 24).replace("\N{NO-BREAK SPACE}", " ")
    assert "2 of 3 layers see only the last 6 and 12 tokens; at 24 tokens" in said
    assert "**Layer 0 cannot show a sink at ε = 0.30**: it is hatched" in said


def test_where_nothing_can_be_seen_it_is_said() -> None:
    table = seen(4, 4)
    _, layers = frames([[0], [0]], table)
    assert "No layer can show a sink" in sink_reading(layers, 2, 1, EPS)


def test_a_window_whose_ceiling_is_above_eps_hides_nothing() -> None:
    said = windows.window_reading(seen(20, None), EPS, 24)
    assert said.endswith("which is above ε: every layer can show a sink.")
    assert windows.out_of_sight(seen(20, None), EPS) == []


def test_a_window_both_ways_has_a_ceiling_too() -> None:
    table = seen(5, None).assign(causal=False, importance_ceiling=[3 / 24, 1.0])
    said = windows.window_reading(table, EPS, 24)
    assert said.startswith("1 of 2 layers see only the nearest 5 tokens; at 24 tokens their first-token")
    assert "at most 12\N{NO-BREAK SPACE}%. **Layer 0 cannot show a sink at ε = 0.30**" in said
    curve = pd.DataFrame({"eps": [0.0, 1.0], "rate": [1.0, 0.0]})
    assert threshold_curve(curve, EPS, None, LIGHT, table).fig.layout.shapes
    apart = np.abs(np.arange(24)[:, None] - np.arange(24)[None, :])
    weights = np.where(apart < 3, 1.0, 0.0)
    weights /= weights.sum(axis=1, keepdims=True)
    index = pd.DataFrame({"position": range(24), "importance": 0.2, "low": 0, "high": 1, "samples": 1})
    sight = windows.sight_of(table, 0)
    drawn = head_view(weights, list("abcdefghijklmnopqrstuvwx"), index, (0, 0), EPS, LIGHT, sight=sight)
    (strip,) = [t for t in drawn.fig.data if t.type == "scatter" and t.customdata is not None]
    assert strip.y[12] == pytest.approx(1 / 24)  # five queries of 24 give it a fifth each
    assert len([s for s in drawn.fig.layout.shapes if s.line.dash == "dot"]) == 2


def test_without_a_window_nothing_changes() -> None:
    table = seen(None, None)
    heads, layers = frames([[1, 0], [1, 1]], table)
    assert windows.window_reading(table, EPS, 24) == ""
    with_windows = heads_map(heads, layers, METRICS["sink"], EPS, LIGHT, windows=table)
    without = heads_map(heads, layers, METRICS["sink"], EPS, LIGHT)
    assert with_windows.fig.to_json() == without.fig.to_json()
    assert with_windows.alt == without.alt


@pytest.mark.parametrize(("metric", "hatched"), [("sink", 2), ("importance", 1)])
def test_hatching_covers_the_hidden_layers(metric: str, hatched: int) -> None:
    table = seen(6, None)
    heads, layers = frames([[0.0, 0.0], [1.0, 0.0]], table)
    drawn = heads_map(heads, layers, METRICS[metric], EPS, LIGHT, windows=table)
    hatches = [t for t in drawn.fig.data if t.type == "bar" and t.marker.pattern.shape == "/"]
    assert [list(t.x) for t in hatches] == [[0]] * hatched
    assert "out of sight: 0" in drawn.alt


def test_the_map_shows_the_edge_of_the_window() -> None:
    weights = local_map(0.2, 6)
    curve = pd.DataFrame({"position": range(24), "importance": 0.1, "low": 0, "high": 0.2, "samples": 1})
    tokens = [str(i) for i in range(24)]
    sight = windows.Sight(6, True, 6 / 24)
    drawn = head_view(weights, tokens, curve, (0, 0), EPS, LIGHT, sight=sight)
    (edge,) = [s for s in drawn.fig.layout.shapes if s.line.dash == "dot"]
    assert (edge.x0, edge.y0, edge.x1, edge.y1) == (-0.5, 5.5, 17.5, 23.5)
    assert "sees only the last 6 tokens: at most 25" in drawn.reading
    plain = head_view(weights, tokens, curve, (0, 0), EPS, LIGHT)
    assert not [s for s in plain.fig.layout.shapes if s.line.dash == "dot"]


def test_seen_pairs_of_a_causal_and_a_symmetric_window() -> None:
    assert windows.Sight(3, True).seen(8).sum(axis=1).max() == 5  # both sides; the causal mask is the map's
    both = windows.Sight(5, False).seen(8)
    assert both[4].tolist() == [False, False, True, True, True, True, True, False]
    # A pooled cell exists when any pair in it does.
    fine = np.tri(8, dtype=bool) & windows.Sight(3, True).seen(8)
    coarse = np.tri(4, dtype=bool) & windows.Sight(3, True).seen(4, 2)
    assert (coarse == fine.reshape(4, 2, 4, 2).any(axis=(1, 3))).all()


def test_ceilings_are_drawn_by_depth_and_by_threshold() -> None:
    table = seen(6, None)
    heads, _ = frames([[0.0, 0.4], [1.0, 0.0]], table)
    drawn = importance_by_layer(heads, table, EPS, LIGHT)
    assert [y for y in drawn.fig.data[1].y if y is not None] == [0.25, 0.25, 1.0, 1.0]
    assert "25" in drawn.alt
    curve = pd.DataFrame({"eps": [0.0, 0.5, 1.0], "rate": [1.0, 0.5, 0.0]})
    lines = threshold_curve(curve, EPS, None, LIGHT, table).fig.layout.shapes
    assert [line.x0 for line in lines] == [0.25]
