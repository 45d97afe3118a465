"""What the papers say of attention sinks, each as a function that measures it from the traces."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pandas as pd

from data.records import attention_sinks_causes_queries as causes
from data.records import attention_sinks_queries as queries
from data.sources.texts import TEXTS
from models.intervals import bootstrap_mean
from precompute.study import Claim, ClaimResult, Verdict

if TYPE_CHECKING:
    from data.store import Store

SUBJECT = "smollm2-135m-instruct"
EPS = 0.3  # the threshold of Gu et al. 2025, with T = 64
LENGTH = 64
NATURAL = ("kjv", "prose", "code")


def _untestable(what: str) -> ClaimResult:
    advice = f"The store holds no {what}; run `cloudchamber precompute`."
    return ClaimResult(Verdict.untestable, None, "", advice)


def _verdict(holds: bool) -> Verdict:
    return Verdict.reproduced if holds else Verdict.not_reproduced


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _titles(texts: pd.Series) -> str:
    """Bundled texts by their titles: "Genesis (King James) and Python code"."""
    *others, last = [TEXTS[slug].title for slug in NATURAL if slug in set(texts)]
    return f"{', '.join(others)} and {last}" if others else last


def _traces(store: Store, texts: tuple[str, ...], bos: bool = False) -> pd.DataFrame:
    runs = queries.trace_runs(store)
    wanted = (
        (runs["subject"] == SUBJECT)
        & runs["text"].isin(texts)
        & (runs["bos"] == bos)
        & (runs["length"] == LENGTH)
        & (runs["samples"] == 20)
    )
    return runs[wanted]


def _sink_rates(store: Store, runs: pd.DataFrame) -> npt.NDArray[np.float64]:
    """Sink rate of every sample of the runs, over all heads: (samples,)."""
    frames = [queries.sink_rate_by_sample(store, run_id, EPS) for run_id in runs["run_id"]]
    return pd.concat(frames)["rate"].to_numpy(dtype=np.float64)


def most_heads_sink(store: Store) -> ClaimResult:
    """Gu et al. 2025: Sink_1^0.3 at T = 64 on natural text."""
    runs = _traces(store, NATURAL)
    if runs.empty:
        return _untestable("trace of SmolLM2 on natural text")
    rates = _sink_rates(store, runs)
    interval = bootstrap_mean(rates)
    return ClaimResult(
        _verdict(interval[0] > 0.5),
        float(rates.mean()),
        "share of heads",
        f"{_percent(float(rates.mean()))} of (sample, layer, head) give the first token more than 30 % of "
        f"their attention, over {len(rates)} chunks of {_titles(runs['text'])}.",
        interval,
        tuple(runs["run_id"]),
    )


def random_tokens_sink(store: Store) -> ClaimResult:
    """Gu et al. 2025: the sink needs no meaning; tokens drawn at random have it too."""
    runs = _traces(store, ("random",))
    natural = _traces(store, NATURAL)
    if runs.empty or natural.empty:
        return _untestable("trace of SmolLM2 on random tokens")
    rates = _sink_rates(store, runs)
    reference = float(_sink_rates(store, natural).mean())
    return ClaimResult(
        _verdict(bootstrap_mean(rates)[0] > 0.5),
        float(rates.mean()),
        "share of heads",
        f"Random tokens: {_percent(float(rates.mean()))} of heads sink; natural text: {_percent(reference)}.",
        bootstrap_mean(rates),
        tuple(runs["run_id"]),
    )


def repeated_token_has_no_sink(store: Store) -> ClaimResult:
    """Gu et al. 2025: one token repeated leaves a rotary model nothing to tell positions' contents apart.

    Without BOS every position then carries the same hidden state, so keys and values are equal up to
    rotation and no key can stand out by content: true by construction.
    """
    runs = _traces(store, ("repeated",))
    if runs.empty:
        return _untestable("trace of SmolLM2 on a repeated token")
    rates = _sink_rates(store, runs)
    holds = bootstrap_mean(rates)[1] < 0.05
    return ClaimResult(
        Verdict.by_construction if holds else Verdict.not_reproduced,
        float(rates.mean()),
        "share of heads",
        f"{_percent(float(rates.mean()))} of heads sink on the first of 64 equal tokens.",
        bootstrap_mean(rates),
        tuple(runs["run_id"]),
    )


def position_not_token(store: Store) -> ClaimResult:
    """Xiao et al. 2024, section 3.1: another token in first place becomes the sink."""
    runs = causes.intervention_runs(store)
    runs = runs[runs["subject"] == SUBJECT]
    if runs.empty:
        return _untestable("intervention run of SmolLM2")
    ratios: list[float] = []
    for run_id in runs["run_id"]:
        frame = causes.interventions(store, run_id, EPS).set_index("variant")
        replaced = frame.loc[[v for v in frame.index if v.startswith("replaced")], "first_rate"]
        ratios.extend(replaced / frame.loc["original", "first_rate"])
    low, mean = float(min(ratios)), float(np.mean(ratios))
    return ClaimResult(
        _verdict(low >= 0.9),
        mean,
        "× the original sink rate",
        f"With another token put in first place the sink rate is {mean:.2f} of the original's on average, "
        f"{low:.2f} for the worst of {len(ratios)} replacements.",
        bootstrap_mean(ratios) if len(ratios) > 1 else None,
        tuple(runs["run_id"]),
    )


def massive_activations(store: Store) -> ClaimResult:
    """Sun et al. 2024, section 2: |activation| > 100 and about 1,000 times the layer's median."""
    runs = _traces(store, NATURAL)
    if runs.empty:
        return _untestable("trace of SmolLM2 on natural text")
    frames = [queries.layers(store, run_id) for run_id in runs["run_id"]]
    frame = pd.concat(frames).groupby("layer").mean(numeric_only=True)
    frame["ratio"] = frame["max_abs"] / frame["median_abs"]
    massive = frame[(frame["max_abs"] > 100) & (frame["ratio"] > 1_000) & (frame["at_first"] > 0.5)]
    best = frame.reset_index().sort_values("ratio").iloc[-1]
    return ClaimResult(
        _verdict(len(massive) > 0),
        float(frame["ratio"].max()),
        "× the median",
        f"Layer {best['layer']:.0f}: the largest activation is {best['max_abs']:,.0f}, "
        f"{best['ratio']:,.0f} times the median, at the first token in "
        f"{_percent(float(best['at_first']))} of chunks; {len(massive)} of {len(frame) - 1} "
        f"layers meet the definition.",
        None,
        tuple(runs["run_id"]),
    )


