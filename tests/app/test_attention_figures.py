"""The figures of attention sinks on frames small enough to know every number."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from app.figures import attention_causes as causes
from app.figures import attention_head as head
from app.figures import attention_overview as overview
from app.figures import attention_pixels, tokens
from app.figures import attention_sinks as sinks
from app.figures import attention_views as views
from app.figures.attention_metrics import METRICS, scale_top
from app.theme import DARK, LIGHT, track_rgb

PALETTES = pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])


def words(text: str) -> str:
    """Text with plain spaces where numbers are kept together."""
    return text.replace("\N{NO-BREAK SPACE}", " ")


def pixels(uri: str) -> np.ndarray:
    """The pixels of a PNG data URI as the browser sees them: (R, C, 4) uint8."""
    raw = base64.b64decode(uri.removeprefix("data:image/png;base64,"))
    return np.asarray(Image.open(io.BytesIO(raw)).convert("RGBA"))


def heads_of(values: list[list[float]]) -> pd.DataFrame:
    """Heads with the given first-token importance, [layer][head]; those above 0.3 sink."""
    rows = [
        {
            "layer": layer,
            "head": h,
            "first_importance": value,
            "sink_rate": float(value > 0.3),
            "row_entropy_bits": 2 * value,
        }
        for layer, line in enumerate(values)
        for h, value in enumerate(line)
    ]
    return pd.DataFrame(rows)


def layers_of(rates: list[float], heads: int = 2) -> pd.DataFrame:
    return pd.DataFrame({"layer": range(len(rates)), "rate": rates, "heads": heads})


def curve_of(weights: np.ndarray, samples: int = 1) -> pd.DataFrame:
    """The importance frame of a causal map, with a band of ±10 % of it."""
    size = len(weights)
    values = weights.sum(axis=0) / (size - np.arange(size))
    return pd.DataFrame(
        {
            "position": range(size),
            "importance": values,
            "low": 0.9 * values,
            "high": 1.1 * values,
            "samples": samples,
        }
    )


def sinking_map(size: int, share: float = 0.5) -> np.ndarray:
    """A causal map: `share` on key 0, the rest even over the keys that can be seen."""
    seen = np.tri(size)
    weights = (1 - share) * seen / seen.sum(axis=1, keepdims=True)
    weights[:, 0] += share
    return weights.astype(np.float32)


def strip(figure: Any) -> list[Any]:
    """The traces below a head's map: the band, if any, and the columns."""
    return [trace for trace in figure.fig.data if trace.yaxis == "y2"]


def numbers(figure: Any) -> Any:
    """The invisible picture of a head's map whose colours are numbers."""
    return [trace for trace in figure.fig.data if trace.type == "image"][1]


def notes(figure: Any) -> list[str]:
    return [words(a.text) for a in figure.fig.layout.annotations]


# Tokens


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        (" the", "the"),
        ("  ", "␣␣"),
        ("\n", "\\n"),
        ("a\tb", "a\\tb"),
        ("\u200b", "\\u200b"),
        ("\u202eevil", "\\u202eevil"),
        ("\ud800", "\\ud800"),
        ("\u0301", "\N{DOTTED CIRCLE}\u0301"),
        ("🙂", "🙂"),
        ("antidisestablishment", "antidisest…"),
        ("", "␣"),
    ],
)
def test_every_token_is_visible(token: str, shown: str) -> None:
    assert tokens.plain(token) == shown


def test_labels_are_inert_and_one_for_every_position() -> None:
    labels = tokens.axis_labels([" the", "<b>x</b>", "$a$", "&lt;", " the", "the", "שלום"])
    assert labels == [
        "the",
        "&lt;b&gt;x&lt;/b&gt;",
        "&#36;a&#36;",
        "&amp;lt;",
        "the\u200b",
        "the\u200b\u200b",
        "\u2068שלום\u2069",
    ]


def test_long_texts_number_their_positions() -> None:
    labels = tokens.axis_labels([" considerable"] * 200)
    assert labels[:2] == ["0 conside…", "1 conside…"]
    assert tokens.axis_labels([" a"] * 200, factor=2)[-1] == "198 a"
    assert len(set(labels)) == 200


def test_a_token_in_a_sentence_is_never_markdown() -> None:
    assert tokens.markdown("[x](javascript:1)") == r"“\[x\]\(javascript\:1\)”"
    assert tokens.markdown(":red[a]&") == r"“\:red\[a\]&amp;”"


# Every head


