"""What the claims of the Krause study are measured from: one row a run, or a few, with its setting."""

from __future__ import annotations

import pandas as pd

from data.store import Store

# The setting of a run, out of its configuration; NULL where the task has no such part.
SETTING = """
    run_id, subject, seed,
    json_extract_string(config, '$.recipe.network.mechanism') AS mechanism,
    CAST(json_extract_string(config, '$.recipe.network.window') AS INTEGER) AS "window",
    CAST(json_extract_string(config, '$.recipe.network.topk') AS INTEGER) AS topk,
    json_extract_string(config, '$.recipe.network.sigma') AS sigma,
    json_extract_string(config, '$.recipe.data') AS data
"""
RUNS = f"(SELECT {SETTING} FROM runs WHERE study = 'krause_attention' AND status = 'done')"


def outcomes(store: Store, subject: str) -> pd.DataFrame:
    """The results row of every training of `subject`, with its setting and seed."""
    return store.frame(
        f"SELECT * FROM {RUNS} JOIN krause_results USING (run_id) WHERE subject = ? ORDER BY mechanism, seed",
        (subject,),
    )


def final_sinks(store: Store, subject: str, eps: float) -> pd.DataFrame:
    """Sink metrics at the end of every training of `subject`, mean over layers and heads.

    Columns: the setting, first_mass, early_first_mass, oldest_mass, null_mass, most (largest
    first_mass of a head), sink_rate (share of heads and chunks whose importance of key 0 exceeds eps).
    """
    return store.frame(
        f"""
        WITH ends AS (SELECT run_id, max(step) AS step FROM krause_sinks GROUP BY run_id)
        SELECT {SETTING}, avg(first_mass) AS first_mass, avg(early_first_mass) AS early_first_mass,
               avg(oldest_mass) AS oldest_mass, avg(null_mass) AS null_mass, max(first_mass) AS most,
               avg(key_norm_ratio) AS key_norm_ratio,
               avg(len(list_filter(first_importance, lambda x: x > ?)) / len(first_importance)) AS sink_rate
        FROM krause_sinks JOIN ends USING (run_id, step) JOIN runs USING (run_id)
        WHERE subject = ? AND status = 'done' GROUP BY ALL ORDER BY mechanism, seed
        """,
        (eps, subject),
    )


def operator_times(store: Store, direction: str) -> pd.DataFrame:
    """Every timing of the operators in one direction: run_id, path, topk, length, repetition, seconds,
    peak_bytes. Only of the runs with the longest sequences."""
    return store.frame(
        """
        WITH longest AS (
            SELECT path, topk, arg_max(run_id, length) AS run_id FROM krause_cost GROUP BY path, topk
        )
        SELECT krause_cost.* EXCLUDE (direction) FROM krause_cost JOIN longest USING (path, topk, run_id)
        WHERE direction = ? ORDER BY path, topk, length, repetition
        """,
        (direction,),
    )


def generation(store: Store, subject: str) -> pd.DataFrame:
    """Every timing of generation: setting, memory, repetition, tokens, batch, seconds, memory_bytes."""
    return store.frame(
        f"SELECT * FROM {RUNS} JOIN krause_generation USING (run_id) WHERE subject = ? "
        "ORDER BY mechanism, memory, repetition",
        (subject,),
    )


def particle_ends(store: Store) -> pd.DataFrame:
    """The last recorded step of every start: run_id, rule, parameter, start, step, clusters, order,
    and difference, the largest distance to softmax over all steps."""
    return store.frame(
        """
        SELECT run_id, rule, parameter, start, max(step) AS step, arg_max(clusters, step) AS clusters,
               arg_max("order", step) AS "order", max(difference) AS difference
        FROM krause_particles GROUP BY ALL ORDER BY rule, parameter, start
        """
    )


def adapted(store: Store) -> pd.DataFrame:
    """First-token mass and gate by run, stage and layer (mean over heads) of the adapted model."""
    return store.frame(
        """
        SELECT run_id, seed, stage, layer, avg(standard_first) AS standard_first,
               avg(krause_first) AS krause_first, avg(mixed_first) AS mixed_first, avg(gate) AS gate
        FROM krause_adaptation JOIN runs USING (run_id) WHERE status = 'done'
        GROUP BY ALL ORDER BY seed, stage, layer
        """
    )


def adapted_losses(store: Store) -> pd.DataFrame:
    """Held-out loss of the adapted model: run_id, seed, step, split (validation or control), loss_nats."""
    return store.frame(
        """
        SELECT run_id, seed, step, split, loss_nats FROM krause_training JOIN runs USING (run_id)
        WHERE status = 'done' AND json_extract_string(config, '$.task') = 'adapt'
          AND split IN ('validation', 'control') ORDER BY seed, split, step
        """
    )
