"""Tokens as labels: visible, inert, aligned, and one label per position.

Token strings come from tokenizers and from visitors. Plotly reads a little HTML in labels, browsers
reorder right-to-left text, and several characters draw nothing; none of that may move or hide a label.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence

FEW = 96  # up to here tokens alone label an axis; above, their position stands before them
LONGEST = 11  # characters of a token on an axis
SHORT = 8  # and of one that has its position before it
_ISOLATE, _POP = "\N{FIRST STRONG ISOLATE}", "\N{POP DIRECTIONAL ISOLATE}"
_ZERO_WIDTH = "\N{ZERO WIDTH SPACE}"
_MARKDOWN = {c: f"\\{c}" for c in "\\`*_{}[]()<>#+-.!|$~:^="} | {"&": "&amp;"}
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def plain(token: str, longest: int = LONGEST) -> str:
    """A token as visible text of at most `longest` characters, not yet escaped for any markup.

    Spaces at the ends go, unless they are all there is (`␣`). Line breaks, controls, zero-width and
    direction marks, unassigned characters and lone surrogates are written as escapes; a combining
    mark that opens a token stands on a dotted circle.
    """
    text = token.strip(" ") or "␣" * min(max(len(token), 1), 3)
    if unicodedata.category(text[0]).startswith("M"):
        text = "\N{DOTTED CIRCLE}" + text
    shown = "".join(_visible(character) for character in text)
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"


def _visible(character: str) -> str:
    if character in _NAMED:
        return _NAMED[character]
    category = unicodedata.category(character)
    if category in ("Cc", "Cf", "Cs", "Cn", "Co", "Zl", "Zp"):
        code = ord(character)
        return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
    return " " if category == "Zs" else character


def inert(text: str) -> str:
    """Text for a Plotly label: its pseudo-HTML and TeX marks are entities, its direction stays inside."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("$", "&#36;")
    mixed = any(unicodedata.bidirectional(character) in ("R", "AL", "AN") for character in text)
    return f"{_ISOLATE}{escaped}{_POP}" if mixed else escaped


def markdown(token: str, longest: int = 24) -> str:
    """A token quoted in a sentence of Markdown: “In”, with every character that Markdown reads escaped."""
    text = plain(token, longest)
    escaped = "".join(_MARKDOWN.get(c, c) for c in text)
    mixed = any(unicodedata.bidirectional(character) in ("R", "AL", "AN") for character in text)
    return f"“{_ISOLATE}{escaped}{_POP}”" if mixed else f"“{escaped}”"


def axis_labels(tokens: Sequence[str], factor: int = 1) -> list[str]:
    """One unique label per position, or per block of `factor` positions (its first), for a category axis.

    Up to `FEW` labels are the tokens themselves: a repeated one gets invisible zero-width marks, so
    that Plotly does not take two positions for one category. Longer texts number their positions.
    """
    first = tokens[::factor]
    if len(first) > FEW:
        return [f"{i * factor} {inert(plain(token, SHORT))}" for i, token in enumerate(first)]
    shown = [inert(plain(token)) for token in first]
    seen: Counter[str] = Counter()
    labels = []
    for text in shown:
        labels.append(text + _ZERO_WIDTH * seen[text])
        seen[text] += 1
    return labels
