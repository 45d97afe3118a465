"""The back-copy chain: its rules on a chain small enough to know by heart."""

from __future__ import annotations

import numpy as np
import pytest

from models.attention.backcopy import START, back_copy


def test_bigrams_are_those_of_the_text() -> None:
    chain = back_copy("abab", triggers=("b",))
    assert chain.characters == ("a", "b") and chain.vocabulary == 3 and chain.triggers == (2,)
    np.testing.assert_allclose(chain.next[1], [0, 0, 1])  # a is always followed by b
    np.testing.assert_allclose(chain.next[2], [0, 1, 0])
    np.testing.assert_allclose(chain.first, [0, 0.5, 0.5])


def test_after_a_trigger_the_last_but_one_comes_again() -> None:
    chain = back_copy("the cat ate the tie in the mite", triggers=("t", "e", "i"))
    ids = chain.sample(200, 40, seed=1)
    assert (ids[:, 0] == START).all() and (ids[:, 1:] != START).all()
    copies = chain.copies(ids)[:, :-1]
    assert 0.2 < copies[:, 2:].mean() < 0.8
    rows, places = np.nonzero(copies)
    np.testing.assert_array_equal(ids[rows, places + 1], ids[rows, places - 1])
    ordinary_rows, ordinary = np.nonzero(~copies)
    later = ordinary >= 1
    chances = chain.next[ids[ordinary_rows, ordinary], ids[ordinary_rows, ordinary + 1]]
    assert (chances[later] > 0).all()  # every other step is a bigram of the text


def test_the_same_seed_draws_the_same_sequences() -> None:
    chain = back_copy("the cat ate the tie")
    np.testing.assert_array_equal(chain.sample(5, 20, 3), chain.sample(5, 20, 3))
    assert (chain.sample(5, 20, 3) != chain.sample(5, 20, 4)).any()


def test_the_floor_is_the_entropy_of_the_process() -> None:
    """Two characters that follow each other at random, no copies: ln 2 a prediction."""
    chain = back_copy("aabba" * 100 + "c", triggers=("c",))
    fair = np.array([0.0, 0.5, 0.5, 0.0])
    table = np.tile(fair, (4, 1))
    from models.attention.backcopy import BackCopy

    process = BackCopy(chain.characters, fair, table, chain.triggers)
    ids = process.sample(50, 30, seed=0)
    assert process.floor_nats(ids) == pytest.approx(np.log(2), abs=1e-12)


def test_a_trigger_that_is_not_in_the_text_is_refused() -> None:
    with pytest.raises(ValueError, match="'z'"):
        back_copy("abc", triggers=("z",))
