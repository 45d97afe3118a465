"""Numbers as text, matrices as pixels, and the frame that all figures share."""

from __future__ import annotations

import base64
import io

import numpy as np
import plotly.graph_objects as go
import pytest
from PIL import Image

from app.figures import base
from app.figures.numbers import duration, interval, listed, measured, quantity, ranges, share
from app.figures.raster import MatrixImage, matrix_png, max_pool, track_index
from app.theme import DARK, LIGHT, Palette, track_rgb


def pixels(image: MatrixImage) -> np.ndarray:
    """The image decoded by an independent decoder: (R, C, 4) uint8."""
    png = base64.b64decode(image.uri.removeprefix("data:image/png;base64,"))
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGBA"))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.731, "73 %"),
        (0.0996, "10 %"),
        (0.031, "3.1 %"),
        (0.03, "3 %"),
        (0.0004, "0.04 %"),
        (0.00001, "<0.01 %"),
        (0, "0 %"),
        (1, "100 %"),
        (0.9996, ">99.9 %"),
        (0.996, "99.6 %"),
        (None, "–"),
        (float("nan"), "–"),
    ],
)
def test_share(value: float | None, text: str) -> None:
    assert share(value).replace("\xa0", " ") == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.3e9, "1.3 × 10⁹"),
        (1e6, "10⁶"),
        (4.5e-5, "4.5 × 10⁻⁵"),
        (1234, "1,234"),
        (123_456, "123,456"),
        (0.05, "0.05"),
        (0.1 + 0.2, "0.3"),
        (5158.4, "5,158"),
        (-3.25, "−3.25"),
        (0, "0"),
        (float("inf"), "∞"),
        (float("nan"), "–"),
    ],
)
def test_quantity(value: float, text: str) -> None:
    assert quantity(value).replace("\xa0", " ") == text


def test_units_durations_and_lists() -> None:
    plain = lambda text: text.replace("\xa0", " ")  # noqa: E731
    assert plain(quantity(1.3e9, "FLOP")) == "1.3 × 10⁹ FLOP"
    assert plain(measured(0.8, "share of heads")) == "80 % of heads"
    assert plain(measured(2.13, "× dense perplexity")) == "2.13 × dense perplexity"
    assert plain(interval((0.78, 0.82), "share of heads")) == "78–82 %"
    assert plain(interval((0.8641, 0.8649), "share")) == "86.4–86.5 %"
    assert plain(interval((2.1, 2.4), "× dense perplexity")) == "2.10–2.40"
    assert plain(interval((-0.98, -0.093), "share of attention")) == "−98 to −9.3 %"
    assert plain(interval((-0.0214, 0.0503), "bit/byte")) == "−0.0214 to 0.0503"
    assert plain(share(-0.5)) == "−50 %"
    assert interval(None, "share") == measured(None, "share") == "–"
    times = [plain(duration(seconds)) for seconds in (0.42, 59.96, 83, 7260)]
    assert times == ["0.42 s", "1 min", "1 min 23 s", "2 h 1 min"]
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c"]) == "a, b and c"
    assert ranges([11, 10, 1, 2, 3, 10]) == "1–3, 10, 11"


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=lambda p: p.mode)
def test_pixels_are_the_track_scale(colours: Palette) -> None:
    matrix = np.array([[0.0, 0.5, 1.0], [2.0, -1.0, np.nan]], dtype=np.float32)
    drawn = pixels(matrix_png(matrix, colours, 0.0, 1.0))
    scale = track_rgb(colours.mode, 255)
    assert drawn[0, 0, :3].tolist() == scale[0].tolist()
    assert drawn[0, 1, :3].tolist() == scale[127].tolist()
    assert drawn[0, 2, :3].tolist() == scale[254].tolist()
    assert drawn[1, 0, :3].tolist() == scale[254].tolist()  # above the range: clipped
    assert drawn[1, 1, :3].tolist() == scale[0].tolist()
    assert drawn[..., 3].tolist() == [[255, 255, 255], [255, 255, 0]]  # what does not exist is transparent


def test_scale_without_vmax_ends_at_the_largest_value() -> None:
    drawn = pixels(matrix_png(np.array([[0.0, 0.25]]), LIGHT))
    assert drawn[0, 1, :3].tolist() == track_rgb("light", 255)[254].tolist()
    assert track_index(np.array([[3.0]]), 1.0, 1.0).tolist() == [[1]]  # no span: the low end, not NaN