@PALETTES
def test_heads_map_draws_the_metric_and_the_strip_on_one_axis(palette) -> None:
    heads = heads_of([[0.1, 0.2], [0.5, 0.9], [0.4, 0.1]])
    figure = sinks.heads_map(heads, layers_of([0.0, 1.0, 0.5]), METRICS["importance"], 0.3, palette)
    cells, targets, strip = figure.fig.data
    assert np.allclose(cells.z, [[0.1, 0.5, 0.4], [0.2, 0.9, 0.1]])
    assert (cells.zmin, cells.zmax) == (0, 1)
    assert [color for _, color in cells.colorscale] == list(palette.track)
    assert [words(tick) for tick in cells.colorbar.ticktext] == ["0 %", "50 %", "100 %"]
    assert list(strip.y) == [0.0, 1.0, 0.5]
    assert (cells.xaxis or "x") == (strip.xaxis or "x"), "one axis, so aligned to the pixel"
    assert tuple(figure.fig.layout.xaxis.range) == (-0.5, 2.5)
    assert list(zip(targets.x, targets.y, strict=True))[3] == (1, 1)
    assert words(targets.customdata[3][0]) == "90 %"
    frame = sinks.cell_frame(heads, (1, 0))
    assert (frame.start, frame.width, frame.top, frame.height) == (
        1 / 3,
        1 / 3,
        figure.fig.layout.margin.t,
        32,
    )
    assert (frame.left, frame.right) == (figure.fig.layout.margin.l, figure.fig.layout.margin.r)
    assert f"border: 2.5px solid {palette.ink}" in frame.html(palette)
    assert figure.fig.layout.xaxis.title.text == "layer, from the input"
    assert figure.fig.layout.yaxis.title.text == "head"
    assert "share of heads above ε = 0.30" in notes(figure)
    assert words(figure.alt) == (
        "Map of 3 layers by 2 heads coloured by first-token importance, median 30 %. Below it, by layer, "
        "the share of heads whose first-token importance exceeds 0.30: 50 % on average; layers with almost "
        "none: 0."
    )
    assert words(figure.reading) == (
        "First-token importance: from 10 % (layer 0, head 0) to **90 %** (layer 1, head 1), median 30 %."
    )


def test_a_head_without_a_number_is_a_gap_with_a_dash() -> None:
    heads = heads_of([[0.1, 0.2], [float("nan"), 0.9]])
    figure = sinks.heads_map(heads, layers_of([0.0, 0.5]), METRICS["importance"], 0.3, LIGHT)
    assert np.isnan(figure.fig.data[0].z[0][1])
    dash = next(a for a in figure.fig.layout.annotations if a.text == "–")
    assert (dash.x, dash.y) == (1, 0)
    assert "1 heads have no number" in figure.reading


def test_scales_end_at_the_largest_value_of_all_maps_side_by_side() -> None:
    one, other = heads_of([[0.2, 0.4]]), heads_of([[0.9, 0.1]])
    assert scale_top(METRICS["entropy"], one, other) == pytest.approx(1.8)
    assert scale_top(METRICS["importance"], one, other) == 1.0


def test_strip_says_where_nothing_sinks_between_layers_that_do() -> None:
    by_layer = layers_of([0.0, 1.0, 0.02, 0.0, 1.0])
    figure = sinks.heads_map(heads_of([[0.5]] * 5), by_layer, METRICS["sink"], 0.3, LIGHT)
    assert "almost none" in notes(figure)
    assert sinks.dry_blocks(by_layer, inner=False) == [[0], [2, 3]]
    assert sinks.dry_blocks(by_layer, inner=True) == [[2, 3]]


@pytest.mark.parametrize(
    ("rates", "reading"),
    [
        (
            [0.0, 0.8, 0.0, 0.0, 1.0],
            "**36 % of the 10 heads** give the first token more than 30 % of their attention (ε = 0.30, "
            "mean of 20 chunks). Layers 2 and 3 have **no sink at all**, although the layers on both sides "
            "do. Sinks begin in layer 1.",
        ),
        (
            [0.8, 0.0, 0.04, 1.0],
            "**46 % of the 8 heads** give the first token more than 30 % of their attention (ε = 0.30, mean "
            "of 20 chunks). Layer 1 has **no sink at all** and layer 2 has almost none, although the layers "
            "on both sides do.",
        ),
        (
            [0.0, 0.01, 1.0],
            "**34 % of the 6 heads** give the first token more than 30 % of their attention (ε = 0.30, mean "
            "of 20 chunks). Sinks begin in layer 2: layers 0 and 1 have **almost none**.",
        ),
        (
            [0.5, 0.25],
            "**38 % of the 4 heads** give the first token more than 30 % of their attention (ε = 0.30, mean "
            "of 20 chunks). Every layer has some; layer 1 has the fewest, 25 %.",
        ),
        (
            [0.0, 0.0],
            "**None of the 4 heads** gives the first token more than 30 % of their attention (ε = 0.30, "
            "mean of 20 chunks).",
        ),
    ],
)
def test_sink_reading(rates: list[float], reading: str) -> None:
    heads = 2 * len(rates)
    assert words(sinks.sink_reading(layers_of(rates), heads, 20, 0.3)) == reading


