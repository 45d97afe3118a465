"""The attention study's declaration: what it plans, and what a configuration may say."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from data.runs import run_id
from models.intervals import bootstrap_mean
from precompute.studies.attention_sinks import STUDY, AttentionConfig
from precompute.study import Profile


def test_a_larger_profile_holds_the_smaller_ones() -> None:
    smoke, laptop, full = (set(STUDY.plan(profile)) for profile in Profile)
    assert smoke < laptop < full


def test_every_planned_run_has_its_own_identity() -> None:
    configs = STUDY.plan(Profile.full)
    ids = {run_id(STUDY.slug, STUDY.version, c.model_dump(mode="json")) for c in configs}
    assert len(ids) == len(configs)
    assert {c.subject for c in configs} <= set(STUDY.subjects)


@pytest.mark.parametrize(
    "wrong",
    [
        {"text": "free"},
        {"text": "kjv", "content": "hello"},
        {"text": "kjv", "length": 1_025},
        {"text": "kjv", "length": 0},
        {"text": "kjv", "task": "stream"},
        {"text": "kjv", "cache": 256},
        {"text": "kjv", "colour": "red"},
    ],
)
def test_a_configuration_that_contradicts_itself_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        AttentionConfig.model_validate({"subject": "smollm2-135m-instruct", **wrong})


def test_bootstrap_interval_covers_at_its_level() -> None:
    """Of 400 samples of 40 normals, the 90 % interval covers 0 in 90 % ± 4.5 % (3 standard errors)."""
    import numpy as np

    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(400):
        low, high = bootstrap_mean(rng.normal(size=40), level=0.9, resamples=800)
        covered += low <= 0 <= high
    # The percentile bootstrap is slightly narrow at n = 40: allow 1.5 points for that.
    assert 400 * (0.9 - 0.06) <= covered <= 400 * (0.9 + 0.045)


def test_bootstrap_of_constant_values_has_no_width() -> None:
    assert bootstrap_mean([0.25] * 5) == (0.25, 0.25)
    with pytest.raises(ValueError, match="at least two"):
        bootstrap_mean([1.0])
