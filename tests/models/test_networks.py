"""Two networks of one specification differ in their attention and in nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from models.attention.mechanisms import MECHANISMS
from models.attention.networks import Network, rotary_table, rotated
from models.attention.specs import NetworkSpec

SEQUENCE: dict[str, Any] = {
    "kind": "sequence", "vocabulary": 11, "context": 40, "width": 24, "heads": 3, "layers": 2,
    "window": 6, "topk": 3,
}  # fmt: skip
IMAGE: dict[str, Any] = {
    "kind": "image", "vocabulary": 5, "context": 16, "patch": 4, "width": 24, "heads": 3, "layers": 2,
    "window": 1, "topk": 2,
}  # fmt: skip
LARGE = {**IMAGE, "context": 48}  # 145 tokens: neighbours are gathered
KINDS = {"sequence": SEQUENCE, "image": IMAGE, "large image": LARGE}


def network(settings: dict[str, Any], mechanism: str, **more: Any) -> Network:
    torch.manual_seed(3)
    net = Network(NetworkSpec.model_validate({**settings, "mechanism": mechanism, **more})).double().eval()
    with torch.no_grad():  # weights of 0.02 would make every attention nearly uniform
        for p in net.parameters():
            p.add_(torch.randn_like(p) * 0.2)
    return net


def inputs(net: Network) -> torch.Tensor:
    generator = torch.Generator().manual_seed(4)
    if net.spec.kind == "sequence":
        return torch.randint(net.spec.vocabulary, (2, net.spec.context), generator=generator)
    side = net.spec.context
    return torch.randn(2, 1, side, side, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("kind", ["sequence", "image"])
@pytest.mark.parametrize("mechanism", list(MECHANISMS))
def test_only_sigma_and_the_null_key_add_parameters(kind: str, mechanism: str) -> None:
    softmax, net = network(KINDS[kind], "softmax"), network(KINDS[kind], mechanism)
    own = {"distance": 2 * 3}.get(MECHANISMS[mechanism].score, 0)  # one a head and layer
    own += 2 * 24 if MECHANISMS[mechanism].null else 0  # one vector of the width a layer
    assert net.parameter_count - softmax.parameter_count == own


@pytest.mark.parametrize(("sigma", "count"), [("head", 6), ("layer", 2), ("fixed", 0)])
def test_sigma_is_learned_per_head_or_layer_or_not_at_all(sigma: str, count: int) -> None:
    net = network(SEQUENCE, "krause", sigma=sigma)
    learned = [p for name, p in net.named_parameters() if "log_sigma" in name and p.requires_grad]
    assert sum(p.numel() for p in learned) == count


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("mechanism", list(MECHANISMS))
@torch.no_grad()
def test_the_quick_path_is_the_dense_path(kind: str, mechanism: str) -> None:
    net = network(KINDS[kind], mechanism)
    x = inputs(net)
    *_, last = net.layers(x)
    torch.testing.assert_close(net(x), net.read(last.states), rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("mechanism", list(MECHANISMS))
@torch.no_grad()
def test_weights_lie_on_the_support(kind: str, mechanism: str) -> None:
    net = network(KINDS[kind], mechanism)
    what = MECHANISMS[mechanism]
    for layer, topk in zip(net.layers(inputs(net)), net.spec.kept, strict=True):
        valid = net.attentions[0].valid
        assert (layer.weights[..., ~valid] == 0).all()
        sizes = (layer.weights > 0).sum(-1)
        visible = valid.sum(-1) if topk is None else valid.sum(-1).clamp(max=topk)
        assert (sizes == visible).all()
        sums = layer.weights.sum(-1)
        if what.null:
            assert (sums < 1).all() and (sums > 0).all()
        else:
            torch.testing.assert_close(sums, torch.ones_like(sums))


@pytest.mark.parametrize("mechanism", list(MECHANISMS))
@torch.no_grad()
def test_no_token_changes_what_was_before_it(mechanism: str) -> None:
    net = network(SEQUENCE, mechanism)
    ids = inputs(net)
    changed = ids.clone()
    changed[:, 25] = (changed[:, 25] + 1) % 11
    before, after = net(ids), net(changed)
    torch.testing.assert_close(after[:, :25], before[:, :25], rtol=0, atol=1e-12)
    assert (after[:, 25] - before[:, 25]).abs().max() > 1e-3


@torch.no_grad()
def test_two_layers_of_a_window_see_twice_as_far_and_no_farther() -> None:
    """Two windows of 6 reach 2 (6 - 1) = 10 tokens back."""
    net = network(SEQUENCE, "window")
    ids = inputs(net)
    changed = ids.clone()
    changed[:, 20] = (changed[:, 20] + 1) % 11
    moved = (net(changed) - net(ids)).abs().amax((0, 2)) > 1e-9
    assert moved.nonzero().flatten().tolist() == list(range(20, 31))


@pytest.mark.parametrize("mechanism", list(MECHANISMS))
@pytest.mark.parametrize("kind", ["sequence", "image"])
def test_every_parameter_learns(kind: str, mechanism: str) -> None:
    net = network(KINDS[kind], mechanism)
    net(inputs(net)).square().mean().backward()
    for name, p in net.named_parameters():
        assert p.grad is not None and p.grad.abs().max() > 0, name


def test_rotary_products_depend_on_the_distance_alone() -> None:
    """And turning keeps lengths (Su et al. 2021, section 3.2.2)."""
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 8, generator=generator, dtype=torch.float64).expand(2, 30, 8)
    table = rotary_table(30, 8).double()
    products = rotated(q, table) @ rotated(k, table).T
    torch.testing.assert_close(products[5:, 5:], products[:-5, :-5], rtol=0, atol=1e-5)
    torch.testing.assert_close(rotated(q, table).norm(dim=-1), q.norm(dim=-1))
