"""Claims and what the traces say of them. A verdict is computed, never written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pandas as pd
import streamlit as st

from app.figures.numbers import MISSING, interval, measured
from app.widgets.prose import cite_short, sentence
from data.errors import CloudChamberError
from data.store import Store
from precompute.study import Claim, ClaimResult, Paper, Study, Verdict

# Colour and sign of a verdict; the words carry the meaning, so colour is never alone.
_BADGES = {
    Verdict.reproduced: ("blue", ":material/check:"),
    Verdict.not_reproduced: ("orange", ":material/close:"),
    Verdict.by_construction: ("violet", ":material/architecture:"),
    Verdict.untestable: ("gray", ":material/pending:"),
}


@dataclass(frozen=True)
class Entry:
    """One line of the ledger: a claim, where it comes from, and its result."""

    study: Study
    claim: Claim
    paper: Paper
    result: ClaimResult


@st.cache_resource(show_spinner=False, max_entries=64)
def _measured(slug: str, version: int, path: str, content: str, _store: Store, _study: Study) -> list[Entry]:
    papers = {paper.key: paper for paper in _study.papers}
    return [Entry(_study, claim, papers[claim.paper], _measure(claim, _store)) for claim in _study.claims]


def _measure(claim: Claim, store: Store) -> ClaimResult:
    try:
        return claim.measure(store)
    except CloudChamberError as error:
        return ClaimResult(Verdict.untestable, None, "", f"{error.message} {error.remedy}")


def entries(store: Store, studies: Iterable[Study]) -> list[Entry]:
    """Every claim of the studies, measured from the store once per generation of its content.

    A measurement that raises CloudChamberError leaves its claim untested, with the reason.
    """
    found: list[Entry] = []
    for study in studies:
        found += _measured(study.slug, study.version, str(store.path), store.generation, store, study)
    return found


def counts(found: Sequence[Entry]) -> dict[Verdict, int]:
    """How many claims have each verdict; every verdict is there, with 0 if need be."""
    tally = Counter(entry.result.verdict for entry in found)
    return {verdict: tally[verdict] for verdict in Verdict}


def verdict_badge(verdict: Verdict) -> None:
    """The verdict as a badge: sign, word and colour."""
    colour, icon = _BADGES[verdict]
    st.badge(verdict.value, icon=icon, color=colour)  # type: ignore[arg-type]


def verdict_markdown(verdict: Verdict) -> str:
    """The verdict as a Markdown badge, for use inside text."""
    colour, icon = _BADGES[verdict]
    return f":{colour}-badge[{icon} {verdict.value}]"


def value_markdown(result: ClaimResult) -> str:
    """Our value, its interval below: "**80 % of heads**", "95 %: 78–82 %"; a dash without a value."""
    if result.value is None:
        return MISSING
    text = f"**{measured(result.value, result.unit)}**"
    return f"{text}  \n:small[95 %: {interval(result.interval, result.unit)}]" if result.interval else text


def claim_card(entry: Entry) -> None:
    """One claim in full: verdict and our value; the claim, the paper's figure, ours, what was required."""
    result = entry.result
    with st.container(key=f"claim_{entry.claim.slug}"):
        verdict, words = st.columns([1, 3], gap="medium")
        with verdict:
            verdict_badge(result.verdict)
            if result.value is not None:
                st.markdown(value_markdown(result))
        with words, st.container(gap="xsmall"):
            st.header(sentence(entry.claim.text), anchor=False)
            st.markdown(f"{cite_short(entry.paper)}: {sentence(entry.claim.reported)}")
            st.markdown(f"Here: {sentence(result.detail)}")
            st.caption(f"Required: {sentence(entry.claim.criterion)}. {_runs(result.runs)}")


def claims_table(found: Sequence[Entry]) -> None:
    """A study's claims as its page shows them: the same cards as the ledger."""
    for entry in found:
        claim_card(entry)


def _runs(runs: Sequence[str]) -> str:
    if not runs:
        return "No run."
    shown = " ".join(f"`{run}`" for run in runs[:3])
    more = f" and {len(runs) - 3} more" if len(runs) > 3 else ""
    return f"{'Run' if len(runs) == 1 else 'Runs'} {shown}{more}"


def ledger_frame(found: Sequence[Entry]) -> pd.DataFrame:
    """The ledger as a table, one row per claim, for downloads."""
    return pd.DataFrame(
        [
            {
                "study": entry.study.slug,
                "claim": entry.claim.slug,
                "text": entry.claim.text,
                "paper": entry.paper.title,
                "url": entry.paper.url,
                "reported": entry.claim.reported,
                "criterion": entry.claim.criterion,
                "verdict": entry.result.verdict.value,
                "value": entry.result.value,
                "unit": entry.result.unit,
                "low": entry.result.interval[0] if entry.result.interval else None,
                "high": entry.result.interval[1] if entry.result.interval else None,
                "detail": entry.result.detail,
                "runs": " ".join(entry.result.runs),
            }
            for entry in found
        ]
    )
