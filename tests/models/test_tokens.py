"""Kinds of tokens."""

from __future__ import annotations

import pytest

from models.attention.tokens import KINDS, token_kind


@pytest.mark.parametrize(
    ("token", "kind"),
    [
        ("\n", "newline"),
        (" \n\n", "newline"),
        ("\r\n", "newline"),
        (" ", "space"),
        ("\t\t", "space"),
        ("\u00a0", "space"),
        (".", "punctuation"),
        (" (", "punctuation"),
        (">>", "punctuation"),
        ("=", "punctuation"),
        ("$", "punctuation"),
        ("—", "punctuation"),
        ("##", "punctuation"),
        ("7", "number"),
        (" 1,234.5", "number"),
        ("½", "number"),
        ("٣", "number"),
        (" Paris", "word"),
        ("##ing", "word"),
        ("don't", "word"),
        ("'s", "word"),
        ("snake_case", "word"),
        ("שלום", "word"),
        ("नमस्ते", "word"),
        ("C", "word"),
        ("[nH]", "other"),
        ("x1", "other"),
        ("😀", "other"),
        ("\u200b", "other"),
        ("\\xf0\\x9f", "other"),
        (" \\xe2\\x80", "other"),
        ("\ufffd", "other"),
        (chr(0xD800), "other"),
        ("", "other"),
        ("<b>", "other"),
    ],
)
def test_kind(token: str, kind: str) -> None:
    assert token_kind(token) == kind
    assert kind in KINDS


def test_only_the_id_makes_a_token_special() -> None:
    assert token_kind("[CLS]") == "other"
    assert token_kind("[CLS]", special=True) == "special"
    assert token_kind("", special=True) == "special"
