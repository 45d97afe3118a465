"""Tables of the attention-sink study. The SQL over them is in attention_sinks_queries.

Layers, heads and positions count from 0. "Importance of key k" is the mean attention that key k gets
from the queries at and after it, or from all where a model looks both ways (Gu et al. 2025, section 3);
a query whose window hides the key gives it nothing, and counts. The first token is key 0 here.
"""

from __future__ import annotations

from types import MappingProxyType

import pyarrow as pa

from data.schema import Column, TableSpec

_INT = pa.int32()
_F32 = pa.float32()
_RUN_SAMPLE = Column("sample", _INT, "index", "Which of the run's consecutive token chunks, from 0")
_LAYER = Column("layer", _INT, "index", "Transformer block, from 0 at the input")
_HEAD = Column("head", _INT, "index", "Query head within the layer, from 0")

TOKENS = TableSpec(
    "attention_tokens",
    "The tokens a run looked at, one row per position.",
    (
        _RUN_SAMPLE,
        Column("position", _INT, "index", "Place in the chunk, from 0"),
        Column("token_id", _INT, "id", "Vocabulary id"),
        Column("token", pa.string(), "", "The token as text, whitespace kept"),
        Column(
            "kind",
            pa.string(),
            "",
            "special, newline, punctuation, number, space, word or other; the first position is position 0, whatever its kind",
        ),
    ),
    key=("sample", "position"),
)

HEADS = TableSpec(
    "attention_heads",
    "One attention head on one chunk: where its attention goes, reduced while it was computed.",
    (
        _RUN_SAMPLE,
        _LAYER,
        _HEAD,
        Column(
            "importance",
            pa.list_(_F32),
            "share",
            "Importance of every key position: mean attention from the queries at and after it (all, where a "
            "model looks both ways); rounded to 2⁻¹⁴",
        ),
        Column("first_token_mass", _F32, "share", "Mean attention on position 0 over queries 1..T-1"),
        Column("row_entropy_bits", _F32, "bit", "Mean Shannon entropy of a query's attention"),
        Column("effective_keys", _F32, "keys", "Mean over queries of 2 to the power of the row entropy"),
        Column(
            "column_gini",
            _F32,
            "0..1",
            "Gini coefficient of the attention received by the key positions (0 even, 1 all on one)",
        ),
        Column(
            "top_key",
            _INT,
            "index",
            "Key position of the largest importance among positions seen by at least 8 queries",
        ),
        Column("top_key_importance", _F32, "share", "Importance of that position"),
        Column(
            "top_key_share",
            _F32,
            "share",
            "Largest share of all attention mass received by a single key position",
        ),
        Column(
            "mean_distance",
            _F32,
            "tokens",
            "Attention-weighted mean of |query position - key position|",
            tolerance=1e-2,
        ),
        Column(
            "distance_mass",
            pa.list_(_F32),
            "share",
            "Attention by distance: bins 0, 1, 2-3, 4-7, 8-15, … tokens; sums to 1",
        ),
        Column(
            "key_norm_ratio",
            _F32,
            "ratio",
            "Norm of the key vector at position 0 over the mean norm at the other positions",
            tolerance=1e-2,
        ),
        Column(
            "value_norm_ratio",
            _F32,
            "ratio",
            "Norm of the value vector at position 0 over the mean norm at the other positions",
            tolerance=1e-2,
        ),
    ),
    key=("sample", "layer", "head"),
)

LAYERS = TableSpec(
    "attention_layers",
    "Hidden states after each block: massive activations (Sun et al. 2024).",
    (
        _RUN_SAMPLE,
        Column("layer", _INT, "index", "Block whose output this is, from 0; -1 is the embedding"),
        Column("max_abs", _F32, "activation", "Largest absolute hidden activation", tolerance=0.5),
        Column("max_position", _INT, "index", "Token position where it is"),
        Column("max_dimension", _INT, "index", "Hidden dimension where it is"),
        Column(
            "median_abs", _F32, "activation", "Median absolute hidden activation of the layer", tolerance=1e-3
        ),
        Column(
            "first_token_norm",
            _F32,
            "activation",
            "Euclidean norm of the hidden state at position 0",
            tolerance=0.5,
        ),
        Column("other_norm", _F32, "activation", "Mean Euclidean norm at the other positions", tolerance=0.5),
    ),
    key=("sample", "layer"),
)

