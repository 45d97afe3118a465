"""Generation: completed images, bits per dimension, and the speed of writing."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from app.figures.base import Figure, layout, quantity
from app.figures.krause_settings import (
    colour,
    lone_seeds,
    of_setting,
    seed_count,
    setting_name,
    settings,
    spread,
    two_lines,
)
from app.theme import TICK, Palette

_GAP = 4  # pixels between pictures
_ACROSS = 504  # px that the pictures share in the page's left column
MEMORY = {"full": "all keys", "ring": "ring of the window", "state": "running sums"}


def completions(truth: pd.DataFrame, written: Mapping[str, pd.DataFrame], palette: Palette) -> Figure:
    """Columns: images. Rows: the true image, then each attention's completion of its upper half.

    `truth` and the frames of `written` (by mechanism) have number, given_rows and pixels.
    """
    rows = [("truth", truth), *written.items()]
    size = truth["pixels"].iloc[0].shape[0]
    pitch, count = size + _GAP, len(truth)
    field = np.zeros((len(rows) * pitch - _GAP, count * pitch - _GAP, 4), np.uint8)
    for line, (_, frame) in enumerate(rows):
        for column, pixels in enumerate(frame.sort_values("number")["pixels"]):
            y, x = line * pitch, column * pitch
            field[y : y + size, x : x + size, :3] = pixels[..., None]
            field[y : y + size, x : x + size, 3] = 255
    fig = go.Figure(go.Image(z=field, colormodel="rgba", hoverinfo="skip"))
    given = int(truth["given_rows"].iloc[0])
    for line in range(1, len(rows)):
        y = line * pitch + given - 0.5
        fig.add_shape(
            type="line",
            x0=-0.5,
            x1=count * pitch - _GAP - 0.5,
            y0=y,
            y1=y,
            line={"color": palette.hot, "width": 1},
        )
    names = ["truth", *(two_lines(m, None, None) for m in written)]
    height = 24 + min(112, _ACROSS // count) * len(rows)
    layout(fig, palette, height, left=88, right=16, top=8, bottom=16, y_grid=False)
    fig.update_xaxes(visible=False, constrain="domain", range=[-0.5, count * pitch - _GAP - 0.5])
    fig.update_yaxes(
        tickmode="array",
        tickvals=[n * pitch + size / 2 for n in range(len(rows))],
        ticktext=names,
        range=[len(rows) * pitch - _GAP - 0.5, -0.5],
        constraintoward="top",
        tickfont={"color": palette.ink},
    )
    alt = (
        f"{count} held-out pictures, and their lower halves as written by {', '.join(names[1:])}, given the "
        f"upper {given} rows."
    )
    reading = (
        f"Above the line each network was given {given} of {size} rows; what is below it drew pixel by "
        "pixel. "
        "One draw each: a different sleeve is no error."
    )
    return Figure(fig, alt, reading)


def bits_dots(outcomes: pd.DataFrame, palette: Palette) -> Figure:
    """Bits per dimension by attention: a dot per seed, mean with its 95 % interval."""
    found = settings(outcomes)
    fig = go.Figure()
    parts = []
    ends: list[float] = []
    for row, setting in enumerate(found):
        values = of_setting(outcomes, setting)["loss_nats"].to_numpy(float) / np.log(2)
        mean, low, high = spread(values)
        ends += [low, high]
        tint = colour(setting[0], palette)
        fig.add_trace(
            go.Scatter(
                x=[low, high], y=[row, row], mode="lines", line={"color": tint, "width": 2}, hoverinfo="skip"
            )
        )
        fig.add_trace(
            go.Scatter(
                x=values,
                y=[row] * len(values),
                mode="markers",
                hoverinfo="skip",
                marker={"size": 7, "color": tint, "opacity": 0.45},
            )
        )
        fig.add_trace(
            go.Scatter(
                x=[mean],
                y=[row],
                mode="markers",
                marker={"size": 12, "color": tint},
                hovertemplate=f"{setting_name(*setting)}<br><b>{quantity(mean, digits=4)}</b> bits per "
                "pixel, "
                f"{seed_count(len(values))}<extra></extra>",
            )
        )
        fig.add_annotation(
            x=1,
            y=row,
            xref="paper",
            xanchor="right",
            xshift=52,
            text=f"<b>{quantity(mean, digits=4)}</b>",
            showarrow=False,
            font={"size": TICK, "color": palette.ink},
        )
        parts.append(f"{setting_name(*setting)}: {quantity(mean, digits=4)}")
    layout(
        fig,
        palette,
        56 + 44 * max(len(found), 1),
        "bits per pixel (17 grey levels, held out)",
        left=112,
        right=60,
        top=8,
        x_grid=True,
        y_grid=False,
    )
    room = 0.06 * (max(ends) - min(ends)) or 0.01  # so that no interval ends on the edge
    fig.update_xaxes(fixedrange=True, nticks=5, tickangle=0, range=[min(ends) - room, max(ends) + room])
    fig.update_yaxes(
        range=[len(found) - 0.4, -0.6],
        tickmode="array",
        tickvals=list(range(len(found))),
        ticktext=[two_lines(*s) for s in found],
        tickfont={"color": palette.ink},
        fixedrange=True,
    )
    return Figure(fig, f"Bits per pixel: {'; '.join(parts)}.", bits_reading(outcomes))


def bits_reading(outcomes: pd.DataFrame) -> str:
    """Krause against softmax and against the same support, paired by seed; no claim when 0 is inside."""
    losses = {m: rows.set_index("seed")["loss_nats"] for m, rows in outcomes.groupby("mechanism")}
    parts = []
    for mechanism, name in (("softmax", "softmax"), ("window_topk", "softmax on the same support")):
        if "krause" not in losses or mechanism not in losses:
            continue
        seeds = losses["krause"].index.intersection(losses[mechanism].index)
        if len(seeds) < 2:
            continue
        gap = (losses["krause"][seeds] - losses[mechanism][seeds]).to_numpy(float) / np.log(2)
        mean, low, high = spread(gap)
        text = f"{mean:+.4f} bits per pixel [{low:+.4f}, {high:+.4f}]".replace("-", "−")
        claim = "no difference can be claimed" if low <= 0 <= high else "the interval leaves out 0"
        parts.append(f"Krause against {name}: **{text}** over {len(seeds)} paired seeds; {claim}.")
    if not parts and len(outcomes):
        parts.append("One seed each: there is no interval, so no difference can be claimed.")
    return " ".join([*parts, lone_seeds(outcomes)]).strip()


def speed_bars(times: pd.DataFrame, palette: Palette) -> Figure:
    """Images per second of each attention with the smallest memory that is exact; bars start at 0."""
    found = settings(times)
    fig = go.Figure()
    parts = []
    for row, setting in enumerate(found):
        rows = of_setting(times, setting)
        speeds = (rows["batch"] / rows["seconds"]).to_numpy(float)
        memory = MEMORY.get(str(rows["memory"].iloc[0]), "")
        held = quantity(float(rows["memory_bytes"].iloc[0]) / 1024, "KiB")
        fig.add_trace(
            go.Bar(
                x=[float(np.median(speeds))],
                y=[row],
                orientation="h",
                width=0.5,
                marker={"color": colour(setting[0], palette)},
                error_x={
                    "type": "data",
                    "symmetric": False,
                    "array": [float(speeds.max() - np.median(speeds))],
                    "arrayminus": [float(np.median(speeds) - speeds.min())],
                    "color": palette.ink,
                    "thickness": 1,
                    "width": 0,
                },
                hovertemplate=f"{setting_name(*setting)}<br><b>{quantity(float(np.median(speeds)))}</b> "
                "images/s, "
                f"{held} of {memory}<extra></extra>",
            )
        )
        fig.add_annotation(
            x=0,
            y=row,
            xanchor="left",
            xshift=6,
            yshift=-22,
            text=f"{memory}: {held} an image",
            showarrow=False,
            font={"size": 11, "color": palette.muted},
        )
        parts.append(f"{setting_name(*setting)}: {quantity(float(np.median(speeds)))} images/s with {held}")
    layout(
        fig,
        palette,
        72 + 56 * max(len(found), 1),
        "images per second",
        left=112,
        right=16,
        top=8,
        x_grid=True,
        y_grid=False,
    )
    fig.update_xaxes(rangemode="tozero", fixedrange=True, tickangle=0)
    fig.update_yaxes(
        range=[len(found) - 0.3, -0.6],
        tickmode="array",
        tickvals=list(range(len(found))),
        ticktext=[two_lines(*s) for s in found],
        tickfont={"color": palette.ink},
        fixedrange=True,
    )
    batch, tokens = int(times["batch"].iloc[0]), int(times["tokens"].iloc[0])
    reading = (
        f"{tokens} tokens an image, {batch} images side by side, one token at a time; median of the "
        "repetitions. "
        f"{'; '.join(parts)}."
    )
    return Figure(fig, f"Speed of generation: {'; '.join(parts)}.", reading)
