"""The runs that the attention page can draw, published and private, and their frames."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import pandas as pd

from app import jobs
from app.figures.attention_metrics import METRICS
from app.figures.attention_pixels import is_causal
from app.figures.attention_sinks import heads_map
from app.figures.base import Figure
from app.theme import Mode, palette
from app.widgets.store import cached_on
from data.records import attention_sinks_queries as queries
from data.sources.texts import TEXTS
from data.store import Store
from models.attention.metrics import uniform_causal_importance
from precompute.studies.attention_sinks import SMOLLM2, STUDY

P = ParamSpec("P")
R = TypeVar("R")

_TITLES = {
    **{slug: spec.title for slug, spec in TEXTS.items()},
    "random": "Random tokens",
    "repeated": "One token repeated",
    "reactions": "Textbook reactions",
}
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
    number: int = 0  # of a visitor's text, from 1

    @property
    def model(self) -> str:
        """The model's name for people."""
        spec = STUDY.subjects.get(self.subject)
        return spec.title if spec else self.subject

    @property
    def slug(self) -> str:
        """The text and how it was cut, without the model: the control's value, so that the same text
        stays chosen when the model changes."""
        cut = f"{self.samples}x{self.length}-{'start' if self.bos else 'bare'}"
        return f"own-{self.number}" if self.private else f"{self.text}-{cut}"

    @property
    def start(self) -> str:
        """How the text begins: with the tokenizer's own special tokens or without."""
        name = "BOS" if self.subject == SMOLLM2 else "[CLS]"
        return f"with {name}" if self.bos else f"no {name}"

    @property
    def title(self) -> str:
        """The text in plain words: how it begins, chunks × tokens in each."""
        if self.private:
            return f"Your text {self.number}, {self.start}"
        name = self.name_of(self.text)
        if self.text == "reactions":
            return f"{name}, {self.start}"
        size = f"{self.length} tokens" if self.samples == 1 else f"{self.samples} × {self.length}"
        return f"{name}, {self.start}, {size}"

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
        """Every head's scalars with its sink rate at `eps`."""
        return self.read(_heads, self.id, eps)

    def by_layer(self, eps: float) -> pd.DataFrame:
        """Sink rate by layer."""
        return self.read(queries.sinks_by_layer, self.id, eps)

    def rates(self) -> pd.DataFrame:
        """Sink rate of the first token at every threshold from 0 to 1: eps, rate."""
        return self.read(_rates, self.id)

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
        if causal is None or self.text == "reactions":  # reactions differ in length
            return None
        size = len(self.tokens())
        return uniform_causal_importance(size) if causal else 1 / size

    def record(self) -> Mapping[str, Any]:
        """The run's row of `runs`: configuration, versions, device, time."""
        return {str(name): value for name, value in self.read(_record, self.id).iloc[0].items()}


def _heads(store: Store, run_id: str, eps: float) -> pd.DataFrame:
    rates = queries.sink_rates(store, run_id, eps)
    return queries.heads(store, run_id).merge(rates, on=["layer", "head"], how="left")


def heads_figure(store: Store, run_id: str, metric: str, eps: float, mode: Mode) -> Figure:
    """The map of heads of a run. It stays the same from click to click, so pages keep it."""
    by_layer = queries.sinks_by_layer(store, run_id, eps)
    return heads_map(_heads(store, run_id, eps), by_layer, METRICS[metric], eps, palette(mode))


def _causal(store: Store, run_id: str) -> bool | None:
    weights = queries.attention_map(store, run_id, 0, 0)
    return None if weights is None else is_causal(weights)


def _rates(store: Store, run_id: str) -> pd.DataFrame:
    grid = [step / 20 for step in range(21)]
    means = [float(queries.sink_rates(store, run_id, eps)["sink_rate"].mean()) for eps in grid]
    return pd.DataFrame({"eps": grid, "rate": means})


def _record(store: Store, run_id: str) -> pd.DataFrame:
    runs = store.runs(STUDY.slug)
    return runs[runs["run_id"] == run_id]


def _rows(store: Store, *, private: bool) -> list[Run]:
    frame = queries.trace_runs(store) if private else cached_on(store, queries.trace_runs)
    return [
        Run(
            store,
            private,
            str(row["run_id"]),
            str(row["subject"]),
            str(row["text"]),
            bool(row["bos"]),
            int(row["length"]),
            int(row["samples"]),
            bool(row["has_maps"]),
            number if private else 0,
        )
        for number, row in enumerate(frame.to_dict("records"), start=1)
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
    return _rows(store, private=False) + (_rows(own, private=True) if own is not None else [])


def by_model(runs: list[Run]) -> dict[str, list[Run]]:
    """Runs by subject, in the study's order of subjects; the default run of each comes first."""
    order = list(STUDY.subjects)
    found: dict[str, list[Run]] = {}
    for run in sorted(
        runs, key=lambda r: (order.index(r.subject) if r.subject in order else len(order), *_rank(r))
    ):
        found.setdefault(run.subject, []).append(run)
    return found


def _rank(run: Run) -> tuple[Any, ...]:
    """Short maps of natural text first: they show words and load at once."""
    texts = [*TEXTS, "reactions", "random", "repeated"]
    place = texts.index(run.text) if run.text in texts else len(texts)
    return (run.private, not run.has_maps, run.length > 128, place, run.bos, run.samples)


def default_head(heads: pd.DataFrame) -> tuple[int, int]:
    """The head to open with: the one that gives its first token nearest to half of its attention, so
    that both the sink and what else it looks at can be seen."""
    apart = (heads["first_importance"] - 0.5).abs()
    row = heads.iloc[int(np.nanargmin(apart.to_numpy()))] if apart.notna().any() else heads.iloc[0]
    return int(row["layer"]), int(row["head"])
