"""What the claims of the Krause study rest on: each a function that measures it from the traces.

Seeds are few, so intervals are Student's; comparisons are paired by seed, because networks of the
same seed see the same batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pandas as pd

from data.records import krause_attention_ledger as ledger
from models.attention.slopes import loglog_slope
from models.intervals import student_mean
from precompute.study import ClaimResult, Verdict

if TYPE_CHECKING:
    from data.store import Store

Floats = npt.NDArray[np.float64]

EPS = 0.3  # the threshold of Gu et al. 2025
_SHORTEST = 1_024  # tokens from which on slopes are fitted: below it, fixed costs show
_EXACT = 1e-10
_BACK_COPY, _KJV, _VISION, _PIXELS = "back-copy", "kjv-bytes", "fashion-vit", "fashion-pixels"


def _untestable(what: str) -> ClaimResult:
    advice = f"The store holds no {what}; run `cloudchamber precompute krause_attention --profile full`."
    return ClaimResult(Verdict.untestable, None, "", advice)


def _verdict(holds: bool) -> Verdict:
    return Verdict.reproduced if holds else Verdict.not_reproduced


def _of(
    frame: pd.DataFrame, mechanism: str, window: int | None = None, topk: int | None = None
) -> pd.DataFrame:
    """Runs of one setting with the usual sigma, by seed; smoke-sized data left out."""
    rows = frame[(frame["mechanism"] == mechanism) & (frame["sigma"] == "head")]
    rows = rows[~rows["data"].str.endswith("-subset")]
    for name, value in (("window", window), ("topk", topk)):
        if value is not None:
            rows = rows[rows[name] == value]
    return rows.set_index("seed").sort_index()


def _paired(a: pd.DataFrame, b: pd.DataFrame, column: str) -> tuple[Floats, Floats, tuple[str, ...]]:
    """A column of two settings at the seeds both have, and the runs it came from."""
    seeds = a.index.intersection(b.index)
    runs = (*a.loc[seeds, "run_id"], *b.loc[seeds, "run_id"])
    return a.loc[seeds, column].to_numpy(float), b.loc[seeds, column].to_numpy(float), runs


def _difference(
    a: pd.DataFrame, b: pd.DataFrame, column: str
) -> tuple[float, tuple[float, float], Floats, Floats, tuple[str, ...]] | None:
    """Mean paired difference a - b with its interval; None with fewer than two common seeds."""
    x, y, runs = _paired(a, b, column)
    return None if len(x) < 2 else (float((x - y).mean()), student_mean(x - y), x, y, runs)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def sink_beyond_window(store: Store) -> ClaimResult:
    """Krause against softmax of the same support, with a window that hides nothing."""
    frame = ledger.final_sinks(store, _BACK_COPY, EPS)
    found = _difference(_of(frame, "krause", 64, 8), _of(frame, "window_topk", 64, 8), "first_mass")
    if found is None:
        return _untestable("two seeds of the back-copy task")
    mean, interval, krause, control, runs = found
    return ClaimResult(
        _verdict(interval[1] < 0),
        mean,
        "share of attention",
        f"On the back-copy task, with a window as long as the sequence, the first token gets "
        f"{_percent(krause.mean())} of Krause attention and {_percent(control.mean())} of softmax attention "
        f"on the same 8 keys, over {len(krause)} paired seeds. No ceiling is involved.",
        interval,
        runs,
    )


def score_alone(store: Store) -> ClaimResult:
    """Distance scores against dot products, both dense: what the score does by itself."""
    frame = ledger.final_sinks(store, _BACK_COPY, EPS)
    found = _difference(_of(frame, "rbf"), _of(frame, "softmax"), "first_mass")
    if found is None:
        return _untestable("two seeds of the back-copy task")
    mean, interval, rbf, softmax, runs = found
    lengths = [float(_of(frame, mechanism)["key_norm_ratio"].mean()) for mechanism in ("softmax", "rbf")]
    return ClaimResult(
        _verdict(interval[1] < 0),
        mean,
        "share of attention",
        f"Dense distance scores give the first token {_percent(rbf.mean())}, dense dot products "
        f"{_percent(softmax.mean())}, over {len(rbf)} paired seeds, without window and top-k. The first "
        f"key is {lengths[0]:.1f} times as long as the others under dot products and {lengths[1]:.1f} "
        "times under "
        "distances, which penalise long keys.",
        interval,
        runs,
    )


def narrow_window(store: Store) -> ClaimResult:
    """A window of W keys caps the importance of the first token at W/T."""
    frame = _of(ledger.final_sinks(store, _BACK_COPY, EPS), "krause", 16, 8)
    if len(frame) < 2:
        return _untestable("two seeds of the back-copy task")
    rates = frame["sink_rate"].to_numpy(float)
    ceiling = 16 / 64
    return ClaimResult(
        Verdict.by_construction if ceiling < EPS else _verdict(bool((rates == 0).all())),
        float(rates.mean()),
        "share of heads and chunks",
        f"With a window of 16 in 64 tokens no importance can exceed {ceiling:.2f}, so at ε = {EPS} the sink "
        f"rate is 0 whatever the attention learns ({_percent(rates.mean())} measured).",
        (float(rates.min()), float(rates.max())),
        tuple(frame["run_id"]),
    )


def language_model_sinks(store: Store) -> ClaimResult:
    """The paper's setting: language models from scratch, softmax against Krause."""
    frame = ledger.final_sinks(store, _KJV, EPS)
    found = _difference(_of(frame, "krause", 64, 16), _of(frame, "softmax"), "first_mass")
    if found is None:
        return _untestable("two seeds of the byte language model")
    mean, interval, krause, softmax, runs = found
    rate = float(_of(frame, "softmax")["sink_rate"].mean())
    text = (
        f"The byte models of softmax give the first token {_percent(softmax.mean())} of attention (sink rate "
        f"{_percent(rate)} at ε = {EPS}), those of Krause {_percent(krause.mean())}"
    )
    if rate < 0.01:
        text += ": no sink forms at this size and length of training, so there is none to moderate."
        return ClaimResult(Verdict.untestable, mean, "share of attention", text, interval, runs)
    return ClaimResult(_verdict(interval[1] < 0), mean, "share of attention", f"{text}.", interval, runs)