# One head


def test_weights_travel_as_numbers_in_a_picture() -> None:
    seen = pixels(attention_pixels.weight_png(np.array([[0.374, 1.0], [0.0006, np.nan]])))
    assert seen[..., :2].tolist() == [[[37, 4], [100, 0]], [[0, 1], [0, 0]]]


@PALETTES
def test_head_view_colours_by_the_square_root_and_leaves_the_future_out(palette) -> None:
    weights = np.array([[1, 0, 0], [0.25, 0.75, 0], [0.04, 0.32, 0.64]], dtype=np.float32)
    figure = head.head_view(weights, ["a", "b", "c"], curve_of(weights), (2, 5), 0.3, palette)
    picture = pixels(figure.fig.data[0].source)
    table = track_rgb(palette.mode, 255)
    assert picture[0, 0].tolist() == [*table[254], 255]
    assert picture[1, 0].tolist() == [*table[127], 255]  # the square root of 25 % is half of the scale
    assert picture[0, 1, 3] == 0, "a causal model cannot see it, so there is no cell"
    assert pixels(numbers(figure).source)[2, 1, :2].tolist() == [32, 0]
    assert numbers(figure).opacity == 0
    assert list(figure.fig.layout.xaxis3.categoryarray) == ["a", "b", "c"]
    assert "key: the token looked at" in notes(figure)
    assert figure.fig.layout.yaxis3.title.text == "query: the token that looks"
    line = strip(figure)[-1]
    assert np.allclose(line.y, [1.29 / 3, 1.07 / 2, 0.64])
    assert line.xaxis is None, "columns of the map and the curve share their axis"
    layout = figure.fig.layout
    assert layout.xaxis.type is None, "linear: Plotly takes the images as they are"
    key, query = (t for t in figure.fig.data if t.type == "heatmap")
    assert query.text.tolist() == [["0 a"], ["1 b"], ["2 c"]], "a row of the hover label each"
    assert key.text.tolist() == [["0 a", "1 b", "2 c"]]
    assert (layout.xaxis.range, layout.yaxis.range) == (layout.xaxis3.range, layout.yaxis3.range)
    assert "ε = 0.30" in notes(figure)
    assert words(figure.alt) == (
        "Attention of layer 2, head 5: 3 queries by 3 keys, keys after the query left out. The largest "
        "weight is 100 %. Below it the importance of every key, against a threshold of 0.3: the first "
        "token, a, has 43 %."
    )


def test_a_model_that_sees_both_ways_keeps_every_cell() -> None:
    weights = np.full((3, 3), 1 / 3, dtype=np.float32)
    figure = head.head_view(weights, ["a", "b", "c"], curve_of(weights), (0, 0), 0.3, LIGHT)
    assert (pixels(figure.fig.data[0].source)[..., 3] == 255).all()
    assert np.allclose(strip(figure)[-1].y, 1 / 3)


def test_above_1024_tokens_a_pixel_is_the_largest_of_a_block_and_says_so() -> None:
    weights = sinking_map(1_100)
    weights[999, 500] = 0.5
    figure = head.head_view(weights, [" w"] * 1_100, curve_of(weights), (0, 0), 0.3, LIGHT)
    coded = pixels(numbers(figure).source)
    assert coded.shape[:2] == (550, 550)
    assert coded[499, 250, :2].tolist() == [50, 0]
    assert figure.fig.layout.xaxis3.categoryarray[250] == "500 w"
    assert "largest of 2 × 2" in numbers(figure).hovertemplate
    assert figure.reading.endswith("Each pixel is the largest of 2 × 2 weights.")


