"""The numbers behind a page as CSV and Parquet.

CSV headers carry the unit ("importance [share]"); in Parquet names stay plain and unit and meaning are
field metadata. Files are built when they are asked for, not when the page is drawn.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st

from data.schema import Column, TableSpec

# A spreadsheet takes a cell that starts with one of these for a formula (CWE-1236).
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def columns_of(*tables: TableSpec) -> dict[str, Column]:
    """The declared columns of some tables by name; the first table that declares a name wins."""
    found: dict[str, Column] = {}
    for table in tables:
        for column in table.columns:
            found.setdefault(column.name, column)
    return found


def _cell(value: Any) -> Any:
    """A value as a CSV cell: text that would be a formula gets a leading apostrophe, lists are JSON."""
    if isinstance(value, str):
        return f"'{value}" if value.startswith(_FORMULA) else value
    if isinstance(value, (list, tuple, np.ndarray)):
        return json.dumps(np.asarray(value).tolist())
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(bytes(value)).decode("ascii")
    return value


def to_csv(frame: pd.DataFrame, columns: Mapping[str, Column] | None = None) -> bytes:
    """The frame as UTF-8 CSV without index. Cells that a spreadsheet would run as formulas are text."""
    columns = columns or {}
    shown = pd.DataFrame(
        {
            # As objects: pandas would infer a string type, which cannot hold a lone surrogate.
            name: values
            if pd.api.types.is_numeric_dtype(values)
            else pd.Series([_cell(value) for value in values], index=values.index, dtype=object)
            for name, values in frame.items()
        }
    )
    shown.columns = [
        _cell(f"{name} [{columns[name].unit}]" if name in columns and columns[name].unit else str(name))
        for name in frame.columns
    ]
    return str(shown.to_csv(index=False, lineterminator="\n")).encode("utf-8", errors="replace")


def to_parquet(frame: pd.DataFrame, columns: Mapping[str, Column] | None = None) -> bytes:
    """The frame as Parquet (zstd), with `unit` and `meaning` in the metadata of known fields."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pandas(frame, preserve_index=False)
    fields = [
        field.with_metadata({"unit": columns[field.name].unit, "meaning": columns[field.name].meaning})
        if columns and field.name in columns
        else field
        for field in table.schema
    ]
    sink = io.BytesIO()
    pq.write_table(table.cast(pa.schema(fields)), sink, compression="zstd")
    return sink.getvalue()


def downloads(
    frame: pd.DataFrame | Callable[[], pd.DataFrame],
    name: str,
    columns: Mapping[str, Column] | None = None,
) -> None:
    """Two buttons for the same numbers. `frame` may be a function, called when a button is pressed;
    `name` is the file's name without ending, unique on the page."""
    get = frame if callable(frame) else lambda: frame
    with st.container(horizontal=True, gap="small"):
        st.download_button(
            "CSV",
            data=lambda: to_csv(get(), columns),
            file_name=f"{name}.csv",
            mime="text/csv",
            key=f"csv_{name}",
            icon=":material/download:",
            on_click="ignore",
            help="Header with units. Text that a spreadsheet would run starts with an apostrophe.",
        )
        st.download_button(
            "Parquet",
            data=lambda: to_parquet(get(), columns),
            file_name=f"{name}.parquet",
            mime="application/vnd.apache.parquet",
            key=f"parquet_{name}",
            icon=":material/download:",
            on_click="ignore",
            help="Exact types; units and meanings are in the field metadata.",
        )


def numbers(
    frame: pd.DataFrame,
    name: str,
    columns: Mapping[str, Column] | None = None,
    *,
    alt: str = "",
    height: int = 320,
) -> None:
    """A table of the numbers on screen, every column with its unit and meaning, and its downloads."""
    known = {column: columns[column] for column in frame.columns if columns and column in columns}
    config = {
        column: st.column_config.Column(f"{column} [{spec.unit}]" if spec.unit else column, help=spec.meaning)
        for column, spec in known.items()
    }
    words = alt or f"Table {name}, {len(frame)} rows"
    st.dataframe(frame, hide_index=True, height=height, column_config=config, alt=words)
    downloads(frame, name, columns)