def language_model_loss(store: Store) -> ClaimResult:
    """Bits per byte of Krause against softmax."""
    frame = ledger.outcomes(store, _KJV)
    found = _difference(_of(frame, "krause", 64, 16), _of(frame, "softmax"), "loss_nats")
    if found is None:
        return _untestable("two seeds of the byte language model")
    mean, interval, krause, softmax, runs = found
    bits = [float(x / np.log(2)) for x in (mean, *interval)]
    return ClaimResult(
        _verdict(bits[2] <= 0.02),
        bits[0],
        "bit/byte",
        f"{krause.mean() / np.log(2):.3f} bits per byte with 16 of 64 keys, {softmax.mean() / np.log(2):.3f} "
        f"with all, over {len(krause)} paired seeds.",
        (bits[1], bits[2]),
        runs,
    )


def vision_accuracy(store: Store) -> ClaimResult:
    """Accuracy on Fashion-MNIST at equal block, paired by seed."""
    frame = ledger.outcomes(store, _VISION)
    found = _difference(_of(frame, "krause", 1, 2), _of(frame, "softmax"), "accuracy")
    if found is None:
        return _untestable("two seeds of the vision transformers")
    mean, interval, krause, softmax, runs = found
    return ClaimResult(
        _verdict(interval[0] > 0),
        mean,
        "share of test images",
        f"{_percent(krause.mean())} of 10,000 test images right with Krause attention, "
        f"{_percent(softmax.mean())} with softmax, in the same pre-norm block over {len(krause)} paired seeds"
        f"{'; the interval contains 0' if interval[0] <= 0 <= interval[1] else ''}.",
        interval,
        runs,
    )


def distance_adds(store: Store) -> ClaimResult:
    """Krause against softmax of the same support: what the distance adds to accuracy."""
    frame = ledger.outcomes(store, _VISION)
    found = _difference(_of(frame, "krause", 1, 2), _of(frame, "window_topk", 1, 2), "accuracy")
    if found is None:
        return _untestable("two seeds of the vision transformers")
    mean, interval, krause, control, runs = found
    return ClaimResult(
        _verdict(interval[0] > 0),
        mean,
        "share of test images",
        f"{_percent(krause.mean())} with distances, {_percent(control.mean())} with dot products on as many "
        f"keys of the same neighbourhood, over {len(krause)} paired seeds.",
        interval,
        runs,
    )