def test_head_reading_names_what_is_above_the_threshold_in_this_chunk() -> None:
    size = 40
    weights = sinking_map(size, 0.5)
    curve = curve_of(weights, samples=20)
    figure = head.head_view(weights, [" In", *[" x"] * (size - 1)], curve, (9, 4), 0.3, LIGHT)
    first = words(figure.reading)
    assert first.startswith(
        "Layer 9, head 4 gives its first token **55 %** of its attention, mean of 20 chunks."
    )
    assert first.endswith("In this chunk “In” is the only key above ε.")

    weights[:, 0] -= 0.45
    weights[5:, 5] += 0.45
    figure = head.head_view(
        weights, [" In", *[" x"] * 4, ".", *[" x"] * 34], curve_of(weights), (9, 4), 0.3, LIGHT
    )
    assert words(figure.reading).endswith(r"Here **“\.” at position 5 (48 %)** is above ε as well.")

    even = sinking_map(size, 0.0)
    figure = head.head_view(even, [" In"] * size, curve_of(even), (9, 4), 0.3, LIGHT)
    assert "**no key** is above ε; the strongest is “In” at position 0 (11 %)" in words(figure.reading)


def test_band_over_chunks_is_drawn_only_when_there_are_several() -> None:
    weights = sinking_map(20)
    one = head.head_view(weights, ["a"] * 20, curve_of(weights, 1), (0, 0), 0.3, LIGHT)
    many = head.head_view(weights, ["a"] * 20, curve_of(weights, 20), (0, 0), 0.3, LIGHT)
    assert len(many.fig.data) == len(one.fig.data) + 2
    assert strip(many)[-2].fill == "tonexty"
    assert "importance of each key; band: 20 chunks" in notes(many)


def test_the_end_that_few_queries_see_is_veiled() -> None:
    weights = sinking_map(64)
    figure = head.head_view(weights, ["a"] * 64, curve_of(weights), (0, 0), 0.3, LIGHT)
    veil = figure.fig.layout.shapes[0]
    assert (veil.x0, veil.x1) == (56.5, 63.5)  # keys 57 to 63 are seen by at most 7 queries


@pytest.mark.parametrize(
    "texts", [["one"], ["a", "<script>alert(1)</script>"], ["שלום", "\u200b", "🙂", "\ud800"]]
)
def test_any_text_is_drawn(texts: list[str]) -> None:
    weights = np.tri(len(texts), dtype=np.float32) / np.arange(1, len(texts) + 1)[:, None]
    figure = head.head_view(weights.astype(np.float32), texts, curve_of(weights), (0, 0), 0.3, LIGHT)
    assert len(figure.fig.layout.xaxis3.categoryarray) == len(texts)
    assert "<script" not in figure.fig.to_json()
    figure.fig.to_json().encode("utf-8")


# Where sinks live


def test_kinds_are_ordered_by_rate_and_counted() -> None:
    kinds = pd.DataFrame(
        {
            "kind": ["word", "first", "punctuation"],
            "positions": [900, 20, 133],
            "sinks": [1, 9, 2],
            "rate": [0.003, 0.71, 0.02],
        }
    )
    figure = views.kinds_bars(kinds, 0.3, LIGHT)
    assert figure.fig.layout.xaxis.title.text == "share of heads and chunks above ε"
    assert list(figure.fig.data[0].y) == ["first position (20)", "punctuation (133)", "word (900)"]
    assert list(figure.fig.data[0].marker.color) == [LIGHT.hot, LIGHT.muted, LIGHT.muted]
    assert words(figure.reading) == (
        "The first position is a sink in **71 %** of heads and chunks, whatever stands there. Of all "
        "other tokens, punctuation marks come nearest, with 2 %."
    )


def test_threshold_curve_marks_the_chosen_one_and_even_attention() -> None:
    curve = pd.DataFrame({"eps": [0.0, 0.2, 0.4, 1.0], "rate": [1.0, 0.8, 0.6, 0.0]})
    figure = views.threshold_curve(curve, 0.3, 0.0741, LIGHT)
    assert figure.fig.data[0].hovertemplate == (
        "ε = %{x:.2f}<br><b>%{y:.0%}</b> of heads and chunks above<extra></extra>"
    )
    assert figure.fig.data[1].x[0] == 0.3
    assert figure.fig.data[1].y[0] == pytest.approx(0.7)
    assert "even attention would<br>give each head 7.4 %" in notes(figure)
    assert (
        words(figure.reading)
        == "The choice of ε matters: 0.1 less gives 80 % instead of 70 %, 0.1 more gives 60 %."
    )


