"""Tables of the Krause-attention study. The SQL over them is in krause_attention_queries.

Layers, heads, positions and steps count from 0; step 0 is the network before training. "Importance
of key 0" is the mean attention that the queries give the first token (Gu et al. 2025, section 3).
"""

from __future__ import annotations

from types import MappingProxyType

import pyarrow as pa

from data.schema import Column, TableSpec

_INT = pa.int32()
_F32 = pa.float32()
_LIST = pa.list_(_F32)
_STEP = Column("step", _INT, "updates", "Optimiser updates done before this was measured")
_LAYER = Column("layer", _INT, "index", "Transformer block, from 0 at the input")
_HEAD = Column("head", _INT, "index", "Head within the layer, from 0")
_SAMPLE = Column("sample", _INT, "index", "Which of the held-out chunks or images, from 0")

TRAINING = TableSpec(
    "krause_training",
    "Loss and accuracy of a network while it trains.",
    (
        _STEP,
        Column(
            "split",
            pa.string(),
            "",
            "train (mean since the last row), validation (held out), floor (the process that made the "
            "data), control (held out, the same training without a Krause branch)",
        ),
        Column("loss_nats", _F32, "nat/prediction", "Mean cross-entropy", tolerance=2e-2),
        Column(
            "accuracy", _F32, "share", "Share of predictions that are right", nullable=True, tolerance=2e-2
        ),
        Column("examples", _INT, "predictions", "Predictions averaged"),
        Column("seconds", _F32, "s", "Training time so far, measuring left out", tolerance=1e9),
    ),
    key=("step", "split"),
)

SINKS = TableSpec(
    "krause_sinks",
    "One head at one step of training: what it gives to the first key of held-out chunks.",
    (
        _STEP,
        _LAYER,
        _HEAD,
        Column("first_importance", _LIST, "share", "Importance of key 0, one value a chunk", tolerance=5e-2),
        Column(
            "first_mass", _F32, "share", "Mean attention on key 0 over queries 1 and later", tolerance=5e-2
        ),
        Column(
            "early_first_mass",
            _F32,
            "share",
            "The same over queries 1 to 15 alone, which every window here lets see key 0",
            tolerance=5e-2,
        ),
        Column(
            "oldest_mass",
            _F32,
            "share",
            "Mean attention on the oldest key a query may see, queries 1 and later",
            tolerance=5e-2,
        ),
        Column("null_mass", _F32, "share", "Mean attention on the null key", nullable=True, tolerance=5e-2),
        Column("effective_keys", _F32, "keys", "Mean of 2 to the power of the row entropy", tolerance=1.0),
        Column("gini", _F32, "ratio", "Inequality of the keys' column masses, 0 even to 1", tolerance=5e-2),
        Column("top_share", _F32, "share", "Largest share of all attention on one key", tolerance=5e-2),
        Column(
            "key_norm_ratio",
            _F32,
            "ratio",
            "Length of key 0 over the mean length of the others",
            tolerance=2e-1,
        ),
    ),
    key=("step", "layer", "head"),
)

PROFILES = TableSpec(
    "krause_profiles",
    "One head of the trained network, by query position and by distance, over held-out chunks.",
    (
        _LAYER,
        _HEAD,
        Column("first_by_query", _LIST, "share", "Mean attention of every query on key 0", tolerance=1e-1),
        Column(
            "distance_mass",
            _LIST,
            "share",
            "Attention by distance |query - key|: bins [0,1), [1,2), [2,4), [4,8), …",
            tolerance=5e-2,
        ),
    ),
    key=("layer", "head"),
)

LAYERS = TableSpec(
    "krause_layers",
    "The hidden states after a block, and the block's learned width of confidence.",
    (
        _STEP,
        _LAYER,
        Column("cosine", _F32, "cosine", "Mean cosine similarity of the tokens of a chunk", tolerance=5e-2),
        Column(
            "residual",
            _F32,
            "share",
            "Rank-collapse residual: norm of the states about their mean over their norm",
            tolerance=5e-2,
        ),
        Column(
            "sigma", _LIST, "vector length", "Sigma of every head; empty without distances", tolerance=1e-1
        ),
    ),
    key=("step", "layer"),
)

MAPS = TableSpec(
    "krause_maps",
    "Attention weights of the trained network on one chunk or image, packed.",
    (
        _SAMPLE,
        _LAYER,
        _HEAD,
        Column("rows", _INT, "queries", "Rows of the map"),
        Column("cols", _INT, "keys", "Columns of the map"),
        Column("codec", pa.string(), "", "How the weights are packed; see data.blobs"),
        Column("weights", pa.binary(), "share", "The packed weights", tolerance=1e-1),
    ),
    key=("sample", "layer", "head"),
)

TOKENS = TableSpec(
    "krause_tokens",
    "The characters of the chunks whose maps are kept.",
    (
        _SAMPLE,
        Column("position", _INT, "index", "Place in the chunk, from 0"),
        Column("token", pa.string(), "", "The byte as a character"),
    ),
    key=("sample", "position"),
)

IMAGES = TableSpec(
    "krause_images",
    "Pictures: test images that were classified, and images a network completed.",
    (
        Column("role", pa.string(), "", "classified, truth (of a completion) or completion"),
        Column("number", _INT, "index", "Which image, from 0; a completion has its truth's number"),
        Column("label", _INT, "index", "Class of Fashion-MNIST, from 0"),
        Column("predicted", _INT, "index", "Class the network answers; empty for completions", nullable=True),
        Column("probability", _F32, "share", "Of the answer", nullable=True, tolerance=1e-1),
        Column("given_rows", _INT, "rows", "Rows of pixels the network was given"),
        Column("height", _INT, "pixels", "Rows of the picture"),
        Column("width", _INT, "pixels", "Columns of the picture"),
        Column("pixels", pa.binary(), "grey level", "One byte a pixel, 0 to 255, row by row"),
    ),
    key=("role", "number"),
)

