"""Words on a page: foreign text made inert, the head of a page, terms with their meaning."""

from __future__ import annotations

import re
from collections.abc import Sequence

import streamlit as st

from precompute.study import Paper

# One line for every term a page uses without explaining it: help lines of controls take them from here.
GLOSSARY = {
    "attention sink": "A key position that receives far more attention than its content deserves.",
    "importance": "Mean attention that a key position gets from the queries that can see it.",
    "sink rate": "Share of (sample, layer, head) where a position's importance exceeds ε (Gu et al. 2025).",
    "epsilon": "ε, the importance above which a key counts as a sink. The reference: 0.3 with 64 tokens.",
    "head": "One of the parallel attention patterns of a layer.",
    "layer": "Transformer block, counted from 0 at the input.",
    "entropy": "Shannon entropy of a query's attention in bits: 0 on one key, log₂ n when even over n keys.",
    "effective keys": "2 to the power of the entropy: over how many keys a query spreads, as if evenly.",
    "gini": "Gini coefficient of the attention that keys receive: 0 when even, 1 when one key gets all.",
    "massive activation": "A hidden value hundreds of times the layer's median, at few tokens.",
    "perplexity": "Exponential of the mean negative log-likelihood per token; 1 is certainty.",
    "sliding cache": "A key-value cache that drops its oldest keys, so that memory stays bounded.",
    "subject": "The thing looked at: a model that a package ships, one that was trained here, or your own.",
    "run": "One subject measured under one configuration and seed.",
    "trace": "What a run recorded: rows of the study's tables.",
    "verdict": "What the traces say of a claim, by a criterion fixed before measuring.",
    "interval": "95 % interval over the repetitions of the measurement.",
}

_MARKUP = re.compile(r"([\\`*_\[\]<>$#|~:])")
_LOCAL_PATH = re.compile(r"""(?<![\w/:.])/(?:[^\s"'`),;:/]+/)*([^\s"'`),;:/]+)""")


def inert(text: str, longest: int = 200) -> str:
    """Foreign text for a Markdown element: shown as it is, never rendered, at most `longest` long.

    Control, zero-width and direction characters and lone surrogates are shown as a replacement sign.
    """
    text = text if len(text) <= longest else text[: longest - 1] + "…"
    text = "".join(
        c if c.isprintable() or c == "\N{NO-BREAK SPACE}" else "\N{REPLACEMENT CHARACTER}" for c in text
    )
    return _MARKUP.sub(r"\\\1", text)


def sentence(text: str) -> str:
    """A message of ours for a Markdown element: `code` stays code, everything else is inert, and no
    path of this machine is told (the last part of it is)."""
    text = _LOCAL_PATH.sub(r"\1", text)
    parts = text.split("`")
    if len(parts) % 2 == 0:  # an unpaired backtick is just a character
        return inert(text, 1_000)
    return "".join(f"`{part}`" if i % 2 else inert(part, 1_000) for i, part in enumerate(parts))


def page_head(title: str, question: str = "", summary: str = "", papers: Sequence[Paper] = ()) -> None:
    """The top of a page: its title, the question, one paragraph, and the papers it stands on."""
    st.title(title, anchor=False)
    if question:
        st.markdown(f"**{question}**")
    if summary:
        st.markdown(summary, width=720)
    if papers:
        st.caption(" · ".join(cite(paper) for paper in papers))


def cite(paper: Paper) -> str:
    """A paper as a Markdown link: "Gu et al., *Title*, ICLR 2025"."""
    authors = paper.authors.split(", ")
    who = authors[0] if len(authors) == 1 else f"{authors[0]} et al."
    return f"[{who} {paper.year}]({paper.url}), {paper.title} ({paper.venue})"


def cite_short(paper: Paper) -> str:
    """A paper as a short Markdown link: "Gu et al. 2025"."""
    authors = paper.authors.split(", ")
    who = authors[0] if len(authors) == 1 else f"{authors[0]} et al."
    return f"[{who} {paper.year}]({paper.url})"