MAPS = TableSpec(
    "attention_maps",
    "Full attention maps of the run's first chunk, one row per head.",
    (
        _RUN_SAMPLE,
        _LAYER,
        _HEAD,
        Column("rows", _INT, "queries", "Number of query positions"),
        Column("cols", _INT, "keys", "Number of key positions"),
        Column("codec", pa.string(), "", "How `weights` is packed; see data.blobs"),
        Column(
            "weights",
            pa.binary(),
            "share",
            "Attention weights, query by key, each row sums to 1 up to the codec's precision",
            tolerance=2e-3,
        ),
    ),
    key=("sample", "layer", "head"),
)

INTERVENTIONS = TableSpec(
    "attention_interventions",
    "What becomes of the sink when the first token is taken away or replaced.",
    (
        _RUN_SAMPLE,
        Column(
            "variant", pa.string(), "", "original, removed, or replaced: NAME of what stands first instead"
        ),
        Column("first_token", pa.string(), "", "The token that stands at position 0 in this variant"),
        _LAYER,
        _HEAD,
        Column("first_importance", _F32, "share", "Importance of position 0"),
        Column("second_importance", _F32, "share", "Importance of position 1"),
        Column(
            "top_key",
            _INT,
            "index",
            "Key position of the largest importance among positions seen by at least 8 queries",
        ),
        Column("top_key_importance", _F32, "share", "Importance of that position"),
        Column("top_token", pa.string(), "", "The token at that position"),
    ),
    key=("sample", "variant", "layer", "head"),
)

STREAMING = TableSpec(
    "attention_streaming",
    "Perplexity against stream position when the key-value cache only holds a window (Xiao et al. 2024).",
    (
        Column("stream", _INT, "index", "Which disjoint passage of the text, from 0"),
        Column("policy", pa.string(), "", "dense (full cache) or window (sliding cache)"),
        Column("kept", _INT, "tokens", "How many first tokens the sliding cache always keeps; 0 for dense"),
        Column(
            "cache", _INT, "tokens", "Keys in the cache, kept ones and the query's own included; 0 for dense"
        ),
        Column("start", _INT, "index", "First predicted stream position of this bin"),
        Column("stop", _INT, "index", "One past the last predicted stream position of this bin"),
        Column("tokens", _INT, "tokens", "Predictions in the bin"),
        Column(
            "nll_nats",
            _F32,
            "nat/token",
            "Mean negative log-likelihood of the bin; perplexity is its exponential",
            tolerance=1e-2,
        ),
    ),
    key=("stream", "policy", "kept", "start"),
)

MODELS = TableSpec(
    "attention_models",
    "What was looked at: one row a run.",
    (
        Column("name", pa.string(), "", "What the model is called: a title, or the file that was brought"),
        Column("format", pa.string(), "", "What its weights were read from"),
        Column("architecture", pa.string(), "", "The model's class, as its configuration names it"),
        Column("family", pa.string(), "", "The kind of architecture: llama, bert, vit, …"),
        Column("layers", _INT, "layers", "Layers whose attention was looked at"),
        Column("heads", _INT, "heads", "Query heads in each layer (the most, where layers differ)"),
        Column("kv_heads", _INT, "heads", "Key-value heads in each layer"),
        Column(
            "parameters", pa.int64(), "parameters", "Parameters of the model; 0 where only maps were brought"
        ),
        Column("vocabulary", _INT, "tokens", "Ids the model can embed; null without text", nullable=True),
        Column(
            "max_positions", _INT, "tokens", "Tokens it can read at once; null if not limited", nullable=True
        ),
        Column("dtype", pa.string(), "", "The stored weights' most frequent type"),
        Column("tokenizer", pa.string(), "", "How text became tokens"),
    ),
    key=(),
)

WINDOWS = TableSpec(
    "attention_windows",
    "What the queries of a layer can see of the run's first chunk: where a sink is possible at all.",
    (
        _LAYER,
        Column("causal", pa.bool_(), "", "No query sees a key after itself"),
        Column(
            "window",
            _INT,
            "tokens",
            "Most queries that see one key, if fewer than all; null if all do",
            nullable=True,
        ),
        Column(
            "first_seen",
            _F32,
            "share",
            "Share of queries 1..T-1 that can see position 0: the most its first-token mass can be",
        ),
        Column(
            "importance_ceiling",
            _F32,
            "share",
            "The most the importance of position 0 can be: share of all queries that can see it",
        ),
    ),
    key=("layer",),
)

TABLES = MappingProxyType(
    {t.name: t for t in (TOKENS, HEADS, LAYERS, MAPS, INTERVENTIONS, STREAMING, MODELS, WINDOWS)}
)