TEXTS = TableSpec(
    "krause_texts",
    "Text a trained network wrote on.",
    (
        Column("number", _INT, "index", "Which prompt, from 0"),
        Column("prompt", pa.string(), "", "What it was given"),
        Column("completion", pa.string(), "", "What it wrote, sampled at temperature 0.8"),
    ),
    key=("number",),
)

GENERATION = TableSpec(
    "krause_generation",
    "Time to generate one image, by the kind of memory that is kept between tokens.",
    (
        Column("memory", pa.string(), "", "full (all keys), ring (the last W keys) or state (linear)"),
        Column("repetition", _INT, "index", "Which repetition, from 0"),
        Column("tokens", _INT, "tokens", "Tokens generated"),
        Column("batch", _INT, "images", "Images generated side by side"),
        Column("seconds", _F32, "s", "Wall clock of the whole batch", tolerance=1e9),
        Column("memory_bytes", pa.int64(), "B", "Largest size of the kept keys and values, one image"),
    ),
    key=("memory", "repetition"),
)

RESULTS = TableSpec(
    "krause_results",
    "What came of one training: one row a run.",
    (
        Column("length", _INT, "tokens", "Tokens of a sequence"),
        Column("parameters", pa.int64(), "parameters", "Trained parameters"),
        Column("pairs", pa.int64(), "pairs", "Query-key pairs that are scored in one sequence and head"),
        Column("pairs_dense", pa.int64(), "pairs", "The same without a neighbourhood"),
        Column("pairs_kept", pa.int64(), "pairs", "Pairs with weight, after top-k, mean over layers"),
        Column("loss_nats", _F32, "nat/prediction", "Held-out cross-entropy at the end", tolerance=2e-2),
        Column("accuracy", _F32, "share", "Held-out accuracy at the end", tolerance=2e-2),
        Column("predictions", pa.int64(), "predictions", "Held-out predictions"),
        Column("train_seconds", _F32, "s", "Training time, measuring left out", tolerance=1e9),
        Column("updates", _INT, "updates", "Optimiser updates done"),
        Column("forward_ms", _F32, "ms", "Forward pass of one batch, median", tolerance=1e9),
        Column("batch", _INT, "sequences", "Sequences of that batch"),
        Column("checkpoint", pa.string(), "", "Name of the shipped checkpoint; empty if none"),
    ),
    key=("length",),
)

COST = TableSpec(
    "krause_cost",
    "Time and memory of one attention operator alone, on random queries, keys and values.",
    (
        Column("path", pa.string(), "", "dense, gathered, sdpa (fused kernel of the library) or linear"),
        Column("topk", _INT, "keys", "Keys kept; 0 keeps all of the window"),
        Column("length", _INT, "tokens", "Tokens of the sequence"),
        Column("direction", pa.string(), "", "forward, or forward+backward"),
        Column("repetition", _INT, "index", "Which repetition, from 0"),
        Column("seconds", _F32, "s", "Wall clock", tolerance=1e9),
        Column("peak_bytes", pa.int64(), "B", "Memory allocated at the peak, inputs left out", nullable=True),
    ),
    key=("path", "topk", "length", "direction", "repetition"),
)

ADAPTATION = TableSpec(
    "krause_adaptation",
    "Heads of a pretrained model beside which a Krause branch was trained.",
    (
        Column("stage", pa.string(), "", "base, gated (branch added, untrained), trained, or control"),
        _LAYER,
        _HEAD,
        Column("standard_first", _F32, "share", "First-token mass of the standard branch", tolerance=5e-2),
        Column(
            "krause_first",
            _F32,
            "share",
            "First-token mass of the Krause branch",
            nullable=True,
            tolerance=5e-2,
        ),
        Column(
            "mixed_first",
            _F32,
            "share",
            "First-token mass of what is added: both branches weighted by the gate",
            tolerance=5e-2,
        ),
        Column("gate", _F32, "share", "Mean weight of the Krause branch", nullable=True, tolerance=5e-2),
    ),
    key=("stage", "layer", "head"),
)

PARTICLES = TableSpec(
    "krause_particles",
    "Particles that attend to each other: clusters over time.",
    (
        Column("rule", pa.string(), "", "softmax, rbf, radius, topk (on the circle) or opinions (1-D)"),
        Column("parameter", pa.float64(), "of the rule", "beta, radius, k or epsilon: what the rule takes"),
        Column("start", _INT, "index", "Seed of the starting positions"),
        _STEP,
        Column("clusters", _INT, "clusters", "Groups of particles that touch"),
        Column(
            "order",
            _F32,
            "radius",
            "Length of the mean vector, 1 for consensus",
            nullable=True,
            tolerance=1e-3,
        ),
        Column(
            "difference",
            pa.float64(),
            "radius",
            "Largest distance to the same particle under softmax",
            nullable=True,
            tolerance=1e-6,
        ),
    ),
    key=("rule", "parameter", "start", "step"),
)

TABLES = MappingProxyType(
    {
        t.name: t
        for t in (
            TRAINING, SINKS, PROFILES, LAYERS, MAPS, TOKENS, IMAGES, TEXTS, GENERATION, RESULTS, COST,
            ADAPTATION, PARTICLES,
        )
    }
)  # fmt: skip
