"""What is in a file, as words and numbers: the card, the types of its numbers, the table of its tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from app.figures import tokens as words
from app.figures.base import Figure, layout, quantity, share
from app.figures.numbers import listed
from app.theme import TICK, Palette
from models.checkpoints.inspection import Inspection, Statistics

_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_BAR = 30  # px of one type's row
_TYPES = 8  # shown one by one; a file with more kinds of numbers than that is rare
COLUMNS = {
    "name": "As the file calls it.",
    "shape": "Rows × columns × …; empty for a single number.",
    "type": "How a number is stored, as the file's format calls it.",
    "MB": "Bytes it takes in the file, in millions.",
    "share": "Of all bytes.",
    "file": "The file that holds it.",
    "mean": "Over all finite entries.",
    "std": "Standard deviation over all finite entries.",
    "min": "Smallest finite entry.",
    "max": "Largest finite entry.",
    "zeros": "Entries that are exactly 0.",
    "NaN": "Entries that are no number.",
    "Inf": "Infinite entries.",
}


def size(count: float) -> str:
    """Bytes as people write them: 538_000_000 -> "538 MB", 12 -> "12 bytes"."""
    for unit, name in _UNITS:
        if count >= unit:
            return quantity(count / unit, name)
    return "1 byte" if count == 1 else quantity(count, "bytes")


def amount(count: float) -> str:
    """A count of parameters: 134_515_008 -> "134.5 M", 812 -> "812"."""
    for unit, name in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= unit:
            return quantity(count / unit, name, 4)
    return quantity(count)


def card(found: Inspection) -> list[tuple[str, str]]:
    """What the headers tell, as (name, value) in plain text; what they do not tell is left out."""
    heads = quantity(found.heads)
    if found.kv_heads and found.kv_heads != found.heads:
        heads += f", {found.kv_heads} for keys and values"
    rows = [
        ("Format", found.format),
        ("Architecture", _joined(found.architecture, found.family)),
        ("Parameters", f"{amount(found.parameters)} in {size(found.bytes)}" if found.parameters else ""),
        ("Layers × heads", f"{found.layers} × {heads}" if found.layers and found.heads else ""),
        ("Width", quantity(found.width) if found.width else ""),
        ("Reads", _reads(found) if found.opener or found.study else ""),
        ("Tokenizer", _tokenizer(found)),
        ("Sight", found.window or ("every position" if found.layers and found.study else "")),
        *found.facts.items(),
    ]
    return [(str(name), str(value)) for name, value in rows if value]


def _joined(architecture: str, family: str) -> str:
    return f"{architecture} ({family})" if architecture and family else architecture or family


def _reads(found: Inspection) -> str:
    if found.takes == "image":
        sizes = " × ".join(str(side) for side in found.image)
        return f"pictures, {sizes} (channels × height × width)" if sizes else "pictures"
    if found.takes == "nothing":
        many = f"{found.samples} × " if found.samples else ""
        return f"nothing: {many}stored maps" + (f" of {found.length:,} tokens" if found.length else "")
    parts = []
    if found.length:
        parts.append(f"exactly {found.length:,} tokens")
    elif found.max_positions:
        parts.append(f"up to {found.max_positions:,} tokens")
    if found.vocabulary:
        parts.append(f"{found.vocabulary:,} ids")
    return "text" + (f": {', '.join(parts)}" if parts else "")


def _tokenizer(found: Inspection) -> str:
    if found.takes != "text" or not found.study:
        return ""
    if not found.tokenizer:
        return "none: it reads bytes, or ids that you type"
    return found.tokenizer + ("; puts its own tokens around a text" if found.adds_special else "")


def title(architecture: str, family: str, parameters: int, name: str = "") -> str:
    """A model in a few words: "LlamaForCausalLM, 134.5 M"; what is not known falls away."""
    kind = architecture or family or name or "model"
    return f"{words.plain(kind, 40)}, {amount(parameters)}" if parameters else words.plain(kind, 40)


def dtype_bars(found: Inspection, palette: Palette) -> Figure:
    """Bytes by type of number, one bar each, largest first; beyond eight types the rest is one bar."""
    frame = pd.DataFrame(
        {"type": [t.dtype for t in found.tensors], "bytes": [t.bytes for t in found.tensors]}
    )
    sums = frame.groupby("type")["bytes"].agg(["sum", "count"]).sort_values("sum", ascending=False)
    kinds = [(str(name), int(row["sum"]), int(row["count"])) for name, row in sums.iterrows()]
    if len(kinds) > _TYPES:
        rest = kinds[_TYPES - 1 :]
        kinds = [*kinds[: _TYPES - 1], ("others", sum(k[1] for k in rest), sum(k[2] for k in rest))]
    total = sum(taken for _, taken, _ in kinds) or 1
    labels = [words.inert(words.plain(name, 14)) for name, _, _ in kinds]
    fig = go.Figure(
        go.Bar(
            x=[taken / 1e6 for _, taken, _ in kinds],
            y=labels,
            orientation="h",
            marker={"color": palette.hot},
            text=[f"{size(taken)}, {count:,} {_tensors(count)}" for _, taken, count in kinds],
            textposition="outside",
            cliponaxis=False,
            textfont={"size": TICK, "color": palette.ink},
            hoverinfo="skip",
        )
    )
    layout(fig, palette, 56 + _BAR * max(1, len(kinds)), "MB", left=104, right=16, top=8, y_grid=False)
    most = max((taken for _, taken, _ in kinds), default=1) / 1e6
    fig.update_layout(
        bargap=0.35,
        xaxis={"range": [0, most * 1.9 or 1], "fixedrange": True, "nticks": 4, "rangemode": "tozero"},
        yaxis={"autorange": "reversed", "fixedrange": True, "type": "category"},
    )
    said = ", ".join(f"{words.plain(name, 14)} {share(taken / total)}" for name, taken, _ in kinds)
    return Figure(fig, f"Bytes by type of number: {said}.", "")


def _tensors(count: int) -> str:
    return "tensor" if count == 1 else "tensors"


def tensor_table(found: Inspection, values: Sequence[Statistics] | None = None) -> pd.DataFrame:
    """One row a tensor, largest first: name, shape, type, MB, share of bytes, file where there are several.

    With `values` also mean, std, min, max, zeros, NaN and Inf; tensors that hold NaN or Inf come first.
    """
    taken = np.array([t.bytes for t in found.tensors], dtype=float)
    frame = pd.DataFrame(
        {
            "name": [t.name for t in found.tensors],
            "shape": [" × ".join(map(str, t.shape)) for t in found.tensors],
            "type": [t.dtype for t in found.tensors],
            "MB": taken / 1e6,
            "share": taken / (taken.sum() or 1.0),
        }
    )
    known = {one.name: one for one in values or ()}
    for column, field in _VALUES.items() if values is not None else ():
        frame[column] = [getattr(known.get(name), field, None) for name in frame["name"]]
    if len({t.file for t in found.tensors}) > 1:
        frame["file"] = [t.file for t in found.tensors]
    broken = np.zeros(len(frame), dtype=bool)
    if values is not None:
        broken = frame[["NaN", "Inf"]].fillna(0).sum(axis=1).to_numpy() > 0
    return frame.iloc[np.lexsort((-taken, ~broken))].reset_index(drop=True)


_VALUES = {
    "NaN": "nans",
    "Inf": "infinities",
    "mean": "mean",
    "std": "std",
    "min": "minimum",
    "max": "maximum",
    "zeros": "zeros",
}


def table_reading(found: Inspection, values: Sequence[Statistics] | None = None) -> str:
    """What the table holds, in Markdown: how many tensors, the largest, and those that are broken."""
    if not found.tensors:
        return "The file lists no tensor."
    largest = max(found.tensors, key=lambda t: t.bytes)
    total = sum(t.bytes for t in found.tensors) or 1
    count = len(found.tensors)
    text = (
        f"**{count:,} {_tensors(count)}**, {size(total)}. The largest is {words.markdown(largest.name, 48)} "
        f"with {share(largest.bytes / total)} of the bytes."
    )
    if values is None:
        return text
    broken = [one for one in values if one.nans or one.infinities]
    read = {one.name for one in values if not math.isnan(one.mean) or one.nans or one.infinities}
    unread = [t for t in found.tensors if t.name not in read and 0 not in t.shape]
    if unread:
        kinds = listed(sorted({t.dtype for t in unread}))
        text += (
            f" {len(unread):,} {_tensors(len(unread))} of type {kinds} could not be read number by number."
        )
    if not broken:
        of = "of the others " if unread else ""
        return text if len(unread) == count else f"{text} Every entry {of}is a finite number."
    return (
        f"{text} **{len(broken):,} {_tensors(len(broken))}** with NaN or infinite entries stand first in the "
        "table: every number that is computed with them is void."
    )


def statistics_of(text: str) -> list[Statistics]:
    """Back from the document that the worker leaves: a JSON list of objects, NaN written as null.

    Raises ValueError for anything else.
    """
    import json

    def number(value: object) -> float:
        return float("nan") if value is None else float(str(value))

    try:
        return [
            Statistics(
                str(row["name"]),
                number(row["mean"]),
                number(row["std"]),
                number(row["minimum"]),
                number(row["maximum"]),
                int(row["zeros"]),
                int(row["nans"]),
                int(row["infinities"]),
            )
            for row in json.loads(text)
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not statistics: {error}") from error
