"""Strangers' texts through the study's own run: aligned, stored, read back; or refused with a sentence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from app.jobs_model import fit
from data.errors import CloudChamberError
from data.publish import publish
from data.records import attention_sinks_queries as queries
from data.store import open_store
from precompute.registry import STUDIES
from precompute.studies.attention_sinks import MAX_TOKENS
from tests.hostile.texts import TEXTS

pytest.importorskip("torch")
pytestmark = pytest.mark.models
STUDY = STUDIES["attention_sinks"]
LENGTH = 48  # tokens traced here; what is cut is the same at 1,024


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Threads that wait for each other are slower than one where tests run side by side."""
    import torch

    torch.set_num_threads(1)


def settings(subject: str, content: str, length: int = LENGTH) -> dict[str, object]:
    return {
        "subject": subject,
        "text": "free",
        "content": content,
        "bos": True,
        "length": length,
        "samples": 1,
    }


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("subject", ["all-minilm-l6-v2", "smollm2-135m-instruct"])
def test_a_hostile_text_is_traced_and_aligned(tmp_path: Path, subject: str, name: str) -> None:
    from precompute.worker import run_one

    config, _ = fit(STUDY, settings(subject, TEXTS[name]))
    staged = run_one(STUDY, STUDY.config.model_validate(config), tmp_path / "staging")
    publish(tmp_path / "store.duckdb", [staged], STUDY.tables)
    with open_store(tmp_path / "store.duckdb") as store:
        run = staged.row.run_id
        tokens = queries.tokens(store, run)
        size = len(tokens)
        assert 1 <= size <= LENGTH
        assert tokens["position"].tolist() == list(range(size))
        for token in tokens["token"]:
            token.encode("utf-8")  # a lone surrogate would break the page's JSON
        importance = queries.importance(store, run, 0, 0)
        assert len(importance) == size
        assert importance["token"].tolist() == tokens["token"].tolist()
        weights = queries.attention_map(store, run, 0, 0)
        assert weights is not None
        assert weights.shape == (size, size)
        assert weights.sum(axis=1) == pytest.approx(np.ones(size), abs=5e-3)
        record = store.runs().iloc[0]
        assert record["status"] == "done"
        assert ("are traced" in record["notices"]) == (size == LENGTH)


@pytest.mark.parametrize("text", ["", "   \n", "\u200b\u200d\ufeff"])
def test_a_text_without_tokens_is_refused_with_a_sentence(tmp_path: Path, text: str) -> None:
    from precompute.worker import run_one

    config = STUDY.config.model_validate(settings("all-minilm-l6-v2", text))
    with pytest.raises(CloudChamberError, match="no tokens") as refused:
        run_one(STUDY, config, tmp_path)
    assert refused.value.kind == "text_empty"
    assert list(tmp_path.iterdir()) == []


def test_a_text_longer_than_can_be_traced_is_cut_aloud(tmp_path: Path) -> None:
    config, notices = fit(STUDY, settings("all-minilm-l6-v2", TEXTS["100k tokens"], MAX_TOKENS))
    assert "500,000 characters" in notices[0]
    assert len(str(config["content"])) == 200_000


@pytest.mark.parametrize("name", TEXTS)
def test_every_text_has_an_identity(name: str) -> None:
    from data.runs import run_id

    config, notices = fit(STUDY, settings("all-minilm-l6-v2", TEXTS[name]))
    assert len(run_id(STUDY.slug, STUDY.version, config)) == 16
    assert (notices != ()) == (name in ("100k tokens", "lone surrogates"))
