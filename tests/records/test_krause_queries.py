"""SQL of the Krause study on a store whose numbers are known."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from data.records import krause_attention_ledger as ledger
from data.records import krause_attention_media_queries as media
from data.records import krause_attention_queries as queries
from data.store import Store, open_store
from precompute.studies.krause_attention import BACK_COPY, KJV, PIXELS, VISION
from tests.app.krause_store import fill


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    folder = tmp_path_factory.mktemp("krause")
    fill(folder / "traces.duckdb", folder / "staging")
    with open_store(folder / "traces.duckdb") as store:
        yield store


def test_text_runs_carry_their_setting(store: Store) -> None:
    runs = queries.text_runs(store, BACK_COPY)
    assert len(runs) == 18 and set(runs["length"]) == {64} and set(runs["heads"]) == {1}
    narrow = runs[(runs["mechanism"] == "krause") & (runs["window"] == 16)]
    assert set(narrow["topk"]) == {8} and narrow["seed"].tolist() == [0, 1, 2]
    assert narrow["has_maps"].tolist() == [True, False, False]
    softmax = runs[runs["mechanism"] == "softmax"]
    assert softmax["window"].isna().all()


def test_final_sinks_are_those_of_the_last_step(store: Store) -> None:
    ends = ledger.final_sinks(store, BACK_COPY, 0.3)
    softmax = ends[ends["mechanism"] == "softmax"].sort_values("seed")
    np.testing.assert_allclose(softmax["first_mass"], [0.74, 0.75, 0.76], atol=1e-6)
    assert softmax["sink_rate"].tolist() == [1.0, 1.0, 1.0]
    krause = ends[(ends["mechanism"] == "krause") & (ends["window"] == 64)]
    assert krause["sink_rate"].tolist() == [0.0, 0.0, 0.0]  # 0.2 lies below the threshold
    assert (
        ledger.final_sinks(store, BACK_COPY, 0.1).query("mechanism == 'rbf'")["sink_rate"].tolist()
        == [1.0] * 3
    )


def test_emergence_has_every_step(store: Store) -> None:
    curve = queries.emergence(store, BACK_COPY, 0.3).query("mechanism == 'softmax' and seed == 1")
    assert curve["step"].tolist() == [0, 100, 800]
    np.testing.assert_allclose(curve["first_mass"], [0.075, 0.375, 0.75], atol=1e-6)
    assert curve["sink_rate"].tolist() == [0.0, 1.0, 1.0]


def test_losses_are_in_bits_and_the_floor_is_there(store: Store) -> None:
    losses = queries.losses(store, BACK_COPY)
    assert losses[losses["split"] == "floor"]["bits"].iloc[0] == pytest.approx(1 / np.log(2))
    last = losses[(losses["split"] == "validation") & (losses["step"] == 800)]
    np.testing.assert_allclose(last["bits"], 1.7 / np.log(2), rtol=1e-6)
    assert queries.losses(store, KJV).query("split == 'floor'").empty


def test_first_by_query_starts_at_zero(store: Store) -> None:
    frame = queries.first_by_query(store, BACK_COPY).query("mechanism == 'softmax'")
    assert frame["query"].tolist() == list(range(16))
    np.testing.assert_allclose(frame["mass"], 0.75, atol=1e-6)  # the mean of three seeds


def test_maps_and_tokens_come_back(store: Store) -> None:
    runs = queries.text_runs(store, BACK_COPY).query("mechanism == 'softmax' and seed == 0")
    run = str(runs["run_id"].iloc[0])
    weights = queries.attention_map(store, run, 0, 0)
    assert weights is not None and weights.shape == (16, 16)
    assert weights[3, 0] == pytest.approx(0.79, abs=1e-3) and weights[3, 4] == 0
    assert queries.tokens(store, run)[:3] == ["<s>", "a", "b"]
    assert queries.attention_map(store, run, 7, 0) is None


def test_outcomes_and_generation(store: Store) -> None:
    frame = ledger.outcomes(store, VISION)
    assert len(frame) == 9 and set(frame["data"]) == {"fashion"}
    times = ledger.generation(store, PIXELS)
    assert times.groupby("mechanism")["memory"].first().to_dict() == {"krause": "ring", "softmax": "full"}


def test_operator_times_keep_one_direction(store: Store) -> None:
    frame = ledger.operator_times(store, "forward")
    assert len(frame) == 4 * 6 * 3
    one = frame[(frame["path"] == "dense") & (frame["length"] == 256) & (frame["repetition"] == 0)]
    assert float(one["seconds"].iloc[0]) == pytest.approx(1e-9 * 256**2)


def test_particle_ends_take_the_last_step_and_the_largest_distance(store: Store) -> None:
    frame = ledger.particle_ends(store)
    radius = frame[frame["rule"] == "radius"]
    assert radius["clusters"].tolist() == [5, 5, 5] and radius["step"].tolist() == [3_000] * 3
    assert frame[frame["rule"] == "rbf"]["difference"].max() == pytest.approx(2e-15)


def test_adapted_means_over_heads(store: Store) -> None:
    frame = ledger.adapted(store)
    trained = frame[frame["stage"] == "trained"]
    np.testing.assert_allclose(trained["mixed_first"], 0.49, atol=1e-6)
    assert frame[frame["stage"] == "base"]["krause_first"].isna().all()
    losses = ledger.adapted_losses(store)
    assert set(losses["split"]) == {"validation", "control"} and len(losses) == 8
    assert media.adaptation_runs(store)["window"].tolist() == [32, 32]


def test_images_are_arrays(store: Store) -> None:
    runs = media.image_runs(store, VISION)
    assert runs["mechanism"].tolist() == ["krause", "softmax", "window_topk"]  # those that keep images
    pictures = media.images(store, str(runs["run_id"].iloc[0]), "classified")
    assert pictures["pixels"].iloc[1].shape == (28, 28) and int(pictures["pixels"].iloc[1][0, 0]) == 11
    maps = media.maps_of(store, str(runs["run_id"].iloc[0]), 1)
    assert maps is not None and maps.shape == (3, 4, 50, 50)
    assert media.maps_of(store, str(runs["run_id"].iloc[0]), 9) is None
    truth = media.images(store, str(media.image_runs(store, PIXELS)["run_id"].iloc[0]), "truth")
    assert truth["given_rows"].tolist() == [14, 14, 14] and truth["predicted"].isna().all()


def test_written_texts_keep_their_prompt(store: Store) -> None:
    texts = media.written(store, KJV)
    assert set(texts["prompt"]) == {"In the <b>"} and len(texts) == 3
