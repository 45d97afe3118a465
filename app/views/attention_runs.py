"""The runs that the attention page can draw, published and private, and their frames."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import pandas as pd
import streamlit as st

from app import jobs
from app.figures.attention_pixels import is_causal
from app.figures.attention_windows import Sight, limited, sight_of
from app.figures.inspector import title
from app.figures.tokens import plain
from app.views import attention_frames as frames
from app.widgets.store import cached_on
from data.records import attention_sinks_queries as queries
from data.shelf import is_brought
from data.sources.pictures import PICTURES
from data.sources.texts import TEXTS
from data.store import Store
from models.attention.metrics import uniform_causal_importance
from precompute.studies.attention_sinks import SMOLLM2, STUDY

P = ParamSpec("P")
R = TypeVar("R")

_TITLES = {
    **{slug: spec.title for slug, spec in TEXTS.items()},
    **{slug: spec.title for slug, spec in PICTURES.items()},
    "random": "Random tokens",
    "repeated": "One token repeated",
    "reactions": "Textbook reactions",
    "free": "A text of one's own",
    "images": "Pictures of one's own",
    "given": "Stored maps",
}
_OWN = ("free", "images")  # what a visitor typed or brought, told apart by its number
YOURS = "Yours:"  # begins the name of a model that was brought in this visit
REMOVED = "_bring_removed"  # session state: slugs that the visitor took off the shelf
STAMP = 48  # pixels of one map in the overview


@dataclass(frozen=True)
class Run:
    """One traced text of one model. `private`: it lies in this visit's own store, which is never cached."""

    store: Store
    private: bool
    id: str
    subject: str
    text: str
    bos: bool
    length: int
    samples: int
    has_maps: bool
    number: int = 0  # of a visitor's text or pictures, from 1
    name: str = ""  # of a model that was brought

    @property
    def model(self) -> str:
        """The model's name for people."""
        spec = STUDY.subjects.get(self.subject)
        return spec.title if spec else self.name or self.subject

    @property
    def brought(self) -> bool:
        """Whether the model is somebody's own, not one of the reference models."""
        return is_brought(self.subject)

    @property
    def slug(self) -> str:
        """The text and how it was cut, without the model: the control's value, so that the same text
        stays chosen when the model changes."""
        if self.text in _OWN:
            return f"own-{self.number}" if self.private else f"{self.text}-{self.id[:8]}"
        return f"{self.text}-{self.samples}x{self.length}-{'start' if self.bos else 'bare'}"

    @property
    def start(self) -> str:
        """How the text begins: with the tokenizer's own special tokens or without."""
        name = "BOS" if self.subject == SMOLLM2 else "special tokens" if self.brought else "[CLS]"
        return f"with {name}" if self.bos else f"no {name}"

    @property
    def title(self) -> str:
        """The text in plain words: how it begins, chunks × tokens in each."""
        name = self.name_of(self.text)
        if self.private and self.text in _OWN:
            name = f"Your {'text' if self.text == 'free' else 'pictures'} {self.number}"
            if not self.brought:
                return f"{name}, {self.start}"
        if self.text == "reactions":
            return f"{name}, {self.start}"
        if self.text == "images" or self.text in PICTURES:
            return f"{name}, {self.samples} picture{'s' if self.samples > 1 else ''}"
        size = f"{self.length} tokens" if self.samples == 1 else f"{self.samples} × {self.length}"
        return f"{name}, {size}" if self.text == "given" else f"{name}, {self.start}, {size}"

    @staticmethod
    def name_of(text: str) -> str:
        """A bundled text's name for people."""
        return _TITLES.get(text, text)

    def read(self, query: Callable[Concatenate[Store, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """`query` on this run's store; shared between visitors if it is published, computed anew if "
        "private."""
        if self.private:
            return query(self.store, *args, **kwargs)
        return cached_on(self.store, query, *args, **kwargs)

    def heads(self, eps: float) -> pd.DataFrame:
        """Every head's scalars with its sink rate at `eps`, NaN where its layer cannot show one."""
        return self.read(frames.heads, self.id, eps)

    def by_layer(self, eps: float) -> pd.DataFrame:
        """Sink rate by layer, NaN for a layer that cannot show one at `eps`."""
        return self.read(frames.by_layer, self.id, eps)

    def windows(self) -> pd.DataFrame:
        """What each layer sees; empty for runs that do not say."""
        return self.read(queries.windows, self.id)

    def sight(self, layer: int) -> Sight:
        """What one layer sees."""
        return sight_of(self.windows(), layer)

    def card(self) -> Mapping[str, Any] | None:
        """What is known of the model, None for runs that do not say."""
        return self.read(queries.model_card, self.id)

    def rates(self) -> pd.DataFrame:
        """Sink rate of the first token at every threshold from 0 to 1: eps, rate."""
        return self.read(frames.rates, self.id)

    def tokens(self) -> list[str]:
        """The tokens of the first chunk."""
        return self.read(queries.tokens, self.id)["token"].tolist()

    def importance(self, layer: int, head: int) -> pd.DataFrame:
        """The importance of every position of one head; asked for with every click, so not kept."""
        return queries.importance(self.store, self.id, layer, head)

    def weights(self, layer: int, head: int) -> np.ndarray | None:
        """One head's map, None where none is stored; megabytes each, so not kept."""
        return queries.attention_map(self.store, self.id, layer, head) if self.has_maps else None

    def stamps(self) -> np.ndarray | None:
        """All maps, pooled to stamps."""
        return self.read(queries.attention_thumbnails, self.id, STAMP) if self.has_maps else None

    def causal(self) -> bool | None:
        """Whether queries see only what stands before them; None when no map is there to tell."""
        return self.read(_causal, self.id) if self.has_maps else None

    def even(self) -> float | None:
        """The first token's importance if attention were even; None when no map tells the direction."""
        causal = self.causal()
        if causal is None or self.text == "reactions" or limited(self.windows()):
            return None  # reactions differ in length, windows in what is seen
        size = len(self.tokens())
        return uniform_causal_importance(size) if causal else 1 / size

    def record(self) -> Mapping[str, Any]:
        """The run's row of `runs`: configuration, versions, device, time."""
        return {str(name): value for name, value in self.read(_record, self.id).iloc[0].items()}


def _causal(store: Store, run_id: str) -> bool | None:
    weights = queries.attention_map(store, run_id, 0, 0)
    return None if weights is None else is_causal(weights)


def _record(store: Store, run_id: str) -> pd.DataFrame:
    runs = store.runs(STUDY.slug)
    return runs[runs["run_id"] == run_id]


def _rows(store: Store, *, private: bool) -> list[Run]:
    frame = queries.trace_runs(store) if private else cached_on(store, queries.trace_runs)
    found: list[Run] = []
    number = 0
    for row in frame.to_dict("records"):
        number += row["text"] in _OWN
        run = Run(
            store,
            private,
            str(row["run_id"]),
            str(row["subject"]),
            str(row["text"]),
            bool(row["bos"]),
            int(row["tokens"] if private or is_brought(str(row["subject"])) else row["length"]),
            int(row["chunks"]),
            bool(row["has_maps"]),
            number if private else 0,
        )
        found.append(replace(run, name=_name(run)) if run.brought else run)
    return _told_apart(found)


def _name(run: Run) -> str:
    """What a brought model is called: in its visit by what it is, as a published one by its name too.

    A visitor's file name never stands here: names of models are in the address.
    """
    card = run.card() or {}
    kind = title(
        str(card.get("architecture") or ""), str(card.get("family") or ""), int(card.get("parameters") or 0)
    )
    if run.private:
        return f"{YOURS} {kind}"
    return f"{plain(str(card['name']), 40)}: {kind}" if card.get("name") else kind


def _told_apart(runs: list[Run]) -> list[Run]:
    """Two brought models of one name get the end of their slug behind it."""
    names: dict[str, set[str]] = {}
    for run in runs:
        if run.brought:
            names.setdefault(run.name, set()).add(run.subject)
    return [
        replace(run, name=f"{run.name} · {run.subject[-4:]}")
        if run.brought and len(names[run.name]) > 1
        else run
        for run in runs
    ]


def failures_of(store: Store) -> list[tuple[str, str | None]]:
    """Run id and error of every stored run of the study that failed."""
    runs = cached_on(store, _failed)
    return list(zip(runs["run_id"], runs["error"], strict=True))


def _failed(store: Store) -> pd.DataFrame:
    runs = store.runs(STUDY.slug)
    return runs[runs["status"] == "failed"]


def runs_of(store: Store) -> list[Run]:
    """Every traced text: the published ones, then this visit's own."""
    own = jobs.pool().store(jobs.visit())
    private = _rows(own, private=True) if own is not None else []
    removed = st.session_state.get(REMOVED, ())
    return _rows(store, private=False) + [run for run in private if run.subject not in removed]


def by_model(runs: list[Run]) -> dict[str, list[Run]]:
    """Runs by subject, in the study's order of subjects; the default run of each comes first."""
    order = list(STUDY.subjects)
    found: dict[str, list[Run]] = {}
    for run in sorted(
        runs,
        key=lambda r: (order.index(r.subject) if r.subject in order else len(order), r.name, *_rank(r)),
    ):
        found.setdefault(run.subject, []).append(run)
    return found


def _rank(run: Run) -> tuple[Any, ...]:
    """Short maps of natural text first: they show words and load at once."""
    texts = [*TEXTS, "reactions", "random", "repeated"]
    place = texts.index(run.text) if run.text in texts else len(texts)
    return (run.private, not run.has_maps, run.length > 128, place, run.bos, run.samples)
