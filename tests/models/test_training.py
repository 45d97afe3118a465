"""The recipe: its schedule, its reproducibility, and a training taken up again."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from models.attention.networks import Network
from models.attention.specs import NetworkSpec, Recipe, kept_pairs, scored_pairs
from models.attention.training import Batch, optimiser, started, train
from models.checkpoints import CheckpointError, load, save

SPEC = NetworkSpec(
    kind="sequence",
    mechanism="krause",
    vocabulary=7,
    context=12,
    width=8,
    heads=2,
    layers=2,
    window=5,
    topk=3,
)
RECIPE = Recipe(network=SPEC, data="none", seed=3, steps=12, batch=4, rate=1e-2, warmup=4)


def batches(step: int) -> Batch:
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(7, (4, 13), generator=generator)
    return Batch(ids[:, :-1], ids[:, 1:])


def states(network: Network) -> dict[str, torch.Tensor]:
    return copy.deepcopy(network.state_dict())


def test_the_schedule_warms_up_and_decays_to_its_floor() -> None:
    assert RECIPE.rate_at(0) == pytest.approx(1e-2 / 4)
    assert RECIPE.rate_at(6) == pytest.approx(1e-2 * (0.1 + 0.9 * 0.5))  # half way down the cosine
    assert RECIPE.rate_at(12) == pytest.approx(1e-3)


def test_the_same_seed_starts_from_the_same_weights_and_leaves_the_generator_alone() -> None:
    before = torch.random.get_rng_state()
    first, second = started(RECIPE, "cpu"), started(RECIPE, "cpu")
    assert torch.equal(before, torch.random.get_rng_state())
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name


def test_every_mechanism_starts_from_the_same_shared_weights() -> None:
    """Paired by seed: what two mechanisms have in common starts equal."""
    softmax = SPEC.model_copy(update={"mechanism": "softmax"})
    a = started(RECIPE, "cpu").state_dict()
    b = started(RECIPE.model_copy(update={"network": softmax}), "cpu").state_dict()
    assert set(a) - set(b) == {"blocks.0.attention.log_sigma", "blocks.1.attention.log_sigma"}
    for name in b:
        assert torch.equal(a[name], b[name]), name


def test_a_training_taken_up_again_ends_where_an_unbroken_one_does() -> None:
    whole = started(RECIPE, "cpu")
    losses = [float(loss) for _, loss, _ in train(whole, RECIPE, batches)]
    assert losses[0] == pytest.approx(math.log(7), abs=0.02)  # it starts by guessing among 7 symbols

    broken = started(RECIPE, "cpu")
    steps = optimiser(broken, RECIPE)
    for step, _, _ in train(broken, RECIPE, batches, optimiser_=steps):
        if step == 5:
            break
    kept, held = states(broken), copy.deepcopy(steps.state_dict())
    again = started(RECIPE, "cpu")
    again.load_state_dict(kept)
    resumed = optimiser(again, RECIPE)
    resumed.load_state_dict(held)
    for _ in train(again, RECIPE, batches, first=5, optimiser_=resumed):
        pass
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], value, rtol=0, atol=1e-7)


def test_a_checkpoint_brings_the_network_back() -> None:
    network = started(RECIPE, "cpu").eval()
    again = load(save(network))
    assert again.spec == SPEC and not again.training
    ids = batches(0).inputs
    torch.testing.assert_close(again(ids), network(ids), rtol=0, atol=0)
    half = load(save(network, half=True))
    torch.testing.assert_close(half(ids), network(ids), rtol=0, atol=2e-3)


@pytest.mark.parametrize(
    "content",
    [b"", b"\x80\x02}q\x00.", (5).to_bytes(8, "little") + b"{}   ", b"PK\x03\x04" + bytes(40), bytes(16)],
)
def test_anything_else_is_no_checkpoint(content: bytes) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint of a network trained here"):
        load(content)


def test_a_checkpoint_with_other_tensors_is_refused() -> None:
    content = save(started(RECIPE, "cpu"))
    other = content.replace(b'\\"layers\\":2', b'\\"layers\\":3')
    assert other != content
    with pytest.raises(CheckpointError, match="Missing key"):
        load(other)


def test_pairs_are_those_of_the_neighbourhood() -> None:
    assert scored_pairs(SPEC) == 5 * 6 // 2 + 7 * 5
    assert kept_pairs(SPEC) == 1 + 2 + 10 * 3
    image = NetworkSpec(
        kind="image",
        mechanism="krause",
        vocabulary=10,
        context=32,
        width=8,
        heads=2,
        layers=2,
        window=1,
        topk=2,
    )
    assert scored_pairs(image) == 417  # 8 x 8 patches, Manhattan 1, class token
    assert kept_pairs(image) == (65 * 2 + (64 * 4 + 4)) / 2
    assert scored_pairs(image.model_copy(update={"mechanism": "softmax"})) == 65**2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"mechanism": "magic"}, "there is no attention 'magic'"),
        ({"heads": 3}, "does not divide"),
        ({"window": None}, "needs a window"),
    ],
)
def test_a_network_that_cannot_be_is_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        NetworkSpec.model_validate(SPEC.model_dump() | change)
