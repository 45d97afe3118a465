"""What the Krause paper claims, the criterion of each, fixed before measuring, and what measures it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from precompute.studies import krause_attention_measures as measures
from precompute.study import Claim, ClaimResult

if TYPE_CHECKING:
    from data.store import Store


def _claim(
    slug: str, text: str, reported: str, criterion: str, measure: Callable[[Store], ClaimResult]
) -> Claim:
    return Claim(slug, text, "liu2026", reported, criterion, measure)


CLAIMS = (
    _claim(
        "sink-beyond-window",
        "Krause attention weakens the sink beyond what its window hides.",
        "Sinks are moderated (abstract); the window's share of the effect is not separated.",
        "95 % interval of the paired difference in first-token mass lies below 0, the window hiding nothing",
        measures.sink_beyond_window,
    ),
    _claim(
        "score-alone",
        "The distance score by itself weakens the sink.",
        "Not reported; with the same support only the score differs.",
        "95 % interval of the paired difference in first-token mass, dense scores, lies below 0",
        measures.score_alone,
    ),
    _claim(
        "narrow-window",
        "With a narrow window no sink is measured.",
        "First-token attention falls (figures of the repository).",
        "true by construction when W/T lies below ε",
        measures.narrow_window,
    ),
    _claim(
        "language-model-sinks",
        "Language models trained from scratch with Krause attention have weaker sinks.",
        "Language models of 100M and 200M parameters, fourth version of the paper.",
        "softmax has a sink, and the 95 % interval of the paired difference lies below 0",
        measures.language_model_sinks,
    ),
    _claim(
        "language-model-loss",
        "A language model loses nothing by Krause attention.",
        "Comparable quality with windows and top-k.",
        "95 % interval of the paired difference in bits per byte lies below 0.02",
        measures.language_model_loss,
    ),
    _claim(
        "vision-accuracy",
        "Krause attention classifies images better than softmax in the same block.",
        "Fashion-MNIST, ViT-T: 94.65 against 93.47 % (different block layouts).",
        "95 % interval of the paired difference in test accuracy lies above 0",
        measures.vision_accuracy,
    ),
    _claim(
        "distance-adds",
        "The distance adds accuracy beyond neighbourhood and top-k.",
        "Not reported; there is no support-matched control.",
        "95 % interval of the paired difference in test accuracy lies above 0",
        measures.distance_adds,
    ),
    _claim(
        "fewer-pairs",
        "Krause attention scores fewer pairs.",
        "ViT-S: 0.97 against 1.43 GFLOP, counted.",
        "the count follows from the neighbourhood; the measured time is given beside it",
        measures.fewer_pairs,
    ),
    _claim(
        "bits-per-dimension",
        "Krause attention models images better than softmax.",
        "MNIST 0.5652 against 0.5685, CIFAR-10 3.0032 against 3.0224 bits per dimension.",
        "95 % interval of the paired difference in bits per dimension lies below 0",
        measures.bits_per_dimension,
    ),
    _claim(
        "generation-speed",
        "Krause attention generates images faster than softmax.",
        "MNIST 105.6 against 83.6 images per second.",
        "95 % interval of the ratio of speeds lies above 1",
        measures.generation_speed,
    ),
    _claim(
        "linear-scaling",
        "Cost grows linearly with the length instead of quadratically.",
        "O(N W d) instead of O(N² d) (abstract).",
        "the slope's 95 % interval lies below 1.15, and the dense one's above 1.5",
        measures.linear_scaling,
    ),
    _claim(
        "particles-cluster",
        "Bounded confidence keeps several clusters where softmax reaches consensus.",
        "Several stable clusters against one (theory and figure).",
        "more than one cluster for every start, and one under softmax at β = 1",
        measures.particles_cluster,
    ),
    _claim(
        "truncation-not-distance",
        "On the sphere a Gaussian distance alone changes nothing.",
        "Not reported; it follows from the row normalisation.",
        "trajectories agree to 1e-10",
        measures.truncation_not_distance,
    ),
    _claim(
        "adapted-first-token",
        "A Krause branch beside a pretrained model's attention lowers its first-token attention.",
        "Llama3-8B: 0.707 to 0.364 (figure of the repository).",
        "95 % interval of the ratio lies below 1, and the standard branch's own mass falls by over 5 %",
        measures.adapted_first_token,
    ),
    _claim(
        "adapted-perplexity",
        "The branch costs no quality.",
        "ANLI-R1 38.70 to 40.3–43.2 %.",
        "the 95 % interval of the perplexity ratio to the control reaches 1 or less",
        measures.adapted_perplexity,
    ),
)
