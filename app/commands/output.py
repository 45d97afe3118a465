"""Consoles, tables and JSON: the way every command prints."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.console import Console

WIDE = 160  # columns when the output goes to a file or a pipe, so that nothing is cut at 80


def console() -> Console:
    """Standard output."""
    from rich.console import Console

    class Output(Console):
        def on_broken_pipe(self) -> None:
            """The reader has seen enough: that is for the command line to end, not for rich."""
            raise BrokenPipeError

    return Output(highlight=False, width=None if sys.stdout.isatty() else WIDE)


def errors() -> Console:
    """Standard error: notices, progress and what went wrong."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def print_json(value: Any) -> None:
    """One JSON object on standard output; NaN becomes null, as scripts expect."""
    print(json.dumps(_plain(value), ensure_ascii=False, indent=1, allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "item"):  # numpy scalars
        return _plain(value.item())
    return value


def print_table(
    headers: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Sequence[int] = (),
    whole: Sequence[int] = (),
) -> None:
    """A table without frame. `right` are the indices of right-aligned columns, `whole` of those never
    broken into lines."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for index, header in enumerate(headers):
        side: Literal["left", "right"] = "right" if index in right else "left"
        table.add_column(header, justify=side, overflow="fold", no_wrap=index in whole)
    for row in rows:
        table.add_row(*row)
    console().print(table)


def number(value: float | None, digits: int = 3) -> str:
    """A number as people write it: 3 significant digits, no exponent between 0.001 and a million."""
    if value is None or not math.isfinite(value):
        return "–"
    if value != 0 and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.{digits - 1}e}"
    text = f"{value:,.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}" if value else "0"
    return text.rstrip("0").rstrip(".") if "." in text else text


def duration(seconds: float) -> str:
    """0.4 s, 12 s, 3 min 05 s, 1 h 12 min."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def size(count: int) -> str:
    """Bytes as kB, MB or GB (powers of ten)."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} B"