def fewer_pairs(store: Store) -> ClaimResult:
    """Scored pairs, which the neighbourhood fixes; and the time, which it does not."""
    frame = ledger.outcomes(store, _VISION)
    krause, softmax = _of(frame, "krause", 1, 2), _of(frame, "softmax")
    if krause.empty or softmax.empty:
        return _untestable("vision transformers")
    share = float(krause["pairs"].iloc[0] / krause["pairs_dense"].iloc[0])
    time = float(krause["forward_ms"].mean() / softmax["forward_ms"].mean())
    return ClaimResult(
        Verdict.by_construction,
        share,
        "share of pairs",
        f"The neighbourhood admits {krause['pairs'].iloc[0]:,} of {krause['pairs_dense'].iloc[0]:,} pairs of "
        f"50 tokens. A measured forward pass takes {time:.2f} times as long as with softmax"
        f"{': at this length the top-k costs more than fewer pairs save' if time > 1 else ''}.",
        None,
        (*krause["run_id"], *softmax["run_id"]),
    )


def bits_per_dimension(store: Store) -> ClaimResult:
    """Bits per dimension of autoregressive images, Krause against softmax."""
    frame = ledger.outcomes(store, _PIXELS)
    found = _difference(_of(frame, "krause", 128, 96), _of(frame, "softmax"), "loss_nats")
    if found is None:
        return _untestable("two seeds of the pixel transformers")
    mean, interval, krause, softmax, runs = found
    bits = [float(x / np.log(2)) for x in (mean, *interval)]
    return ClaimResult(
        _verdict(bits[2] < 0),
        bits[0],
        "bit/dimension",
        f"{krause.mean() / np.log(2):.4f} bits per pixel of 17 grey levels with Krause attention, "
        f"{softmax.mean() / np.log(2):.4f} with softmax, over {len(krause)} paired seeds.",
        (bits[1], bits[2]),
        runs,
    )


def generation_speed(store: Store) -> ClaimResult:
    """Images per second: Krause with a ring of keys against softmax with all of them."""
    frame = ledger.generation(store, _PIXELS)
    ring = frame[(frame["mechanism"] == "krause") & (frame["memory"] == "ring")]
    full = frame[(frame["mechanism"] == "softmax") & (frame["memory"] == "full")]
    if len(ring) < 2 or len(full) < 2:
        return _untestable("timings of generation")
    n = min(len(ring), len(full))
    ratios = full["seconds"].to_numpy(float)[:n] / ring["seconds"].to_numpy(float)[:n]
    interval = student_mean(ratios)
    smaller = float(full["memory_bytes"].iloc[0] / ring["memory_bytes"].iloc[0])
    return ClaimResult(
        _verdict(interval[0] > 1),
        float(ratios.mean()),
        "× as many images per second",
        f"784 pixels take {ring['seconds'].mean():.1f} s with a ring of 128 keys and top-96, "
        f"{full['seconds'].mean():.1f} s with all keys of softmax (four images at a time, {n} repetitions); "
        f"the ring holds {smaller:.1f} times fewer bytes.",
        interval,
        (*ring["run_id"].unique(), *full["run_id"].unique()),
    )


def linear_scaling(store: Store) -> ClaimResult:
    """Log-log slope of measured time against length, forward and backward."""
    frame = ledger.operator_times(store, "forward+backward")
    frame = frame[frame["length"] >= _SHORTEST]
    slopes = {}
    for name, path, topk in (("gathered", "gathered", 96), ("dense", "dense", 0)):
        rows = frame[(frame["path"] == path) & (frame["topk"] == topk)]
        if rows["length"].nunique() < 3:
            return _untestable("timings of the operators")
        slopes[name] = loglog_slope(rows["length"].to_numpy(), rows["seconds"].to_numpy())
    slope, interval = slopes["gathered"]
    dense, dense_interval = slopes["dense"]
    return ClaimResult(
        _verdict(interval[1] < 1.15 and dense_interval[0] > 1.5),
        slope,
        "log time / log length",
        f"From {_SHORTEST:,} tokens on, the time of gathered Krause attention (window 128, top-96) grows "
        f"with length to the power {slope:.2f}, of dense attention to {dense:.2f}; forward and backward.",
        interval,
        tuple(frame["run_id"].unique()),
    )


