"""How the numbers of the attention page are computed: formulas, units, estimators, traps."""

from __future__ import annotations

from app.widgets.explain import Method
from precompute.studies.attention_sinks import STUDY

_PAPERS = {paper.key: paper for paper in STUDY.papers}

METHODS = (
    Method(
        "Importance of a key, and the sink rate",
        r"\alpha_k=\frac{1}{T-k}\sum_{q=k}^{T-1}A_{q,k}\qquad "
        r"\mathrm{Sink}_k^{\varepsilon}=\frac{1}{N\,L\,H}\sum_{n,\ell,h}\mathbf "
        r"1\{\alpha_k^{(n,\ell,h)}>\varepsilon\}",
        {
            "$A_{q,k}$": "attention weight of query position $q$ on key position $k$, a share",
            "$T$": "tokens in a chunk; positions count from 0, so the paper's $k=1$ is our $k=0$",
            "$N, L, H$": "chunks of text, layers, heads",
        },
        "Importances of all positions are stored, so ε is a slider and not another run. The sum has one "
        "term for each query from the key on; a model that sees both directions has $T$ of them for every "
        "key. A query whose window hides the key gives it nothing, and counts. The band of the importance "
        "curve runs from the 10th to the 90th percentile over chunks.",
        (
            "A causal model that attends evenly has $\\alpha_0=H_T/T$, not $1/T$: 7.41 % at $T=64$. ε = 0.3 "
            "is four times that.",
            "With a causal window of $W$ keys only the first $W$ queries can see token 0, so $\\alpha_0\\le "
            "W/T$; with one that looks $W$ tokens to each side, $(W+1)/T$. A layer whose ceiling is not "
            "above ε cannot show a sink, whatever it does: it is hatched "
            "and counts in neither way.",
            "The last keys are seen by few queries: the importance of the very last one is a single weight. "
            "The top key is therefore chosen among keys that at least 8 queries see, and the end of the "
            "curve is drawn faint.",
            "Sink rates at different $T$ do not compare: the same ε is stricter for a longer text. The "
            "reference measures at $T=64$.",
        ),
        "models.attention.metrics:importance",
        (_PAPERS["gu2025"],),
    ),
    Method(
        "First-token mass",
        r"m=\frac{1}{T-1}\sum_{q=1}^{T-1}A_{q,0}",
        {"$m$": "a share; unlike $\\alpha_0$ without the first query, which can see nothing but itself"},
        "Mean over chunks.",
        ("With a window of $W$ keys $m\\le (W-1)/(T-1)$.",),
        "models.attention.metrics:first_token_mass",
        (_PAPERS["xiao2024"],),
    ),
    Method(
        "Row entropy and effective keys",
        r"h_q=-\sum_k A_{q,k}\log_2 A_{q,k}\qquad n_{\mathrm{eff}}=\frac1T\sum_q 2^{h_q}",
        {"$h_q$": "bits; 0 on one key, $\\log_2 n$ when even over $n$ keys", "$n_{\\mathrm{eff}}$": "keys"},
        "Entropy is averaged over queries; effective keys is the mean of the powers, not the power of the "
        "mean.",
        ("An early query of a causal model sees few keys, so its entropy is small whatever it does.",),
        "models.attention.metrics:effective_keys",
    ),
    Method(
        "Inequality of keys, and the top key's share",
        r"G=\frac{\sum_{i=1}^{T}(2i-T-1)\,c_{(i)}}{T\sum_i c_i}\qquad \max_k \frac{c_k}{\sum_j c_j}\qquad "
        r"c_k=\sum_q A_{q,k}",
        {"$c_k$": "attention that key $k$ receives from all queries; $c_{(i)}$ sorted upwards"},
        "Computed per chunk, then averaged.",
        ("Even attention of a causal model is unequal already: early keys are seen by more queries.",),
        "models.attention.metrics:gini",
    ),
    Method(
        "Norms at the first token, and massive activations",
        r"\frac{\lVert k_0\rVert}{\frac{1}{T-1}\sum_{j>0}\lVert k_j\rVert}\qquad \max_{t,d}|x_{t,d}|",
        {
            "$k_j, v_j$": "key and value vectors of a head; rotary positions turn keys but keep their length",
            "$x_{t,d}$": "hidden state after a block, token $t$, dimension $d$",
        },
        "Heads that share a key-value head share these ratios: SmolLM2 has 9 query heads on 3 key-value "
        "heads.",
        (
            "The paper calls an activation massive above 100 and about 1,000 times the layer's median; "
            "smaller models may have the ratio without the size.",
        ),
        "models.attention.trace:_norm_ratio",
        (_PAPERS["sun2024"], _PAPERS["gu2025"]),
    ),
    Method(
        "What if the first token were another",
        r"\mathrm{Sink}_0^{\varepsilon}\ \text{of}\ (x_1,x_2,\dots),\quad (r,x_1,x_2,\dots)",
        {"$r$": "what stands in place of $x_0$: another token, or the start token"},
        "Each chunk is run again with its first token removed or replaced; the bar is from the 5th to the "
        "95th percentile over chunks. A head counts as sinking elsewhere when its strongest key, among "
        "those that at least 8 queries see, is not position 0 and exceeds ε.",
        ("Removing a token makes the chunk one shorter, which raises importances a little.",),
        "models.attention.interventions:measure",
        (_PAPERS["xiao2024"],),
    ),
    Method(
        "Perplexity in a stream",
        r"\mathrm{ppl}=\exp\Bigl(-\frac1n\sum_{t}\log p(x_t\mid \text{cache})\Bigr)",
        {"$n$": "predictions in a bin of stream positions"},
        "The cache holds the kept first tokens and the most recent keys, the query's own included; "
        "positions are those within the cache. The line is the geometric mean over streams, the band runs "
        "from the smallest to the largest stream.",
        (
            "Absolute positions in a cache that slides leave the range the model was trained on; that "
            "breaks it too, and is not the sink effect.",
            "Until the cache is full all lines are the same computation.",
        ),
        "models.attention.streaming:stream_nll",
        (_PAPERS["xiao2024"],),
    ),
)
