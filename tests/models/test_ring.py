"""Generation token by token is exactly what the operators over whole sequences give."""

from __future__ import annotations

import pytest
import torch

from models.attention.generation import generate, memories, memory_kind
from models.attention.krause import dense_attention, linear_attention, window_attention
from models.attention.networks import Network
from models.attention.ring import FullCache, LinearState, Memory, RingCache
from models.attention.specs import NetworkSpec
from models.attention.support import Window

SETTINGS = {
    "softmax": (None, None),
    "null_key": (None, None),
    "krause": (5, 3),
    "window": (5, None),
    "window_topk": (5, 3),
    "rbf": (None, None),
    "linear": (None, None),
}


def qkv(length: int = 23) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 2, 3, length, 8, generator=generator, dtype=torch.float64)
    return q, k, v


def stepped(memory: Memory, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.cat([memory.step(*(t[:, :, i : i + 1] for t in (q, k, v))) for i in range(q.shape[2])], 2)


@pytest.mark.parametrize("topk", [None, 1, 3, 50])
@pytest.mark.parametrize("sigma2", [None, torch.tensor(1.7, dtype=torch.float64)])
def test_the_ring_is_the_window(topk: int | None, sigma2: torch.Tensor | None) -> None:
    q, k, v = qkv()
    whole = window_attention(q, k, v, 6, sigma2=sigma2, topk=topk)
    torch.testing.assert_close(
        stepped(RingCache(6, sigma2=sigma2, topk=topk), q, k, v), whole, rtol=0, atol=1e-12
    )


def test_the_ring_breaks_ties_as_the_window_does() -> None:
    """Equal keys: the earliest positions are kept, also after the ring has come round."""
    q, k, v = qkv()
    k = torch.ones_like(k)
    whole = window_attention(q, k, v, 6, topk=2)
    torch.testing.assert_close(stepped(RingCache(6, topk=2), q, k, v), whole, rtol=0, atol=1e-12)


def test_the_ring_keeps_its_size() -> None:
    q, k, v = qkv()
    ring, sizes = RingCache(6), []
    for i in range(20):
        ring.step(*(t[:, :, i : i + 1] for t in (q, k, v)))
        sizes.append(ring.nbytes)
    assert set(sizes) == {2 * 2 * 3 * 6 * 8 * 8}  # keys and values, batch, heads, window, d, bytes


def test_the_full_cache_is_dense_attention() -> None:
    q, k, v = qkv()
    null = torch.randn(3, 8, dtype=torch.float64)
    valid = torch.from_numpy(Window().valid(23))
    for kept in (None, 4):
        whole, _ = dense_attention(q, k, v, valid, topk=kept, null=null)
        torch.testing.assert_close(
            stepped(FullCache(topk=kept, null=null), q, k, v), whole, rtol=0, atol=1e-12
        )


def test_two_sums_are_linear_attention() -> None:
    q, k, v = qkv()
    whole, _ = linear_attention(q, k, v, causal=True)
    torch.testing.assert_close(stepped(LinearState(), q, k, v), whole, rtol=0, atol=1e-12)


def network(mechanism: str, positions: str) -> Network:
    window, topk = SETTINGS[mechanism]
    torch.manual_seed(1)
    spec = NetworkSpec.model_validate(
        {
            "kind": "sequence", "mechanism": mechanism, "vocabulary": 11, "context": 24, "width": 16,
            "heads": 2, "layers": 2, "window": window, "topk": topk, "positions": positions,
        }
    )  # fmt: skip
    return Network(spec).eval()


@pytest.mark.parametrize("positions", ["learned", "rotary"])
@pytest.mark.parametrize("mechanism", list(SETTINGS))
@torch.no_grad()
def test_logits_step_by_step_are_those_of_the_whole_sequence(mechanism: str, positions: str) -> None:
    net = network(mechanism, positions)
    ids = torch.randint(11, (3, 24), generator=torch.Generator().manual_seed(2))
    held = memories(net)
    steps = torch.stack([net.step(ids[:, i], i, held) for i in range(24)], 1)
    torch.testing.assert_close(steps, net(ids), rtol=0, atol=1e-5)


@pytest.mark.parametrize("mechanism", list(SETTINGS))
@torch.no_grad()
def test_the_quick_path_is_the_dense_path(mechanism: str) -> None:
    net = network(mechanism, "learned")
    ids = torch.randint(11, (3, 24), generator=torch.Generator().manual_seed(2))
    *_, last = net.layers(ids)
    torch.testing.assert_close(net(ids), net.read(last.states), rtol=0, atol=1e-5)


@torch.no_grad()
def test_greedy_generation_takes_the_likeliest_token() -> None:
    net = network("krause", "rotary")
    written = generate(net, torch.tensor([[3, 1], [5, 2]]), 10, temperature=0)
    assert written.shape == (2, 12) and memory_kind(net) == "ring"
    for place in range(2, 12):
        torch.testing.assert_close(net(written[:, :place])[:, -1].argmax(-1), written[:, place])


def test_the_same_generator_writes_the_same() -> None:
    net = network("softmax", "learned")
    given = torch.zeros(2, 1, dtype=torch.long)
    one, two = (generate(net, given, 20, generator=torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(one, two)


def test_beyond_the_context_nothing_is_written() -> None:
    net = network("softmax", "learned")
    assert generate(net, torch.zeros(1, 1, dtype=torch.long), 24).shape == (1, 25)
    with pytest.raises(ValueError, match="context of 24"):
        generate(net, torch.zeros(1, 1, dtype=torch.long), 25)
