"""How the numbers of the Krause page are computed: formulas, units, estimators, traps."""

from __future__ import annotations

from app.widgets.explain import Method
from precompute.studies.krause_attention import STUDY

_PAPERS = {paper.key: paper for paper in STUDY.papers}

METHODS = (
    Method(
        "Krause attention",
        r"\begin{aligned}a_{ij}&=\frac{e^{-\lVert q_i-k_j\rVert^2/2\sigma^2}}"
        r"{\sum_{l\in\xi_i}e^{-\lVert q_i-k_l\rVert^2/2\sigma^2}}\\"
        r"&=\operatorname{softmax}_{j\in\xi_i}"
        r"\frac{q_i\cdot k_j-\lVert k_j\rVert^2/2}{\sigma^2}\end{aligned}",
        {
            r"$q_i, k_j$": "query and key vectors of a head",
            r"$\sigma$": "the learned width of confidence, one per head here",
            r"$\xi_i$": "the $k$ nearest keys of the neighbourhood $N_i$; equal ones go to the smaller index",
        },
        "What depends on the query alone cancels in the row's sum. So on the same keys Krause attention is "
        "dot-product attention with a penalty on long keys, and with keys of equal length it is dot-product "
        "attention. What remains new is the neighbourhood, the top-k, and that penalty; the controls take "
        "these one at a time.",
        (
            "Affinities must never be exponentiated as they stand: a squared distance of 1,000 at σ = 1 is "
            "exactly 0 in single precision, and the row 0/0.",
            "A threshold top-k keeps more than k keys when keys tie; here it is exactly k.",
            "The top-k is piecewise constant: a key outside it gets no gradient.",
        ),
        "models.attention.krause:dense_attention",
        (_PAPERS["liu2026"],),
    ),
    Method(
        "The gathered path",
        r"\text{time, memory}\in O(N\,W\,d)",
        {"$N$": "tokens", "$W$": "keys of the window", "$d$": "dimensions of a head"},
        "Queries are taken in blocks of at most 64, each with the W keys before it, so nothing of size N × "
        "N or "
        "N × 2W is held. It agrees with the dense path to 1e-6 in value and, relative to its size, in "
        "gradient. Memory counts the live tensors that the operator allocates, its inputs left out; what a "
        "fused kernel takes inside itself is not seen, which flatters SDPA by up to a quarter backward. "
        "Slopes are least squares on log time against log length, through the medians of repetitions, with "
        "a bootstrap interval.",
        (
            "Counting only the admitted pairs of a dense score matrix saves no time: the matrix is still "
            "computed.",
            "At 50 tokens of a small image one dense product is quicker than gathering six keys a query; the "
            "gathered path is for long sequences.",
        ),
        "models.attention.bands:banded_attention",
    ),
    Method(
        "Ceilings of a window",
        r"\alpha_0\le\frac{W}{T}\qquad m\le\frac{W-1}{T-1}",
        {
            r"$\alpha_0$": "importance of the first token: its mean attention over the queries that may "
            "see it",
            "$m$": "first-token mass: mean attention over queries 1 to T−1",
            "$W, T$": "window and sequence in tokens",
        },
        "Only the first W queries can see the first token. A sink rate at ε is 0 by construction when W/T "
        "lies "
        "below ε. The fair metrics here are the mass over queries 1 to 15, which every window lets see the "
        "first token, and a window as long as the sequence, which hides nothing.",
        (),
        "models.attention.metrics:window_mass_ceiling",
        (_PAPERS["gu2025"],),
    ),
    Method(
        "The back-copy task",
        r"x_{t+1}=\begin{cases}x_{t-1}&x_t\in\{t,e,i\}\\ \sim P(\cdot\mid x_t)&\text{else}\end{cases}",
        {r"$P$": "bigram table of the King James text"},
        "One layer, one head. After a trigger the head has to look two tokens back; elsewhere it has "
        "nothing to "
        "add, and that is where a sink forms within some hundred updates. The floor is the cross-entropy of "
        "the process itself. Every network starts with the same token.",
        (
            "It is a model of how sinks come about, not a language model: the byte language model beside "
            "it has "
            "no sink at its size.",
        ),
        "models.attention.backcopy:BackCopy",
        (_PAPERS["guo2024"],),
    ),
    Method(
        "The same block for all",
        "",
        {},
        "Pre-norm blocks; attention is all that differs between networks of one seed, which start from the "
        "same "
        "weights and see the same batches. Differences are paired by seed; intervals are Student's t, "
        "because "
        "seeds are few. The authors compare a post-norm Krause block with a pre-norm softmax block.",
        (),
        "models.attention.networks:Attention",
        (_PAPERS["liu2026"],),
    ),
    Method(
        "Bits per dimension",
        r"\mathrm{bpd}=-\frac{1}{784\ln 2}\sum_t\ln p(x_t\mid x_{<t})",
        {},
        "Pixels in 17 grey levels, row by row, behind a start token, so that the first pixel is predicted "
        "too. "
        "Held-out images only.",
        ("The reported figures are for 256 grey levels and leave the first pixel out; they do not compare.",),
        "precompute.runs.krause_measuring:held_out",
    ),
    Method(
        "A Krause branch beside a pretrained attention",
        r"y=g\,y_K+(1-g)\,y_S\qquad g=\operatorname{softmax}(W[y_S;y_K]+b)_2",
        {"$g$": "gate of a token, 0.2 at the start", "$y_K, y_S$": "outputs of the two branches"},
        "Low-rank updates of the queries, keys and values of both branches, the gate and σ are trained on "
        "text; "
        "everything else is frozen. The control has the same updates and no branch.",
        (
            "Attention handed to a branch whose window hides the first token lowers the first token's "
            "share by "
            "construction; whether the standard branch gives up its sink is another question.",
        ),
        "models.attention.gated:GatedAttention",
        (_PAPERS["liu2026"],),
    ),
    Method(
        "Particles",
        r"x_i\leftarrow\frac{x_i+\eta P_{x_i}\sum_j a_{ij}x_j}{\lVert\cdot\rVert}",
        {r"$P_{x}$": "projection on the tangent space at $x$", r"$\eta$": "step, 0.1"},
        "Clusters are groups of particles linked by steps of less than 0.05.",
        (
            "On the sphere all vectors have the same length, so a Gaussian kernel over everyone is softmax "
            "exactly: only the truncation makes clusters that last.",
        ),
        "models.attention.particles:step",
        (_PAPERS["liu2026"],),
    ),
)