def sink_values_are_small(store: Store) -> ClaimResult:
    """Gu et al. 2025, section 3: the first token's value vectors are small, so its mass adds little."""
    runs = _traces(store, NATURAL)
    if runs.empty:
        return _untestable("trace of SmolLM2 on natural text")
    frame = pd.concat([queries.heads(store, run_id) for run_id in runs["run_id"]])
    sinking = frame[frame["first_importance"] > EPS]
    share = float((sinking["value_norm_ratio"] < 1).mean()) if len(sinking) else float("nan")
    median = float(sinking["value_norm_ratio"].median()) if len(sinking) else float("nan")
    return ClaimResult(
        _verdict(share > 0.9),
        share,
        "share of sinking heads",
        f"In {_percent(share)} of the sinking heads the first token's value vector is shorter than the "
        f"others' mean; the median ratio is {median:.2f}.",
        None,
        tuple(runs["run_id"]),
    )


def _stream_ratios(store: Store, kept: int) -> tuple[npt.NDArray[np.float64], tuple[str, ...], int] | None:
    """Perplexity with a sliding cache over the full cache's, per stream, after the cache is full."""
    runs = causes.stream_runs(store)
    runs = runs[runs["subject"] == SUBJECT]
    if runs.empty:
        return None
    runs = runs[runs["length"] == runs["length"].max()]
    ratios: list[float] = []
    for run_id in runs["run_id"]:
        nats = causes.streaming_after_eviction(store, run_id)
        dense = nats[nats["policy"] == "dense"].set_index("stream")["nll_nats"]
        window = nats[(nats["policy"] == "window") & (nats["kept"] == kept)].set_index("stream")["nll_nats"]
        ratios.extend(np.exp(window - dense))
    return np.array(ratios), tuple(runs["run_id"]), int(runs["cache"].iloc[0])


