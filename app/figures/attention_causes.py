"""Two measurements that explain sinks: the first token taken away, and a cache that forgets it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from app.figures.attention_head import faint
from app.figures.base import Figure, layout, quantity, share
from app.figures.tokens import inert, markdown, plain
from app.theme import TICK, Palette

_MARKS = (
    ("first_rate", "on the first position", "circle", True),
    ("second_rate", "on the second", "circle-open", False),
    ("elsewhere_rate", "strongest elsewhere", "diamond-open", False),
)


WHATIF_TOP = 40
_ROWS = 184  # px for the names of the variants


def variant_name(variant: str, token: str, samples: int) -> str:
    """What stands first in a variant, for an axis: "removed: the", "replaced: newline".

    Chunks begin with different tokens: over several the original and the removed one have no token
    to name.
    """
    named = samples == 1 and variant in ("original", "removed")
    return f"{variant}: {plain(token)}" if named else variant


def whatif_dots(table: pd.DataFrame, eps: float, palette: Palette) -> Figure:
    """Where the sink is when the first token is taken away or replaced: one row per variant.

    `table` has variant, first_token, samples, first_rate, low, high (5th and 95th percentile over
    chunks), second_rate and elsewhere_rate, all shares of heads above `eps`.
    """
    rows = [
        inert(variant_name(variant, token, samples))
        for variant, token, samples in zip(
            table["variant"], table["first_token"], table["samples"], strict=True
        )
    ]
    fig = go.Figure()
    for column, name, symbol, main in reversed(_MARKS):
        error = (
            {
                "type": "data",
                "symmetric": False,
                "array": table["high"] - table["first_rate"],
                "arrayminus": table["first_rate"] - table["low"],
                "color": palette.hot,
                "thickness": 1.5,
                "width": 0,
            }
            if main
            else None
        )
        fig.add_trace(
            go.Scatter(
                x=table[column],
                y=rows,
                mode="markers",
                marker={"symbol": symbol, "size": 11, "color": palette.hot if main else palette.ink},
                error_x=error,
                customdata=[[share(value)] for value in table[column]],
                hovertemplate=f"%{{y}}<br>{name}: <b>%{{customdata[0]}}</b> of heads<extra></extra>",
            )
        )
    layout(
        fig,
        palette,
        whatif_height(len(rows)),
        f"share of heads above ε = {eps:.2f}",
        left=_ROWS,
        x_grid=True,
        top=WHATIF_TOP,
    )
    fig.update_layout(
        xaxis={"range": [-0.02, 1.02], "tickformat": ".0%", "dtick": 0.25, "fixedrange": True},
        yaxis={
            "autorange": "reversed",
            "fixedrange": True,
            "tickfont": {"color": palette.ink},
            "ticks": "outside",
            "ticklen": 8,
            "tickcolor": "rgba(0,0,0,0)",
        },
    )
    marks = (
        f'<span style="color:{palette.hot if main else palette.ink}">{sign}</span> {name}'
        for (_, name, _, main), sign in zip(_MARKS, "●○◇", strict=True)
    )
    _key_above(fig, "sink   " + "   ".join(marks), left=_ROWS - 8)
    return Figure(fig, _whatif_alt(table, rows), whatif_reading(table))


def whatif_height(variants: int) -> int:
    """Height of both figures in px: they stand side by side."""
    return WHATIF_TOP + 56 + 40 * variants


def _key_above(fig: go.Figure, words: str, left: int = 0) -> None:
    """What the marks are, in one line above the plot that starts `left` px before it."""
    fig.add_annotation(
        text=words,
        x=0,
        y=1,
        xref="paper",
        yref="paper",
        xanchor="left",
        yanchor="bottom",
        xshift=-left,
        yshift=8,
        showarrow=False,
        font={"size": TICK},
    )


def whatif_reading(table: pd.DataFrame) -> str:
    """Whether the sink stays with the position or goes with the token, in Markdown."""
    rows = {row["variant"]: row for row in table.to_dict("records")}
    original = rows.pop("original", None)
    if original is None or not rows:
        return "This run has no variants to compare."
    before = float(original["first_rate"])
    worst = min(rows.values(), key=lambda row: row["first_rate"])
    least = float(worst["first_rate"])
    if int(original["samples"]) > 1:
        opening = f"With their own first token {share(before)} of heads sink on it."
    else:
        token = markdown(str(original["first_token"]))
        opening = f"With {token} in first place {share(before)} of heads sink on it."
    if least >= 0.9 * before:
        return (
            f"{opening} Whatever takes its place, at least {share(least)} do: **the sink belongs to the "
            "position, not to the token.**"
        )
    name, away = markdown(str(worst["variant"]), 40), share(float(worst["elsewhere_rate"]))
    if least >= 0.5 * before:
        return (
            f"{opening} The sink **mostly stays with the position**: at least {share(least)} of heads sink "
            f"on whatever stands first, the fewest in {name}."
        )
    return (
        f"{opening} In the variant {name} only **{share(least)}** sink on what stands first; {away} have "
        "their strongest sink elsewhere."
    )


def _whatif_alt(table: pd.DataFrame, rows: list[str]) -> str:
    parts = (
        f"{row} {share(first)} on the first position, {share(elsewhere)} elsewhere"
        for row, first, elsewhere in zip(rows, table["first_rate"], table["elsewhere_rate"], strict=True)
    )
    return "Share of heads that sink, by variant of the first token: " + "; ".join(parts) + "."


def whatif_layers(table: pd.DataFrame, palette: Palette) -> Figure:
    """Mean importance of position 0 by layer. `table` has variant, layer, first_importance.

    The original is the reference, the variant with the lowest mean stands out, the others show how far
    variants lie apart.
    """
    means = table.groupby("variant")["first_importance"].mean()
    changed = means.drop(index="original", errors="ignore")
    weakest = str(changed.index[int(np.argmin(changed.to_numpy()))]) if len(changed) else ""
    styles = {
        "original": (palette.reference, 2.0, "dash"),
        weakest: (palette.hot, 2.5, "solid"),
    }
    fig = go.Figure()
    for variant in sorted(means.index, key=lambda name: (name in styles, name == weakest)):
        line = table[table["variant"] == variant].sort_values("layer")
        name = inert(plain(variant, 40))
        colour, width, dash = styles.get(variant, (palette.muted, 0.75, "solid"))
        fig.add_trace(
            go.Scatter(
                x=line["layer"],
                y=line["first_importance"],
                mode="lines",
                name=name,
                line={"color": colour, "width": width, "dash": dash},
                hovertemplate=f"{name}<br>layer %{{x}}: <b>%{{y:.0%}}</b><extra></extra>",
            )
        )
    height = whatif_height(len(means))
    layout(fig, palette, height, "layer, from the input", "importance of position 0", top=WHATIF_TOP)
    fig.update_layout(yaxis={"range": [0, 1.02], "tickformat": ".0%", "dtick": 0.25})
    names = [
        ("original, dashed", palette.muted),
        (inert(plain(weakest, 40)), palette.hot),
        ("the others", palette.muted),
    ]
    _key_above(
        fig, "   ".join(f'<span style="color:{colour}">{name}</span>' for name, colour in names if name)
    )
    alt = "Mean importance of position 0 by layer and variant; over all layers: " + ", ".join(
        f"{variant} {share(float(value))}" for variant, value in means.items()
    )
    return Figure(fig, alt + ".", "")


def streaming_curves(table: pd.DataFrame, palette: Palette) -> Figure:
    """Perplexity against stream position, both on log axes, one line per cache policy.

    `table` has policy, kept, cache, start, stop, position, perplexity, low, high and streams. Bands
    run from the smallest to the largest stream, of the two lines that lie apart.
    """
    cache = int(table["cache"].max())
    fig = go.Figure()
    ends = []
    for label, colour, dash, line in _policies(table, palette):
        banded = label in ("none kept", "full cache")
        for column, fill in (("low", None), ("high", "tonexty")) if banded else ():
            _band(fig, line, column, fill, colour)
        fig.add_trace(
            go.Scatter(
                x=line["position"],
                y=line["perplexity"],
                mode="lines",
                line={"color": colour, "width": 2.5 if label == "none kept" else 1.5, "dash": dash},
                customdata=[
                    [f"{start:,}–{stop - 1:,}", quantity(value)]
                    for start, stop, value in zip(
                        line["start"], line["stop"], line["perplexity"], strict=True
                    )
                ],
                hovertemplate=(
                    f"{label}<br>tokens %{{customdata[0]}}<br>perplexity "
                    f"<b>%{{customdata[1]}}</b><extra></extra>"
                ),
            )
        )
        ends.append((float(line["perplexity"].iloc[-1]), label, colour))
    layout(
        fig,
        palette,
        440,
        "position in the stream (tokens, log scale)",
        "perplexity (log scale)",
        right=176,
        top=32,
    )
    _streaming_axes(fig, palette, table, cache)
    _end_labels(fig, palette, table, ends)
    return Figure(fig, _streaming_alt(table, cache), streaming_reading(table, cache))


def _band(fig: go.Figure, line: pd.DataFrame, column: str, fill: str | None, colour: str) -> None:
    fig.add_trace(
        go.Scatter(
            x=line["position"],
            y=line[column],
            mode="lines",
            line={"width": 0},
            fill=fill,
            fillcolor=faint(colour, 0.14),
            hoverinfo="skip",
        )
    )


def _policies(table: pd.DataFrame, palette: Palette) -> list[tuple[str, str, str, pd.DataFrame]]:
    """Label, colour, dash and rows of every line; the full cache is the reference."""
    colours = (palette.hot, *palette.categories[2:4], palette.categories[0], palette.categories[4])
    lines = []
    for i, (kept, rows) in enumerate(table[table["policy"] != "dense"].groupby("kept")):
        label = "none kept" if kept == 0 else f"{kept} kept"
        lines.append((label, colours[i % len(colours)], "solid", rows.sort_values("position")))
    dense = table[table["policy"] == "dense"].sort_values("position")
    if len(dense):
        lines.append(("full cache", palette.reference, "dash", dense))
    return lines


def _streaming_axes(fig: go.Figure, palette: Palette, table: pd.DataFrame, cache: int) -> None:
    last = float(table["stop"].max())
    first = max(1.0, float(table["position"].min()))
    doublings = [2**k for k in range(20) if first <= 2**k <= last]
    fig.update_layout(
        xaxis={
            "type": "log",
            "range": [np.log10(first), np.log10(last)],
            "tickvals": doublings[-8:],
            "ticktext": [f"{tick:,}" for tick in doublings[-8:]],
        },
        yaxis={"type": "log", "nticks": 6, "tickformat": ",~r"},
    )
    # Shapes take data values on a log axis, annotations their logarithms.
    fig.add_shape(
        type="line", x0=cache, x1=cache, y0=0, y1=1, yref="paper", line={"color": palette.ink, "width": 1}
    )
    fig.add_annotation(
        text=f"bands: lowest to highest of {int(table['streams'].max())} streams",
        x=1,
        xref="paper",
        y=1,
        yref="paper",
        yanchor="bottom",
        xanchor="right",
        showarrow=False,
        font={"size": TICK, "color": palette.muted},
    )
    fig.add_annotation(
        text=f"cache full: {cache} keys",
        x=np.log10(cache),
        y=1,
        yref="paper",
        yanchor="bottom",
        xanchor="right",
        showarrow=False,
        font={"size": TICK, "color": palette.ink},
    )


def _end_labels(
    fig: go.Figure, palette: Palette, table: pd.DataFrame, ends: list[tuple[float, str, str]]
) -> None:
    """Name every line at its end; lines that end together share their place, one under the other."""
    low, high = np.log10(table["low"].min()), np.log10(table["high"].max())
    step = 16 * (high - low) / 330
    x = float(np.log10(table["stop"].max()))
    place = -np.inf
    for value, label, colour in sorted(ends):
        place = max(np.log10(value), place + step)
        fig.add_annotation(
            x=x,
            y=place,
            text=f"{label}: {quantity(value)}",
            showarrow=False,
            xanchor="left",
            xshift=8,
            font={"size": TICK, "color": colour},
        )


def _after(table: pd.DataFrame, cache: int) -> dict[tuple[str, int], float]:
    """Geometric mean perplexity by (policy, kept) once the cache is full, weighted by bin length."""
    found: dict[tuple[str, int], float] = {}
    late = table[table["start"] >= cache]
    for policy, kept in late[["policy", "kept"]].drop_duplicates().itertuples(index=False):
        rows = late[(late["policy"] == policy) & (late["kept"] == kept)]
        logs = np.log(rows["perplexity"].to_numpy(dtype=float))
        found[str(policy), int(kept)] = float(np.exp(np.average(logs, weights=rows["stop"] - rows["start"])))
    return found


def streaming_reading(table: pd.DataFrame, cache: int) -> str:
    """What forgetting the first tokens costs, and how many kept ones repair it, in Markdown."""
    after = _after(table, cache)
    if ("dense", 0) not in after or ("window", 0) not in after:
        return "This run has no full cache to compare with."
    dense, none = after["dense", 0], after["window", 0]
    text = (
        f"Once {cache} keys fill the cache and the first token drops out, perplexity goes from "
        f"{quantity(dense, digits=3)} to **{quantity(none, digits=3)}**, {quantity(none / dense, digits=2)} "
        "times the full cache's."
    )
    kept = sorted((k, v) for (policy, k), v in after.items() if policy == "window" and k > 0)
    if kept:
        words = ", ".join(f"{k} kept {quantity(v, digits=3)}" for k, v in kept)
        enough = [k for k, v in kept if v < 1.25 * dense]
        text += f" With {words}" + (
            f": **{enough[0]} kept token{'s' if enough[0] > 1 else ''} repair{'' if enough[0] > 1 else 's'} "
            "it.**"
            if enough
            else ": none of them repairs it."
        )
    return text


def _streaming_alt(table: pd.DataFrame, cache: int) -> str:
    after = _after(table, cache)
    parts = ", ".join(
        f"{'full cache' if policy == 'dense' else f'{kept} kept'} {quantity(value)}"
        for (policy, kept), value in after.items()
    )
    return (
        f"Perplexity against stream position on log axes, {int(table['streams'].max())} streams of up to "
        f"{int(table['stop'].max()):,} tokens, cache of {cache} keys. After the cache is full: {parts}."
    )