def test_pooling_keeps_the_brightest_cell_and_says_so() -> None:
    matrix = np.zeros((2_049, 2_049), dtype=np.float32)
    matrix[2_048, 0] = 1.0
    matrix[0, 5] = 0.5
    image = matrix_png(matrix, DARK, 0.0, 1.0)
    drawn, scale = pixels(image), track_rgb("dark", 255)
    assert image.pooled
    assert image.factor == 3
    assert drawn.shape[:2] == (683, 683)
    assert drawn[682, 0, :3].tolist() == scale[254].tolist()
    assert drawn[0, 1, :3].tolist() == scale[127].tolist()
    assert image.note.startswith("2,049 × 2,049 cells do not fit the screen: ")
    assert image.note.endswith("each pixel is the largest of 3 × 3 cells.")


def test_no_pooling_up_to_1024() -> None:
    image = matrix_png(np.zeros((1_024, 1_024), np.float32), LIGHT)
    assert (image.factor, image.note) == (1, "")
    assert pixels(image).shape[:2] == (1_024, 1_024)


def test_max_pool_leaves_missing_cells_out() -> None:
    nan = np.nan
    pooled = max_pool(np.array([[nan, 1, 5], [nan, nan, 2], [nan, nan, nan]], np.float32), 2)
    np.testing.assert_array_equal(pooled, np.array([[1, 5], [nan, nan]], np.float32))


@pytest.mark.parametrize("shape", [(0, 3), (3,), (2, 2, 2)])
def test_only_matrices_are_drawn(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="matrix"):
        matrix_png(np.zeros(shape, np.float32), LIGHT)


def test_a_pooled_image_keeps_the_axes_of_the_matrix() -> None:
    trace = base.matrix_trace(MatrixImage("data:,", (2_048, 2_048), 2))
    assert (trace.dx, trace.x0) == (2, 0.5)  # the first pixel spans rows 0 and 1, -0.5 to 1.5


def test_frame_has_no_ground_and_sits_on_the_grid() -> None:
    fig = base.layout(go.Figure(go.Bar(x=[0], y=[1])), DARK, 320, "layer", "importance (share)")
    margin = fig.layout.margin
    assert all(side % 8 == 0 for side in (margin.l, margin.r, margin.t, margin.b))
    assert fig.layout.paper_bgcolor == fig.layout.plot_bgcolor == "rgba(0,0,0,0)"
    assert (fig.layout.xaxis.title.text, fig.layout.yaxis.title.text) == ("layer", "importance (share)")
    assert fig.layout.xaxis.tickfont.size >= 11
    assert fig.layout.xaxis.showgrid is False
    assert fig.layout.showlegend is False


def test_legend_of_an_image_covers_its_range() -> None:
    trace = base.legend_trace(LIGHT, 0, 0.4, "share", ["0 %", "20 %", "40 %"])
    assert (trace.marker.cmin, trace.marker.cmax) == (0, 0.4)
    assert list(trace.marker.colorbar.tickvals) == [0, 0.2, 0.4]
    assert trace.marker.colorbar.title.text == "share"


@pytest.mark.parametrize(
    ("token", "label"),
    [
        (" the", "the"),
        (" ", "␣"),
        ("\n", "↵"),
        ("<b>x</b>", "&lt;b&gt;x&lt;/b&gt;"),
        ("\u202eabc", "\ufffdabc"),
        ("\ud83d", "\ufffd"),
        ("antidisestablishment", "antidisesta…"),
        ("", "␣"),
    ],
)
def test_tokens_are_visible_and_inert(token: str, label: str) -> None:
    assert base.visible_token(token) == label


def test_tokens_along_an_axis_are_thinned_to_fit() -> None:
    axis = base.token_axis([str(i) for i in range(100)], DARK, most=40)
    assert axis["tickvals"][:3] == [0, 3, 6]
    assert len(axis["ticktext"]) <= 40
    assert axis["tickfont"]["size"] >= 11


def test_lines_say_what_they_are() -> None:
    fig = base.layout(go.Figure(go.Scatter(x=[0, 1], y=[0, 1])), LIGHT, 240)
    base.reference_line(fig, LIGHT, "ε = 0.3", y=0.3)
    base.guarantee_line(fig, LIGHT, "90 %", y=0.9)
    dashed, solid = fig.layout.shapes
    assert (dashed.line.dash, dashed.line.color) == ("dash", LIGHT.muted)
    assert (solid.line.dash, solid.line.color) == ("solid", LIGHT.ink)
    assert [a.text for a in fig.layout.annotations] == ["ε = 0.3", "90 %"]
