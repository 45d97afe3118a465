"""The SQL over interventions on the first token, and over streaming with a sliding cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from data.records.attention_sinks_queries import runs_of

if TYPE_CHECKING:
    from data.store import Store


def stream_runs(store: Store) -> pd.DataFrame:
    """Done runs with task `stream`; `cache` is the sliding cache's size in keys."""
    return runs_of(store, "stream")


def intervention_runs(store: Store) -> pd.DataFrame:
    """Done runs with task `intervene`."""
    return runs_of(store, "intervene").drop(columns="cache")


def interventions(store: Store, run_id: str, eps: float) -> pd.DataFrame:
    """What each variant does to the sink, over all samples, layers and heads.

    Columns: variant, first_token (an example), first_rate (share of heads whose importance of
    position 0 exceeds eps), first_importance (mean), second_rate, elsewhere_rate (share of heads
    whose strongest key is not position 0 and exceeds eps), low and high (5th and 95th percentile of
    first_rate over samples).
    """
    return store.frame(
        """
        WITH per_sample AS (
            SELECT variant, sample, any_value(first_token) AS first_token,
                   avg(CAST(first_importance > ? AS DOUBLE)) AS first_rate,
                   avg(first_importance) AS first_importance,
                   avg(CAST(second_importance > ? AS DOUBLE)) AS second_rate,
                   avg(CAST(top_key > 0 AND top_key_importance > ? AS DOUBLE)) AS elsewhere_rate
            FROM attention_interventions WHERE run_id = ? GROUP BY variant, sample
        )
        SELECT variant, arg_min(first_token, sample) AS first_token, count(*) AS samples,
               avg(first_rate) AS first_rate, quantile_cont(first_rate, 0.05) AS low,
               quantile_cont(first_rate, 0.95) AS high, avg(first_importance) AS first_importance,
               avg(second_rate) AS second_rate, avg(elsewhere_rate) AS elsewhere_rate
        FROM per_sample GROUP BY variant ORDER BY variant <> 'original', variant <> 'removed', variant
        """,
        (eps, eps, eps, run_id),
    )


def interventions_by_layer(store: Store, run_id: str) -> pd.DataFrame:
    """Mean importance of position 0 by variant and layer: variant, layer, first_importance."""
    return store.frame(
        """
        SELECT variant, layer, avg(first_importance) AS first_importance
        FROM attention_interventions WHERE run_id = ? GROUP BY variant, layer ORDER BY variant, layer
        """,
        (run_id,),
    )


def streaming(store: Store, run_id: str) -> pd.DataFrame:
    """Perplexity by policy and position bin over the run's streams.

    Columns: policy, kept, cache, start, stop, position (middle of the bin), perplexity (exponential
    of the mean over streams of the bin's nats), low and high (its smallest and largest stream).
    """
    return store.frame(
        """
        SELECT policy, kept, cache, start, stop, (start + stop) / 2.0 AS position,
               exp(avg(nll_nats)) AS perplexity, exp(min(nll_nats)) AS low, exp(max(nll_nats)) AS high,
               count(*) AS streams
        FROM attention_streaming WHERE run_id = ?
        GROUP BY policy, kept, cache, start, stop ORDER BY policy, kept, start
        """,
        (run_id,),
    )


def streaming_after_eviction(store: Store, run_id: str) -> pd.DataFrame:
    """Each stream's mean nats per token once the cache is full: stream, policy, kept, nll_nats."""
    return store.frame(
        """
        WITH cache AS (SELECT max(cache) AS size FROM attention_streaming WHERE run_id = ?)
        SELECT stream, policy, kept, sum(nll_nats * tokens) / sum(tokens) AS nll_nats
        FROM attention_streaming, cache
        WHERE run_id = ? AND start >= cache.size
        GROUP BY stream, policy, kept ORDER BY policy, kept, stream
        """,
        (run_id, run_id),
    )
