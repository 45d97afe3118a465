"""Krause attention: exact identities, supports, hand examples, gathered paths against the dense one."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from models.attention.krause import (
    dense_attention,
    extended,
    grid_attention,
    linear_attention,
    linear_attention_chunked,
    window_attention,
)
from models.attention.support import Grid, Window
from models.attention.topk import keep_largest

T = torch.Tensor
LENGTH, D = 21, 6


def qkv(dtype: torch.dtype = torch.float64, length: int = LENGTH, seed: int = 0) -> tuple[T, T, T]:
    generator = torch.Generator().manual_seed(seed)
    q, k, v = torch.randn(3, 2, 3, length, D, generator=generator, dtype=torch.float64).to(dtype)
    return q, k, v


def causal(width: int | None = None, length: int = LENGTH) -> T:
    return torch.from_numpy(Window(width).valid(length))


def everything(length: int = LENGTH) -> T:
    return torch.ones(length, length, dtype=torch.bool)


SIGMA2 = torch.tensor([0.7, 1.3, 2.9], dtype=torch.float64)[:, None, None]


def test_dense_krause_is_softmax_with_a_key_norm_penalty() -> None:
    """softmax_j((q.k - |k|^2/2) / sigma^2), atol 1e-10 in float64."""
    q, k, v = qkv()
    _, weights = dense_attention(q, k, v, everything(), sigma2=SIGMA2)
    scores = (q @ k.transpose(-1, -2) - k.square().sum(-1)[..., None, :] / 2) / SIGMA2
    torch.testing.assert_close(weights, scores.softmax(-1), rtol=0, atol=1e-10)


def test_the_scores_are_gaussian_affinities() -> None:
    """The definition itself: exp(-|q-k|^2 / (2 sigma^2)) over its row sum."""
    q, k, v = qkv()
    _, weights = dense_attention(q, k, v, everything(), sigma2=SIGMA2)
    affinity = torch.exp(-(torch.cdist(q, k) ** 2) / (2 * SIGMA2))
    torch.testing.assert_close(weights, affinity / affinity.sum(-1, keepdim=True), rtol=0, atol=1e-10)


def test_without_sigma_it_is_scaled_dot_product_attention() -> None:
    q, k, v = qkv()
    out, _ = dense_attention(q, k, v, causal())
    torch.testing.assert_close(
        out, F.scaled_dot_product_attention(q, k, v, is_causal=True), rtol=0, atol=1e-12
    )


def test_a_common_shift_of_queries_and_keys_changes_distances_nowhere() -> None:
    q, k, v = qkv()
    shift = torch.randn(D, dtype=torch.float64)
    _, before = dense_attention(q, k, v, causal(), sigma2=SIGMA2, topk=4)
    _, after = dense_attention(q + shift, k + shift, v, causal(), sigma2=SIGMA2, topk=4)
    torch.testing.assert_close(after, before, rtol=0, atol=1e-10)
    _, dot = dense_attention(q, k, v, causal())
    _, moved = dense_attention(q + shift, k + shift, v, causal())
    assert (dot - moved).abs().max() > 0.05  # dot products do change


def test_an_orthogonal_transform_and_a_common_scale_change_nothing() -> None:
    q, k, v = qkv()
    turn, _ = torch.linalg.qr(torch.randn(D, D, dtype=torch.float64))
    _, before = dense_attention(q, k, v, causal(), sigma2=SIGMA2)
    _, turned = dense_attention(q @ turn, k @ turn, v, causal(), sigma2=SIGMA2)
    _, scaled = dense_attention(3 * q, 3 * k, v, causal(), sigma2=9 * SIGMA2)
    torch.testing.assert_close(turned, before, rtol=0, atol=1e-10)
    torch.testing.assert_close(scaled, before, rtol=0, atol=1e-10)


@settings(max_examples=40, deadline=None)
@given(width=st.integers(1, 30), topk=st.integers(1, 30), distance=st.booleans(), seed=st.integers(0, 99))
def test_rows_sum_to_one_on_at_most_topk_keys_of_the_window(
    width: int, topk: int, distance: bool, seed: int
) -> None:
    q, k, v = qkv(seed=seed)
    _, a = dense_attention(q, k, v, causal(width), sigma2=SIGMA2 if distance else None, topk=topk)
    torch.testing.assert_close(a.sum(-1), torch.ones_like(a.sum(-1)))
    visible = causal(width).sum(-1)
    torch.testing.assert_close((a > 0).sum(-1), visible.clamp(max=topk).expand(2, 3, -1))
    assert (a[..., ~causal(width)] == 0).all()


def test_a_hand_example() -> None:
    """1-D, q = 0, keys (0, 1, 3), sigma = 1, k = 2: (1, e^-1/2) / (1 + e^-1/2) = (0.62246, 0.37754, 0)."""
    q = torch.zeros(1, 1, 1, 1, dtype=torch.float64)
    k = torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64).reshape(1, 1, 3, 1)
    mask = torch.ones(1, 3, dtype=torch.bool)
    _, a = dense_attention(q, k, k, mask, sigma2=torch.tensor(1.0), topk=2)
    torch.testing.assert_close(
        a.flatten(), torch.tensor([0.62246, 0.37754, 0.0], dtype=torch.float64), rtol=0, atol=5e-6
    )


def test_large_distances_do_not_underflow() -> None:
    """Distances squared of 10^3 at sigma 1 give affinities of 1e-218, exactly 0 in float32."""
    q, k, v = qkv(torch.float32)
    out, a = dense_attention(q + 40, k - 40, v, causal(), sigma2=torch.tensor(1.0))
    assert torch.isfinite(out).all()
    torch.testing.assert_close(a.sum(-1), torch.ones_like(a.sum(-1)))


# --- edges ---------------------------------------------------------------------------------------


def test_one_kept_key_is_the_nearest_and_has_no_gradient_in_sigma() -> None:
    q, k, v = qkv()
    log_sigma = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    out, a = dense_attention(q, k, v, causal(), sigma2=torch.exp(2 * log_sigma), topk=1)
    nearest = torch.cdist(q, k).masked_fill(~causal(), math.inf).argmin(-1)
    assert (a.argmax(-1) == nearest).all() and ((a == 0) | (a == 1)).all()
    out.square().sum().backward()
    assert log_sigma.grad is not None and float(log_sigma.grad.abs()) < 1e-12


def test_a_window_of_one_is_the_identity_on_values() -> None:
    q, k, v = qkv()
    torch.testing.assert_close(window_attention(q, k, v, 1, sigma2=SIGMA2), v, rtol=0, atol=1e-12)


def test_one_token_attends_to_itself() -> None:
    q, k, v = qkv(length=1)
    torch.testing.assert_close(window_attention(q, k, v, 8, sigma2=SIGMA2, topk=3), v, rtol=0, atol=1e-12)


def test_a_wide_sigma_is_uniform_over_the_kept_keys_and_a_narrow_one_takes_the_nearest() -> None:
    q, k, v = qkv()
    _, wide = dense_attention(q, k, v, causal(), sigma2=torch.tensor(1e12), topk=4)
    kept = (wide > 0).sum(-1, keepdim=True)
    torch.testing.assert_close(wide.amax(-1, keepdim=True), 1 / kept, rtol=0, atol=1e-6, check_dtype=False)
    _, narrow = dense_attention(q, k, v, causal(), sigma2=torch.tensor(1e-6))
    _, nearest = dense_attention(q, k, v, causal(), sigma2=torch.tensor(1.0), topk=1)
    torch.testing.assert_close(narrow, nearest, rtol=0, atol=1e-6)


def test_ties_go_to_the_smaller_index_and_never_exceed_topk() -> None:
    scores = torch.tensor([[1.0, 2.0, 2.0, 2.0, 0.0], [3.0, 3.0, 3.0, 3.0, 3.0]])
    kept = keep_largest(scores, 2)
    assert torch.isfinite(kept).tolist() == [
        [False, True, True, False, False],
        [True, True, False, False, False],
    ]


def test_fewer_visible_keys_than_topk_keeps_those() -> None:
    scores = torch.tensor([[1.0, -math.inf, -math.inf, 0.0]])
    assert torch.equal(keep_largest(scores, 3), scores)
    with pytest.raises(ValueError, match="at least one"):
        keep_largest(scores, 0)


def test_a_dropped_key_gets_no_gradient() -> None:
    q, k, v = qkv()
    k, v = k.requires_grad_(), v.requires_grad_()
    out, a = dense_attention(q, k, v, causal(), sigma2=SIGMA2, topk=2)
    out[:, :, -1].sum().backward()
    dropped = a[:, :, -1] == 0
    assert k.grad is not None and v.grad is not None
    assert (k.grad[dropped] == 0).all() and (v.grad[dropped] == 0).all()
    assert (v.grad[~dropped] != 0).all()


def test_a_null_key_takes_attention_from_the_others() -> None:
    q, k, v = qkv()
    null = torch.randn(3, D, dtype=torch.float64)
    out, a = dense_attention(q, k, v, causal(), null=null)
    extra = (q * null[:, None]).sum(-1, keepdim=True) / math.sqrt(D)
    _, plain = dense_attention(q, k, v, causal())
    scores = (q @ k.transpose(-1, -2) / math.sqrt(D)).masked_fill(~causal(), -math.inf)
    share = 1 / (1 + torch.exp(extra - scores.logsumexp(-1, keepdim=True)))
    torch.testing.assert_close(a, plain * share, rtol=0, atol=1e-12)
    torch.testing.assert_close(out, a @ v, rtol=0, atol=1e-12)


def test_the_control_has_exactly_the_size_of_the_support() -> None:
    q, k, v = qkv()
    _, krause = dense_attention(q, k, v, causal(7), sigma2=SIGMA2, topk=3)
    _, control = dense_attention(q, k, v, causal(7), topk=3)
    torch.testing.assert_close((krause > 0).sum(-1), (control > 0).sum(-1))


def test_the_control_on_a_grid_keeps_as_many_keys_or_all_there_are() -> None:
    """A corner of 4 x 4 with Manhattan distance 1 sees four keys, fewer than five."""
    grid = Grid(4, 4)
    valid = torch.from_numpy(grid.valid())
    q, k, v = qkv(length=grid.length)
    for sigma2 in (SIGMA2, None):
        _, a = dense_attention(q, k, v, valid, sigma2=sigma2, topk=5)
        torch.testing.assert_close((a > 0).sum(-1), valid.sum(-1).clamp(max=5).expand(2, 3, -1))
    assert int(valid[1].sum()) == 4


def test_linear_attention_against_its_definition() -> None:
    q, k, v = qkv()
    out, weights = linear_attention(q, k, v, causal=True)
    a, b = F.elu(q) + 1, F.elu(k) + 1
    for i in range(LENGTH):
        mass = (a[:, :, i : i + 1] * b[:, :, : i + 1]).sum(-1)
        expected = (mass[..., None] * v[:, :, : i + 1]).sum(2) / mass.sum(-1, keepdim=True)
        torch.testing.assert_close(out[:, :, i], expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights.sum(-1)))


# --- gathered against dense ------------------------------------------------------------------------


@pytest.mark.parametrize("topk", [None, 1, 3, 8, 100])
@pytest.mark.parametrize("width", [1, 2, 5, 8, 21, 50])
@pytest.mark.parametrize("distance", [True, False])
def test_the_gathered_window_is_the_dense_one(width: int, topk: int | None, distance: bool) -> None:
    sigma2 = SIGMA2 if distance else None
    for dtype, atol in ((torch.float64, 1e-12), (torch.float32, 1e-6)):
        scale = None if sigma2 is None else sigma2.to(dtype)
        q, k, v = (t.requires_grad_() for t in qkv(dtype))
        dense, _ = dense_attention(q, k, v, causal(width), sigma2=scale, topk=topk)
        expected = torch.autograd.grad(dense.square().sum(), (q, k, v))
        gathered = window_attention(q, k, v, width, sigma2=scale, topk=topk)
        found = torch.autograd.grad(gathered.square().sum(), (q, k, v))
        torch.testing.assert_close(gathered, dense, rtol=0, atol=atol)
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=20 * atol)


def one_query_at_a_time(q: T, k: T, v: T, width: int, sigma2: T | None, topk: int | None) -> T:
    """The definition as it stands: distances, a stable sort, exponentials, for each query by itself."""
    out = torch.zeros_like(v)
    for batch, head, i in itertools.product(*map(range, q.shape[:3])):
        seen = list(range(max(0, i - width + 1), i + 1))
        query, keys = q[batch, head, i], k[batch, head, seen]
        if sigma2 is None:
            scores = (keys @ query / math.sqrt(D)).tolist()
        else:
            scores = (-(keys - query).square().sum(-1) / (2 * float(sigma2[head]))).tolist()
        nearest = sorted(range(len(seen)), key=lambda j: (-scores[j], j))[:topk]
        mass = [math.exp(scores[j] - scores[nearest[0]]) for j in nearest]
        for j, share in zip(nearest, mass, strict=True):
            out[batch, head, i] += share / sum(mass) * v[batch, head, seen[j]]
    return out


@settings(max_examples=30, deadline=None)
@given(
    length=st.integers(1, 24),
    width=st.integers(1, 30),
    topk=st.none() | st.integers(1, 30),
    distance=st.booleans(),
    seed=st.integers(0, 99),
)
def test_the_gathered_window_is_the_definition(
    length: int, width: int, topk: int | None, distance: bool, seed: int
) -> None:
    q, k, v = (t[:1] for t in qkv(length=length, seed=seed))
    sigma2 = SIGMA2 if distance else None
    expected = one_query_at_a_time(q, k, v, width, sigma2, topk)
    found = window_attention(q, k, v, width, sigma2=sigma2, topk=topk)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_gathered_a_single_kept_key_is_copied_and_sigma_learns_nothing() -> None:
    q, k, v = qkv()
    log_sigma = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    out = window_attention(q, k, v, 5, sigma2=torch.exp(2 * log_sigma), topk=1)
    nearest = torch.cdist(q, k).masked_fill(~causal(5), math.inf).argmin(-1)
    copied = v.gather(2, nearest[..., None].expand_as(v))
    torch.testing.assert_close(out, copied, rtol=0, atol=1e-12)
    (gradient,) = torch.autograd.grad(out.square().sum(), log_sigma)
    assert float(gradient.abs()) < 1e-12


def test_gathered_a_key_that_nobody_keeps_gets_no_gradient() -> None:
    q, k, v = (t.requires_grad_() for t in qkv())
    far = torch.zeros(LENGTH, 1, dtype=torch.float64)
    far[10] = 100.0  # every query that sees it sees at least two nearer ones
    out = window_attention(q, k + far, v, 5, sigma2=SIGMA2, topk=2)
    dk, dv = torch.autograd.grad(out.square().sum(), (k, v))
    assert (dk[:, :, 10] == 0).all() and (dv[:, :, 10] == 0).all()
    others = [i for i in range(LENGTH) if i != 10]
    assert (dk[:, :, others] != 0).any() and (dv[:, :, others] != 0).any()


@pytest.mark.parametrize("topk", [None, 1, 2, 4, 60])
@pytest.mark.parametrize(
    "grid", [Grid(4, 5), Grid(5, 4, 2, "chebyshev"), Grid(4, 5, 1, class_token=False), Grid(1, 1)]
)
def test_the_gathered_grid_is_the_dense_one(grid: Grid, topk: int | None) -> None:
    q, k, v = (t.requires_grad_() for t in qkv(length=grid.length))
    dense, _ = dense_attention(q, k, v, torch.from_numpy(grid.valid()), sigma2=SIGMA2, topk=topk)
    index, real = map(torch.from_numpy, grid.neighbours())
    gathered = grid_attention(
        q, k, v, index, real, sigma2=SIGMA2, topk=topk, class_token=grid.class_token
    )  # fmt: skip
    torch.testing.assert_close(gathered, dense, rtol=0, atol=1e-12)
    expected = torch.autograd.grad(dense.square().sum(), (q, k, v))
    for a, b in zip(torch.autograd.grad(gathered.square().sum(), (q, k, v)), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11)


def test_sigma_learns_the_same_on_both_paths() -> None:
    q, k, v = qkv()
    gradients = []
    for path in ("dense", "gathered"):
        log_sigma = torch.zeros(3, 1, 1, dtype=torch.float64, requires_grad=True)
        s = torch.exp(2 * log_sigma)
        if path == "dense":
            out, _ = dense_attention(q, k, v, causal(7), sigma2=s, topk=4)
        else:
            out = window_attention(q, k, v, 7, sigma2=s, topk=4)
        gradients.append(torch.autograd.grad(out.square().sum(), log_sigma)[0])
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-11)


@pytest.mark.parametrize("topk", [None, 2])
def test_the_gradient_of_the_window_is_that_of_finite_differences(topk: int | None) -> None:
    """In queries, keys, values and sigma; the kept keys do not change over steps of 1e-6."""
    q, k, v = (t[:1, :1, :6].clone().requires_grad_() for t in qkv())
    log_sigma = torch.full((1,), 0.2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda q, k, v, s: window_attention(q, k, v, 3, sigma2=torch.exp(2 * s), topk=topk),
        (q, k, v, log_sigma),
    )


def test_extended_dot_products_are_the_scores() -> None:
    q, k, _ = qkv()
    a, b = extended(q, k, SIGMA2)
    scores = (q @ k.transpose(-1, -2) - k.square().sum(-1)[..., None, :] / 2) / SIGMA2
    torch.testing.assert_close(a @ b.transpose(-1, -2), scores, rtol=0, atol=1e-12)


@pytest.mark.parametrize("length", [1, 7, 8, 21])
def test_linear_attention_in_chunks_is_linear_attention(length: int) -> None:
    q, k, v = qkv(length=length)
    whole, _ = linear_attention(q, k, v, causal=True)
    torch.testing.assert_close(linear_attention_chunked(q, k, v, chunk=8), whole, rtol=0, atol=1e-12)
