"""What kind of token a string is: the classes by which sinks are counted."""

from __future__ import annotations

import re
import unicodedata

KINDS = ("special", "newline", "punctuation", "number", "space", "word", "other")

_BYTES = re.compile(r"\\x[0-9a-f]{2}")  # how a tokenizer's incomplete characters are written
_JOINERS = frozenset("'’-_")


def token_kind(token: str, special: bool = False) -> str:
    """The kind of `token`, one of `KINDS`.

    `special` says that its id is a control token, which no text can decide. A token of nothing but
    white space is a newline if it holds one, else space. Surrounding white space and the `##` of
    word pieces are set aside for the rest: digits (with separators between them) are a number,
    letters (with apostrophes, hyphens, underscores) a word, Unicode punctuation and symbols
    punctuation. Emoji, control and zero-width characters, incomplete bytes and mixtures are other.
    """
    if special:
        return "special"
    if not token:
        return "other"
    body = token.strip()
    if not body:
        return "newline" if "\n" in token or "\r" in token else "space"
    if body.startswith("##") and len(body) > 2:
        body = body[2:]
    if _BYTES.search(body):
        return "other"
    return _kind_of_body(body)


def _kind_of_body(body: str) -> str:
    classes = [unicodedata.category(c) for c in body]
    if all(c[0] == "P" or c in ("Sm", "Sc", "Sk") for c in classes):
        return "punctuation"
    if classes[0][0] == "N" and all(k[0] == "N" or c in ".," for c, k in zip(body, classes, strict=True)):
        return "number"
    letters = [k[0] in "LM" for k in classes]
    if any(letters) and all(ok or c in _JOINERS for c, ok in zip(body, letters, strict=True)):
        return "word"
    return "other"
