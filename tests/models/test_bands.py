"""The banded path where it is cut: chunks of blocks, chunks of groups, ties, and long rows."""

from __future__ import annotations

import pytest
import torch

from models.attention.bands import banded_attention
from models.attention.krause import dense_attention, window_attention
from models.attention.support import Window
from models.attention.topk import keep_largest, kept

T = torch.Tensor


def qkv(batch: int, heads: int, length: int) -> tuple[T, T, T]:
    generator = torch.Generator().manual_seed(1)
    q, k, v = torch.randn(3, batch, heads, length, 5, generator=generator, dtype=torch.float64)
    return q.requires_grad_(), k.requires_grad_(), v.requires_grad_()


@pytest.mark.parametrize("topk", [None, 40])
@pytest.mark.parametrize(
    ("batch", "heads", "length"),
    [(1, 2, 1_501), (4, 4, 150)],  # a sequence of two chunks; sixteen sequences, five a chunk
)
def test_what_is_cut_into_chunks_is_the_dense_attention(
    batch: int, heads: int, length: int, topk: int | None
) -> None:
    q, k, v = qkv(batch, heads, length)
    sigma2 = torch.tensor(1.4, dtype=torch.float64)
    valid = torch.from_numpy(Window(60).valid(length))
    expected, _ = dense_attention(q, k, v, valid, sigma2=sigma2, topk=topk)
    found = window_attention(q, k, v, 60, sigma2=sigma2, topk=topk)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    wanted = torch.autograd.grad(expected.square().sum(), (q, k, v))
    for ours, theirs in zip(torch.autograd.grad(found.square().sum(), (q, k, v)), wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11)


def test_equal_keys_keep_the_oldest_of_the_window() -> None:
    """All scores tie: each query averages the first three keys it sees."""
    v = torch.arange(200, dtype=torch.float64).reshape(1, 1, 200, 1)
    ones = torch.ones(1, 1, 200, 3, dtype=torch.float64)
    out = window_attention(ones, ones, v, 70, topk=3).flatten()
    first = torch.arange(200).sub(69).clamp(min=0)
    last = torch.minimum(first + 2, torch.arange(200))
    torch.testing.assert_close(out, (first + last).double() / 2, rtol=0, atol=1e-12)


def test_inputs_need_not_be_contiguous_and_only_what_learns_gets_a_gradient() -> None:
    q, k, v = qkv(2, 3, 40)
    turned = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v)]
    torch.testing.assert_close(window_attention(*turned, 9), window_attention(q, k, v, 9), rtol=0, atol=0)
    fixed = banded_attention(q.detach(), k.detach(), v, 9)
    torch.testing.assert_close(
        torch.autograd.grad(fixed.sum(), v)[0],
        torch.autograd.grad(banded_attention(q, k, v, 9).sum(), v)[0],
        rtol=0, atol=0,
    )  # fmt: skip


def test_nothing_is_kept_for_a_gradient_that_nobody_asks_for() -> None:
    q, k, v = qkv(1, 1, 40)
    with torch.no_grad():
        assert window_attention(q, k, v, 9).grad_fn is None


def test_nan_does_not_pass_for_a_number() -> None:
    q, k, v = (t.detach().clone() for t in qkv(1, 1, 40))
    k[0, 0, 20] = float("nan")
    out = window_attention(q, k, v, 9, topk=4)[0, 0, :, 0]
    assert out[20:29].isnan().all() and out[:20].isfinite().all() and out[29:].isfinite().all()


@pytest.mark.parametrize("length", [7, 512, 513, 700])  # sorted up to 512, selected beyond
@pytest.mark.parametrize("share", [0.1, 0.9])
def test_the_kept_entries_are_the_first_of_a_stable_sort(length: int, share: float) -> None:
    generator = torch.Generator().manual_seed(length)
    scores = torch.randint(0, 9, (20, length), generator=generator).double()  # many ties
    scores[3, : length // 2] = float("-inf")
    scores[4] = torch.randn(length, generator=generator, dtype=torch.float64)  # none
    topk = max(1, int(share * length))
    order = scores.argsort(dim=-1, descending=True, stable=True)[:, :topk]
    expected = torch.full_like(scores, float("-inf")).scatter(-1, order, scores.gather(-1, order))
    assert torch.equal(keep_largest(scores, topk), expected)


def test_the_same_entries_are_kept_in_half_precision() -> None:
    """Half precision goes through torch.topk, as a GPU does."""
    scores = torch.randint(0, 9, (50, 30), generator=torch.Generator().manual_seed(0)).float()
    mask, half = kept(scores, 11), kept(scores.bfloat16(), 11)
    assert mask is not None and half is not None
    assert torch.equal(mask, half.float()) and set(mask.sum(-1).tolist()) == {11.0}


def test_a_window_or_a_support_without_keys_is_refused() -> None:
    q, k, v = qkv(1, 1, 40)
    with pytest.raises(ValueError, match="own key"):
        window_attention(q, k, v, 0)
    with pytest.raises(ValueError, match="at least one"):
        window_attention(q, k, v, 9, topk=0)
