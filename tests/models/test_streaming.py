"""Streaming perplexity against a cache that is filled token by token."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from models.attention.streaming import DENSE, Policy, binned, stream_nll
from tests.models import oracle


def rotated(x: Tensor, position: Tensor, inverse: Tensor) -> Tensor:
    """Rotary embedding of `(…, d)` at `position (…)`, written out with complex numbers."""
    half = x.shape[-1] // 2
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(
        torch.ones(()), position[..., None].float() * inverse
    )
    return torch.cat([turned.real, turned.imag], dim=-1)


@torch.no_grad()
def token_by_token(model: Any, ids: Tensor, cache: int, kept: list[int]) -> np.ndarray:
    """Llama with an explicit cache of unrotated keys, one token after the other: `(len(kept), T-1)`.

    After each token the cache drops all but the first `s` and the most recent, and positions are
    the slots within it. Policies that differ in `s` are the batch.
    """
    base, config = model.model, model.config
    d, group = config.head_dim, config.num_attention_heads // config.num_key_value_heads
    caches: list[list[list[tuple[Tensor, Tensor]]]] = [[[] for _ in base.layers] for _ in kept]
    losses = []
    for i in range(len(ids) - 1):
        x = base.embed_tokens(ids[i]).expand(len(kept), -1)
        for number, layer in enumerate(base.layers):
            a, h = layer.self_attn, layer.input_layernorm(x)
            q, k, v = (f(h).view(len(kept), -1, d) for f in (a.q_proj, a.k_proj, a.v_proj))
            context = []
            for policy, s in enumerate(kept):
                held = caches[policy][number]
                held.append((k[policy], v[policy]))
                if len(held) > cache:
                    del held[s]
                slots = torch.arange(len(held))
                keys = rotated(torch.stack([x for x, _ in held]), slots[:, None], base.rotary_emb.inv_freq)
                values = torch.stack([x for _, x in held])
                query = rotated(q[policy], slots[-1:], base.rotary_emb.inv_freq)
                scores = torch.einsum("hd,nhd->hn", query, keys.repeat_interleave(group, 1)) / d**0.5
                context.append(
                    torch.einsum("hn,nhd->hd", scores.softmax(-1), values.repeat_interleave(group, 1))
                )
            x = x + a.o_proj(torch.stack(context).flatten(1))
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        logits = model.lm_head(base.norm(x))
        losses.append(nn.functional.cross_entropy(logits, ids[i + 1].expand(len(kept)), reduction="none"))
    return torch.stack(losses, 1).numpy()


def stream(length: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 100, (length,), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("length", "cache", "kept"), [(96, 32, [0, 1, 4]), (150, 16, [0, 15]), (140, 2, [1])]
)
def test_the_parallel_evaluation_is_the_token_by_token_one(length: int, cache: int, kept: list[int]) -> None:
    model, ids = oracle.tiny("llama"), stream(length)
    expected = token_by_token(model, ids, cache, kept)
    dense = stream_nll(model, ids, DENSE)
    for s, row in zip(kept, expected, strict=True):
        ours = stream_nll(model, ids, Policy(cache, s))
        np.testing.assert_allclose(ours, row, atol=1e-4)
        # The first `cache` queries see everything; later ones do not, and it shows.
        np.testing.assert_allclose(ours[:cache], dense[:cache], atol=1e-4)
        assert np.abs(ours[cache:] - dense[cache:]).max() > 0.1
    if len(kept) > 1:
        assert np.abs(expected[0] - expected[1]).max() > 0.1


def test_dense_is_the_models_own_loss() -> None:
    model, ids = oracle.tiny("llama"), stream(333)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        logits = model(ids[None]).logits[0, :-1]
    expected = nn.functional.cross_entropy(logits, ids[1:], reduction="none").numpy()
    np.testing.assert_allclose(stream_nll(model, ids, DENSE), expected, atol=1e-4)
    assert model.config._attn_implementation == "eager"


@pytest.mark.parametrize("policy", [Policy(332), Policy(332, 5), Policy(1000, 4), Policy(400, 399)])
def test_a_cache_as_long_as_the_stream_changes_nothing(policy: Policy) -> None:
    model, ids = oracle.tiny("llama"), stream(333)
    np.testing.assert_allclose(stream_nll(model, ids, policy), stream_nll(model, ids, DENSE), atol=1e-4)


def test_a_cache_of_one_key_forgets_everything() -> None:
    """Each token then sees itself alone, so the cost depends on the pair of tokens only."""
    model = oracle.tiny("llama")
    ids = torch.tensor([5, 9, 5, 9, 5, 9, 5])
    nll = stream_nll(model, ids, Policy(1))
    np.testing.assert_allclose(nll[0::2], nll[0], atol=1e-5)
    np.testing.assert_allclose(nll[1::2], nll[1], atol=1e-5)
    assert abs(nll[0] - nll[1]) > 1e-3


def test_two_tokens_have_one_prediction() -> None:
    assert stream_nll(oracle.tiny("llama"), stream(2), Policy(8, 4)).shape == (1,)


def test_progress_counts_layers_and_cancels() -> None:
    calls: list[tuple[int, int]] = []
    model = oracle.tiny("llama")
    stream_nll(model, stream(10), DENSE, progress=lambda *at: calls.append(at))
    assert calls == [(1, 3), (2, 3), (3, 3)]

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stream_nll(model, stream(10), DENSE, progress=stop)
    assert model.config._attn_implementation == "eager"


def test_bins_are_of_predicted_positions() -> None:
    nll = np.arange(1, 11, dtype=np.float32)  # the prediction of position p costs p
    assert binned(nll, 4) == [(1, 4, 3, 2.0), (4, 8, 4, 5.5), (8, 11, 3, 9.0)]


@pytest.mark.parametrize(("cache", "kept"), [(None, 1), (4, 4), (4, -1), (0, 0)])
def test_impossible_policies(cache: int | None, kept: int) -> None:
    with pytest.raises(ValueError, match="cache"):
        Policy(cache, kept)


def test_models_without_plain_rotary_positions_are_refused() -> None:
    with pytest.raises(ValueError, match="rotary"):
        stream_nll(oracle.tiny("bert"), stream(8), DENSE)
    with pytest.raises(ValueError, match="window of its own"):
        stream_nll(oracle.tiny("mistral"), stream(8), DENSE)
    with pytest.raises(ValueError, match="at least 2"):
        stream_nll(oracle.tiny("llama"), stream(1), DENSE)