def test_head_bars_call_a_difference_a_difference() -> None:
    heads = heads_of([[0.5, 0.1], [0.5, 0.1]])
    assert words(views.heads_bars(heads, LIGHT).reading) == (
        "Head 0 of each layer sinks in **100 %** of cases, head 1 in 0 %."
    )
    level = heads_of([[0.5, 0.5]])
    assert "says little: from 100 %" in words(views.heads_bars(level, LIGHT).reading)
    none = words(views.heads_bars(level.assign(sink_rate=0.0), LIGHT).reading)
    assert none == "No head sinks at this ε, whatever its place in the layer."


@pytest.mark.parametrize(("rates", "y"), [([1.0, 0.8, 0.6, 0.0], 0), ([1.0, 0.0, 0.0, 0.0], 1)])
def test_the_word_on_even_attention_keeps_out_of_the_curves_way(rates: list[float], y: int) -> None:
    curve = pd.DataFrame({"eps": [0.0, 0.2, 0.4, 1.0], "rate": rates})
    figure = views.threshold_curve(curve, 0.3, 0.0741, LIGHT)
    (said,) = [a for a in figure.fig.layout.annotations if "even attention" in a.text]
    assert said.y == y


def test_norms_shade_what_layers_without_sinks_read() -> None:
    layers = pd.DataFrame(
        {
            "layer": [-1, 0, 1, 2],
            "max_abs": [1.0, 10.0, 400.0, 400.0],
            "median_abs": [0.1, 0.2, 0.2, 0.4],
            "first_token_norm": [2.0, 20.0, 500.0, 480.0],
            "other_norm": [2.0, 10.0, 10.0, 12.0],
            "at_first": [0.0, 0.5, 1.0, 1.0],
        }
    )
    figure = views.norms_by_layer(layers, [[1]], LIGHT)
    band = figure.fig.layout.shapes[0]
    assert (band.x0, band.x1) == (-0.5, 0.5), "layer 1 reads the state after layer 0"
    assert words(figure.reading) == (
        "After layer 1 one activation is **2,000 times** the median, at the first token in 100 % of chunks; "
        "its hidden state is 50 times as long as the others'. Shaded: the states that layers with almost no "
        "sinks read."
    )
    assert "400 after layer 1" in figure.alt


# What if, streaming


def variants(removed: float, samples: int = 20) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "variant": ["original", "removed", "replaced: newline"],
            "first_token": [" In", " the", "\n"],
            "samples": [samples] * 3,
            "first_rate": [0.80, removed, 0.78],
            "low": [0.7, removed - 0.1, 0.7],
            "high": [0.9, removed + 0.1, 0.8],
            "second_rate": [0.0, 0.01, 0.0],
            "elsewhere_rate": [0.05, 0.3, 0.04],
        }
    )


def test_what_if_says_whether_the_sink_belongs_to_the_position() -> None:
    stays = causes.whatif_dots(variants(0.79), 0.3, LIGHT)
    assert words(stays.reading) == (
        "With their own first token 80 % of heads sink on it. Whatever takes its place, at least 78 % do: "
        "**the sink belongs to the position, not to the token.**"
    )
    moves = causes.whatif_reading(variants(0.2))
    assert words(moves) == (
        "With their own first token 80 % of heads sink on it. In the variant “removed” only **20 %** sink on "
        "what stands first; 30 % have their strongest sink elsewhere."
    )
    assert stays.fig.layout.xaxis.title.text == "share of heads above ε = 0.30"
    dots = stays.fig.data[-1]
    assert list(dots.x) == [0.80, 0.79, 0.78]
    assert list(dots.error_x.array) == pytest.approx([0.1, 0.1, 0.02])
    assert list(dots.y) == ["original", "removed", "replaced: newline"], "20 chunks begin differently"
    assert "removed 79 % on the first position, 30 % elsewhere" in words(stays.alt)


def test_what_if_names_the_first_token_of_a_single_chunk() -> None:
    one = causes.whatif_dots(variants(0.79, samples=1), 0.3, LIGHT)
    assert list(one.fig.data[-1].y) == ["original: In", "removed: the", "replaced: newline"]
    assert words(one.reading).startswith("With “In” in first place 80 % of heads sink on it. Whatever")
    assert "removed: the 79 % on the first position, 30 % elsewhere" in words(one.alt)