def window_breaks(store: Store) -> ClaimResult:
    """Xiao et al. 2024, figure 3 and table 1: evicting the first tokens ruins the model."""
    found = _stream_ratios(store, kept=0)
    if found is None:
        return _untestable("stream of SmolLM2")
    ratios, runs, cache = found
    interval = bootstrap_mean(ratios)
    return ClaimResult(
        _verdict(interval[0] > 2),
        float(ratios.mean()),
        "× dense perplexity",
        f"A sliding cache of {cache} keys that keeps no first token has {ratios.mean():.1f} times the "
        f"perplexity of the full cache, over {len(ratios)} streams.",
        interval,
        runs,
    )


def four_kept_restore(store: Store) -> ClaimResult:
    """Xiao et al. 2024, table 2: four kept tokens restore the perplexity."""
    found, broken = _stream_ratios(store, kept=4), _stream_ratios(store, kept=0)
    if found is None or broken is None:
        return _untestable("stream of SmolLM2")
    ratios, runs, cache = found
    interval = bootstrap_mean(ratios)
    return ClaimResult(
        _verdict(interval[1] < 1.25 and interval[1] < broken[0].mean()),
        float(ratios.mean()),
        "× dense perplexity",
        f"Keeping 4 first tokens in a cache of {cache} keys gives {ratios.mean():.2f} times the perplexity "
        f"of the full cache (none kept: {broken[0].mean():.1f} times).",
        interval,
        runs,
    )


CLAIMS = (
    Claim(
        "most-heads-sink",
        "Most heads of a pretrained language model sink on the first token.",
        "gu2025",
        "Sinks are found in all open language models examined, small ones included (abstract).",
        "95 % interval of Sink₁ at ε = 0.3, T = 64 on natural text lies above one half",
        most_heads_sink,
    ),
    Claim(
        "random-tokens-sink",
        "The sink needs no meaning: random tokens have it too.",
        "gu2025",
        "Sinks exist with various inputs, random token sequences included.",
        "95 % interval of Sink₁ on random tokens lies above one half",
        random_tokens_sink,
    ),
    Claim(
        "repeated-token-no-sink",
        "A single repeated token leaves a rotary model without a sink.",
        "gu2025",
        "With one token repeated, models with rotary positions lose the sink.",
        "95 % interval of Sink₁ on a repeated token, no BOS, lies below 5 %",
        repeated_token_has_no_sink,
    ),
    Claim(
        "position-not-token",
        "The sink belongs to the first position, not to the token that stands there.",
        "xiao2024",
        "First four tokens replaced by line breaks: perplexity 5.60 against 5.40 (table 1).",
        "every replacement of the first token keeps at least 90 % of the sink rate",
        position_not_token,
    ),
    Claim(
        "massive-activations",
        "The sink token carries massive activations.",
        "sun2024",
        "A few activations exceed 100 and about 1,000 times the median (definition, section 2).",
        "some layer has max |h| > 100 and > 1,000 × its median, at the first token in most chunks",
        massive_activations,
    ),
    Claim(
        "sink-values-small",
        "The sink's value vectors are small, so the parked attention adds little.",
        "gu2025",
        "The first token's value norm is far below the others' (section 3).",
        "the first token's value vector is shorter than the mean in over 90 % of sinking heads",
        sink_values_are_small,
    ),
    Claim(
        "window-breaks",
        "A sliding window that drops the first tokens breaks the model.",
        "xiao2024",
        "Llama-2-13B, PG-19: perplexity 5158 with window 1,024, against 5.40 with four kept (table 1).",
        "95 % interval of the perplexity ratio to the full cache lies above 2",
        window_breaks,
    ),
    Claim(
        "four-kept-restore",
        "Four kept tokens restore it.",
        "xiao2024",
        "Llama-2-7B: 0 + 4,096 keys 3360, 1 + 4,095 keys 11.88, 4 + 4,092 keys 9.59 (table 2).",
        "95 % interval of the ratio with 4 kept lies below 1.25 and below the ratio with none kept",
        four_kept_restore,
    ),
)
