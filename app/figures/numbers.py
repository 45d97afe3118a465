"""Numbers as people write them: 73 %, 1.3 × 10⁹, 0.05. No Plotly, no Streamlit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

NBSP = "\N{NO-BREAK SPACE}"
MISSING = "–"
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def share(value: float | None) -> str:
    """A share 0..1 in per cent: 0.731 -> "73 %", 0.031 -> "3.1 %", 0.0004 -> "0.04 %", -0.5 -> "−50 %".

    A share that is not quite 0 or 1 is never rounded to "0 %" or "100 %".
    """
    if value is None or not math.isfinite(value):
        return MISSING
    percent = 100 * value
    digits = 0 if 9.95 <= abs(percent) < 99.5 or percent in (0, 100) else 1
    text = f"{percent:.{digits}f}"
    if 0 < abs(percent) < 0.1:
        text = f"{percent:.1g}" if abs(percent) >= 0.01 else f"{'-' if percent < 0 else ''}<0.01"
    elif text == "100.0":
        text = ">99.9"
    return f"{text.removesuffix('.0')}{NBSP}%".replace("-", "−")


def quantity(value: float | None, unit: str = "", digits: int = 3) -> str:
    """A number to `digits` significant digits, with its unit: 1.3e9 -> "1.3 × 10⁹", 1234 -> "1,234".

    Integers below a million are written in full; powers of ten are used from a million up and
    below one thousandth.
    """
    if value is None or not math.isfinite(value):
        text = MISSING if value is None or math.isnan(value) else ("∞" if value > 0 else "−∞")
    elif value == 0:
        text = "0"
    elif 1e-3 <= abs(value) < 1e6:
        places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
        text = f"{value:,.{places}f}"
        text = text.rstrip("0").rstrip(".") if "." in text else text
    else:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        mantissa = mantissa.rstrip("0").rstrip(".")
        power = f"10{str(int(exponent)).translate(_SUPERSCRIPT)}"
        text = power if mantissa == "1" else f"{mantissa}{NBSP}×{NBSP}{power}"
    text = text.replace("-", "−")
    return f"{text}{NBSP}{unit}" if unit else text


def measured(value: float | None, unit: str) -> str:
    """A value with the unit of a claim: (0.8, "share of heads") -> "80 % of heads"."""
    if value is None:
        return MISSING
    if unit == "share" or unit.startswith("share "):
        return f"{share(value)}{unit.removeprefix('share')}"
    return quantity(value, unit)


def interval(bounds: tuple[float, float] | None, unit: str) -> str:
    """An interval in the unit of a claim, without repeating it: "78–82 %", "2.1–2.4"."""
    if bounds is None:
        return MISSING
    if unit == "share" or unit.startswith("share "):
        low, high = (share(b).removesuffix(f"{NBSP}%") for b in bounds)
        if low == high and bounds[0] != bounds[1]:
            low, high = (f"{100 * b:.1f}" for b in bounds)
        return f"{_span(low, high)}{NBSP}%"
    if not all(map(math.isfinite, bounds)) or not 1e-3 <= max(map(abs, bounds)) < 1e6:
        return _span(*(quantity(b) for b in bounds))
    places = max(0, 2 - math.floor(math.log10(max(map(abs, bounds)))))
    return _span(*(f"{b:,.{places}f}" for b in bounds))


def _span(low: str, high: str) -> str:
    """From low to high: a dash between, but "to" beside a minus sign."""
    low, high = low.replace("-", "−"), high.replace("-", "−")
    return f"{low} to {high}" if "−" in low + high else f"{low}–{high}"


def duration(seconds: float | None) -> str:
    """A time as people say it: 0.42 -> "0.42 s", 83 -> "1 min 23 s", 7260 -> "2 h 1 min"."""
    if seconds is None or not math.isfinite(seconds):
        return MISSING
    if seconds < 59.95:
        return quantity(seconds, "s", 2 if seconds < 10 else 3)
    whole = round(seconds)
    if whole < 3600:
        minutes, rest = divmod(whole, 60)
        return f"{minutes}{NBSP}min" + (f" {rest}{NBSP}s" if rest else "")
    hours, minutes = divmod(round(whole / 60), 60)
    return f"{hours}{NBSP}h" + (f" {minutes}{NBSP}min" if minutes else "")


def listed(words: Sequence[str]) -> str:
    """Words in a row: ["a", "b", "c"] -> "a, b and c"."""
    return ", ".join(words[:-1]) + " and " + words[-1] if len(words) > 1 else "".join(words)


def ranges(numbers: Iterable[int]) -> str:
    """Whole numbers, runs of three or more drawn together: [1, 2, 3, 7, 8] -> "1–3, 7, 8"."""
    ordered = sorted(set(numbers))
    runs: list[list[int]] = []
    for number in ordered:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = [f"{run[0]}–{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return ", ".join(parts)