def stream(kept_four: float) -> pd.DataFrame:
    rows = []
    for policy, kept, late in (("dense", 0, 10.0), ("window", 0, 1_000.0), ("window", 4, kept_four)):
        for start, stop in ((1, 256), (256, 512), (512, 1_024)):
            value = 10.0 if stop <= 256 else late
            rows.append((policy, kept, 256 if policy == "window" else 0, start, stop, value))
    frame = pd.DataFrame(rows, columns=["policy", "kept", "cache", "start", "stop", "perplexity"])
    frame["position"] = (frame["start"] + frame["stop"]) / 2
    frame["low"], frame["high"], frame["streams"] = 0.9 * frame["perplexity"], 1.1 * frame["perplexity"], 4
    return frame


def test_streaming_says_what_forgetting_costs_and_what_repairs_it() -> None:
    figure = causes.streaming_curves(stream(11.0), LIGHT)
    assert words(figure.reading) == (
        "Once 256 keys fill the cache and the first token drops out, perplexity goes from 10 to **1,000**, "
        "100 times the full cache's. With 4 kept 11: **4 kept tokens repair it.**"
    )
    assert "none of them repairs it" in causes.streaming_reading(stream(40.0), 256)
    assert figure.fig.layout.xaxis.type == figure.fig.layout.yaxis.type == "log"
    assert figure.fig.layout.shapes[0].x0 == 256
    assert {"cache full: 256 keys", "none kept: 1,000", "4 kept: 11", "full cache: 10"} <= set(notes(figure))
    assert "After the cache is full: full cache 10, 0 kept 1,000, 4 kept 11." in words(figure.alt)


# All heads, two runs


def test_stamps_lie_where_their_markers_are() -> None:
    stamps = np.zeros((30, 9, 8, 8), dtype=np.float32)
    stamps[17, 3, 5, 2] = 0.25
    sheet = overview.Sheet(30, 9, (8, 8))
    assert (sheet.bands, sheet.columns) == (2, 15)
    row, column = sheet.corner(17, 3)
    assert overview.mosaic(stamps, sheet)[row + 5, column + 2] == 0.5
    assert np.isnan(overview.mosaic(stamps, sheet)[row - 1, column])
    heads = heads_of([[0.5] * 9] * 30)
    figure = overview.overview(stamps, heads, LIGHT)
    picture, targets = figure.fig.data
    index = 17 * 9 + 3
    assert list(targets.customdata[index][:2]) == [17, 3]
    # The marker is in the middle of the stamp: half-way between its first and last pixel.
    assert targets.x[index] == pytest.approx(picture.x0 + (column + 3.5) * picture.dx)
    assert targets.y[index] == pytest.approx(picture.y0 + (row + 3.5) * picture.dy)
    # And the frame of the chosen stamp lies around it: layer 17 is third in the second band.
    frame = overview.stamp_frame(stamps, (17, 3))
    assert (frame.start, frame.width) == (2 / 15, 1 / 15)
    layout = figure.fig.layout
    pixels_per_unit = (layout.height - layout.margin.t - layout.margin.b) / (
        layout.yaxis.range[0] - layout.yaxis.range[1]
    )
    middle = layout.margin.t + (targets.y[index] - layout.yaxis.range[1]) * pixels_per_unit
    assert frame.top + frame.height / 2 == pytest.approx(middle, abs=0.5)
    assert overview.stamp_frame(stamps, (30, 0)) is None


def test_overview_of_a_causal_model_leaves_the_future_out() -> None:
    stamps = np.broadcast_to(np.tri(4, dtype=np.float32), (2, 2, 4, 4)).copy()
    sheet = overview.Sheet(2, 2, (4, 4))
    row, column = sheet.corner(1, 1)
    canvas = overview.mosaic(stamps, sheet)
    assert np.isnan(canvas[row, column + 1])
    assert canvas[row + 1, column] == 1.0


def test_comparison_counts_heads_that_correspond() -> None:
    one, other = heads_of([[0.5, 0.1], [0.9, 0.2]]), heads_of([[0.4, 0.1], [0.5, 0.4]])
    text = words(overview.compare_reading(one, other, ("A", "B"), 0.3))
    assert text.startswith("A: **50 %** of heads sink at ε = 0.30; B: **75 %**.")
    assert "differs by 18 % of its attention on average, most in layer 1, head 0: 90 % against 50 %" in text
    assert "r = 0.78" in text
    smaller = words(overview.compare_reading(one, heads_of([[0.4, 0.1]]), ("A", "B"), 0.3))
    assert smaller.endswith("The models have different heads, so cells do not correspond.")
