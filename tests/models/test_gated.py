"""The Krause branch beside a pretrained attention, on a small random Llama."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from models.attention.gated import GateSpec, adapt

SPEC = GateSpec(window=4, topk=2, sigma=2.0, rank=2)


@pytest.fixture(scope="module")
def llama() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def ids() -> torch.Tensor:
    return torch.randint(50, (2, 11), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def test_a_closed_gate_is_the_pretrained_model(llama: Any) -> None:
    before = llama(ids()).logits
    model = copy.deepcopy(llama)
    modules = adapt(model, SPEC)
    for module in modules:
        module.closed = True
    torch.testing.assert_close(model(ids()).logits, before, rtol=0, atol=1e-5)


@torch.no_grad()
def test_the_control_starts_as_the_pretrained_model(llama: Any) -> None:
    model = copy.deepcopy(llama)
    adapt(model, None)
    torch.testing.assert_close(model(ids()).logits, llama(ids()).logits, rtol=0, atol=1e-5)


@torch.no_grad()
def test_watching_changes_nothing_and_shows_both_branches(llama: Any) -> None:
    model = copy.deepcopy(llama)
    modules = adapt(model, SPEC)
    plain = model(ids()).logits
    for module in modules:
        module.watch = True
    torch.testing.assert_close(model(ids()).logits, plain, rtol=0, atol=1e-5)
    seen = modules[0].seen
    assert seen is not None and seen.krause is not None and seen.gate is not None
    torch.testing.assert_close(seen.standard.sum(-1), torch.ones(2, 4, 11))
    torch.testing.assert_close(seen.krause.sum(-1), torch.ones(2, 4, 11))
    assert int((seen.krause > 0).sum(-1).max()) == 2  # top-k
    assert float(seen.krause[:, :, 4:, 0].max()) == 0  # the window hides the first token from query 4 on
    torch.testing.assert_close(seen.gate, torch.full((2, 11), 0.2))  # where the gate starts


def test_only_updates_gate_and_sigma_are_trained(llama: Any) -> None:
    model = copy.deepcopy(llama)
    adapt(model, SPEC)
    frozen = {name: p.clone() for name, p in model.named_parameters() if not p.requires_grad}
    trained = {name.split(".")[-1] for name, p in model.named_parameters() if p.requires_grad}
    assert trained == {"down", "up", "log_sigma", "weight", "bias"}
    steps = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    before = {name: p.clone() for name, p in model.named_parameters() if p.requires_grad}
    model(ids()).logits.square().mean().backward()
    steps.step()
    for name, p in model.named_parameters():
        if name in frozen:
            assert torch.equal(p, frozen[name]), name
    moved = [
        name for name, p in model.named_parameters() if name in before and not torch.equal(p, before[name])
    ]
    assert any("log_sigma" in name for name in moved) and any("gate" in name for name in moved)