def particles_cluster(store: Store) -> ClaimResult:
    """Several stable clusters under bounded confidence, one under softmax."""
    frame = ledger.particle_ends(store)
    bounded = frame[(frame["rule"] == "radius") & (frame["parameter"] == 0.5)]
    softmax = frame[(frame["rule"] == "softmax") & (frame["parameter"] == 1.0)]
    if len(bounded) < 2 or softmax.empty:
        return _untestable("particle runs")
    counts = bounded["clusters"].to_numpy(float)
    interval = student_mean(counts)
    return ClaimResult(
        _verdict(bool((counts > 1).all() and (softmax["clusters"] == 1).all())),
        float(counts.mean()),
        "clusters",
        f"200 particles on the circle after {bounded['step'].max():,} steps: {counts.min():.0f} to "
        f"{counts.max():.0f} clusters with radius 0.5, {softmax['clusters'].min():.0f} to "
        f"{softmax['clusters'].max():.0f} with softmax at β = 1, over {len(counts)} starts.",
        interval,
        (*bounded["run_id"].unique(), *softmax["run_id"].unique()),
    )


def truncation_not_distance(store: Store) -> ClaimResult:
    """The negative control: on the sphere a full Gaussian kernel is softmax."""
    frame = ledger.particle_ends(store)
    rows = frame[frame["rule"] == "rbf"]
    if rows.empty:
        return _untestable("particle runs")
    worst = float(rows["difference"].max())
    clusters = rows[rows["parameter"] == rows["parameter"].max()]["clusters"]
    return ClaimResult(
        Verdict.by_construction if worst < _EXACT else Verdict.not_reproduced,
        worst,
        "largest distance",
        f"With σ² = 1/β the full Gaussian kernel moves every particle as softmax does (largest distance "
        f"{worst:.1e} over {len(rows)} trajectories), also into {clusters.min():.0f} to {clusters.max():.0f} "
        f"clusters at β = {rows['parameter'].max():g}. Truncation makes the clusters, not the distance.",
        None,
        tuple(rows["run_id"].unique()),
    )


def _adapted(frame: pd.DataFrame, stage: str, column: str) -> pd.Series:
    return frame[frame["stage"] == stage].groupby("seed")[column].mean()


def adapted_first_token(store: Store) -> ClaimResult:
    """First-token mass of SmolLM2 before and after; what of the fall the gate alone explains."""
    frame = ledger.adapted(store)
    if frame.empty or frame["seed"].nunique() < 2:
        return _untestable("two seeds of the adapted SmolLM2")
    base, mixed = _adapted(frame, "base", "standard_first"), _adapted(frame, "trained", "mixed_first")
    standard, gate = _adapted(frame, "trained", "standard_first"), _adapted(frame, "trained", "gate")
    ratio = (mixed / base).to_numpy(float)
    own = float((standard / base).mean())
    explained = own > 0.95  # the standard branch kept its sink: the fall is the share given away
    return ClaimResult(
        Verdict.by_construction if explained else _verdict(student_mean(ratio)[1] < 1),
        float(ratio.mean()),
        "× the first-token mass",
        f"First-token mass falls from {_percent(base.mean())} to {_percent(mixed.mean())} of what is mixed. "
        f"The standard branch alone keeps {own:.2f} times its mass; the gate hands {_percent(gate.mean())} "
        f"to a branch whose window hides the first token from most queries"
        f"{', which is the whole effect' if explained else ''}.",
        student_mean(ratio),
        tuple(frame["run_id"].unique()),
    )


def adapted_perplexity(store: Store) -> ClaimResult:
    """Perplexity after training with the branch, against the same training without it."""
    frame = ledger.adapted_losses(store)
    ends = frame.sort_values("step").groupby(["seed", "split"])["loss_nats"].last().unstack()
    if not {"validation", "control"} <= set(ends.columns) or len(ends.dropna()) < 2:
        return _untestable("two seeds of the adapted SmolLM2")
    ends = ends.dropna()
    ratio = np.exp((ends["validation"] - ends["control"]).to_numpy(float))
    interval = student_mean(ratio)
    return ClaimResult(
        _verdict(interval[0] <= 1),
        float(ratio.mean()),
        "× the control's perplexity",
        f"Held-out perplexity {np.exp(ends['validation']).mean():.1f} with the trained branch, "
        f"{np.exp(ends['control']).mean():.1f} after the same training without it.",
        interval,
        tuple(frame["run_id"].unique()),
    )
