"""The plan of the Krause study: paired seeds, equal networks, and a smoke run that really trains."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from models.attention.specs import NetworkSpec, Recipe
from precompute.studies.krause_attention import (
    BACK_COPY,
    KJV,
    PIXELS,
    STUDY,
    VISION,
    KrauseConfig,
    back_copy_recipe,
    plan,
)
from precompute.study import Device, Profile
from precompute.worker import run_one

CPU = Device("cpu", "cpu: a test", 1)


def test_a_larger_profile_holds_the_smaller_ones() -> None:
    smoke, laptop, full = (
        {c.model_dump_json() for c in plan(p)} for p in (Profile.smoke, Profile.laptop, Profile.full)
    )
    assert smoke <= laptop <= full


def test_every_setting_has_at_least_three_paired_seeds() -> None:
    for subject in (BACK_COPY, KJV, VISION, PIXELS):
        seeds: dict[str, set[int]] = {}
        for config in plan(Profile.full):
            if config.subject == subject and config.recipe and not config.recipe.data.endswith("-subset"):
                network = config.recipe.network
                key = f"{network.mechanism} {network.window} {network.topk} {network.sigma}"
                seeds.setdefault(key, set()).add(config.seed)
        compared = [found for found in seeds.values() if len(found) > 1]
        assert len(compared) >= 3 and all(found >= {0, 1, 2} for found in compared), subject


def test_networks_of_a_subject_differ_in_their_attention_alone() -> None:
    for subject in (BACK_COPY, KJV, VISION, PIXELS):
        rest = {
            json.dumps(
                {
                    **config.recipe.model_dump(exclude={"seed", "network"}),
                    **config.recipe.network.model_dump(exclude={"mechanism", "window", "topk", "sigma"}),
                },
                sort_keys=True,
            )
            for config in plan(Profile.full)
            if config.subject == subject and config.recipe and not config.recipe.data.endswith("-subset")
        }
        assert len(rest) == 1, subject


@pytest.mark.parametrize(
    "wrong",
    [
        {"task": "text"},
        {"task": "cost"},
        {"task": "particles", "rule": "softmax"},
        {"task": "cost", "path": "dense", "rule": "rbf", "parameter": 1.0},
        {
            "task": "text",
            "recipe": back_copy_recipe(("softmax", None, None), 1).model_dump(),
        },  # seed 0 is asked for
    ],
)
def test_a_configuration_that_does_not_fit_its_task_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        KrauseConfig.model_validate({"subject": BACK_COPY, **wrong})


def test_a_short_training_is_measured_and_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One head, 30 updates: every table is written, and the second run trains nothing."""
    monkeypatch.setenv("CLOUDCHAMBER_HOME", str(tmp_path / "home"))
    recipe = back_copy_recipe(("krause", 16, 8), 0, steps=30).model_copy(update={"snapshots": (10,)})
    config = KrauseConfig(subject=BACK_COPY, task="text", recipe=recipe, maps=True, checkpoint=True)
    stages: list[str] = []
    first = run_one(STUDY, config, tmp_path / "a", device=CPU, on_progress=lambda *p: stages.append(p[2]))
    assert "training" in stages
    sinks = pq.read_table(first.shards("krause_sinks")[0]).to_pandas()
    assert sorted(set(sinks["step"])) == [0, 10, 30] and sinks["first_mass"].between(0, 15 / 63).all()
    training = pq.read_table(first.shards("krause_training")[0]).to_pandas().set_index(["split", "step"])
    assert training.loc[("validation", 30), "loss_nats"] < training.loc[("validation", 0), "loss_nats"]
    assert training.loc[("floor", 0), "loss_nats"] < training.loc[("validation", 30), "loss_nats"]
    results = pq.read_table(first.shards("krause_results")[0]).to_pylist()[0]
    assert (results["pairs"], results["pairs_dense"], results["updates"]) == (904, 2_080, 30)
    assert results["checkpoint"] == "back-copy-krause-w16-k8-s0.safetensors"
    assert [a.name for a in first.artefacts()] == [results["checkpoint"]]

    stages.clear()
    again = run_one(STUDY, config, tmp_path / "b", device=CPU, on_progress=lambda *p: stages.append(p[2]))
    assert "training" not in stages
    assert pq.read_table(again.shards("krause_sinks")[0]).equals(
        pq.read_table(first.shards("krause_sinks")[0])
    )


def test_an_interrupted_training_is_taken_up_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from models.checkpoints import load
    from precompute.recorder import Cancelled
    from precompute.runs import krause_training
    from precompute.runs.krause_data import task

    monkeypatch.setattr(krause_training, "_RESUME_SECONDS", 0.0)  # keep the state after every update
    network = NetworkSpec(
        kind="sequence", mechanism="softmax", vocabulary=64, context=64, width=16, heads=1, layers=1
    )
    recipe = Recipe(network=network, data="back-copy", seed=0, steps=12, batch=4, rate=1e-2)
    data = task(recipe)

    class Until:
        """Stops at an update, and counts them."""

        def __init__(self, last: int) -> None:
            self.last, self.seen = last, []  # type: ignore[var-annotated]

        def progress(self, done: int, total: int, stage: str) -> None:
            self.seen.append(done)
            if done == self.last:
                raise Cancelled

        def write(self, *_: object) -> None: ...
        def notice(self, *_: object) -> None: ...
        def artefact(self, *_: object) -> None: ...

    with pytest.raises(Cancelled):
        krause_training.trained(recipe, data.batches, Until(7), CPU, tmp_path / "broken")  # type: ignore[arg-type]
    rest = Until(99)
    broken = krause_training.trained(recipe, data.batches, rest, CPU, tmp_path / "broken")  # type: ignore[arg-type]
    assert rest.seen == list(range(7, 13))  # the seventh had not been kept yet
    whole = krause_training.trained(recipe, data.batches, Until(99), CPU, tmp_path / "whole")  # type: ignore[arg-type]
    one, two = (
        load((t.folder / "step-000012.safetensors").read_bytes()).state_dict() for t in (broken, whole)
    )
    for name, value in two.items():
        assert (one[name] - value).abs().max() < 1e-6, name
