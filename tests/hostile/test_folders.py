"""Hugging Face folders that bring code, or parts that do not fit each other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from data.errors import CloudChamberError  # noqa: E402
from data.shelf import Shelf, use_shelf  # noqa: E402
from data.staged import StagedRun  # noqa: E402
from models.checkpoints import intake  # noqa: E402
from models.checkpoints.bundle import Bundle, Item, Limits  # noqa: E402
from models.checkpoints.inspection import Inspection  # noqa: E402
from models.checkpoints.refused import Refused  # noqa: E402
from precompute.studies.attention_sinks import STUDY  # noqa: E402
from precompute.worker import run_one  # noqa: E402
from tests.hostile.small_llama import CONFIG, TOKENIZER, weights  # noqa: E402

pytestmark = pytest.mark.models


def folder(place: Path, config: dict[str, object], **files: bytes) -> Bundle:
    """A small Llama with a changed configuration, and more files."""
    content = {
        "config.json": json.dumps({**CONFIG, **config}).encode(),
        "model.safetensors": weights(),
        **{name.replace("__", "."): data for name, data in files.items()},
    }
    place.mkdir(exist_ok=True)
    items = []
    for name, data in content.items():
        (place / name).write_bytes(data)
        items.append(Item(name, place / name))
    return Bundle(tuple(items))


def refusal(found: Inspection) -> dict[str, str]:
    assert found.refusal is not None
    return found.refusal


def code(marker: Path) -> bytes:
    return f"open({str(marker)!r}, 'w').close()\nraise SystemExit\n".encode()


AUTO_MAP = {
    "auto_map": {
        "AutoConfig": "configuration_mine.MineConfig",
        "AutoModel": "modeling_mine.MineModel",
        "AutoModelForCausalLM": "modeling_mine.MineForCausalLM",
        "AutoTokenizer": ["tokenization_mine.MineTokenizer", None],
    },
    "trust_remote_code": True,
}


def test_code_in_a_folder_of_a_known_family_is_passed_over_and_said(tmp_path: Path) -> None:
    marker = tmp_path / "pwned"
    names = ("configuration_mine", "modeling_mine", "tokenization_mine", "setup", "__init__")
    bundle = folder(tmp_path / "m", AUTO_MAP, **{f"{name}.py": code(marker) for name in names})
    found = intake.inspect(bundle, Limits())
    assert found.refusal is None
    assert [n.kind for n in found.notices if "code" in n.kind] == ["remote_code_ignored"]
    opened = intake.open_model(bundle, Limits(), "cpu")
    assert (opened.architecture, opened.layers, opened.heads) == ("LlamaForCausalLM", 1, 2)
    assert not marker.exists()


def test_a_family_that_needs_its_own_code_is_refused(tmp_path: Path) -> None:
    marker = tmp_path / "pwned"
    config = {**AUTO_MAP, "model_type": "mine"}
    bundle = folder(
        tmp_path / "m", config, modeling_mine__py=code(marker), configuration_mine__py=code(marker)
    )
    told = refusal(intake.inspect(bundle, Limits()))
    assert (told["kind"], told["where"]) == ("brought_unsupported", "model_type")
    assert "mine cannot be opened: it needs the remote code of its authors" in told["message"]
    assert "never run here" in told["remedy"]
    with pytest.raises(Refused):
        intake.open_model(bundle, Limits(), "cpu")
    assert not marker.exists()


def test_a_tokenizer_class_that_asks_for_code_is_passed_over(tmp_path: Path) -> None:
    marker = tmp_path / "pwned"
    settings = {"tokenizer_class": "MineTokenizer", **AUTO_MAP}
    bundle = folder(
        tmp_path / "m",
        {},
        tokenizer_config__json=json.dumps(settings).encode(),
        tokenization_mine__py=code(marker),
        tokenizer__json=TOKENIZER,
    )
    opened = intake.open_model(bundle, Limits(), "cpu")
    assert opened.tokenizer is not None
    assert opened.tokenizer.encode("ab").ids == [3]
    assert not marker.exists()


def test_a_tokenizer_with_more_ids_than_the_model_embeds_is_named(tmp_path: Path) -> None:
    """16 rows are embedded, and the tokenizer gives "ab" the number 99."""
    many = json.loads(TOKENIZER)
    many["model"]["vocab"] = {**many["model"]["vocab"], "ab": 99}
    bundle = folder(tmp_path / "m", {}, tokenizer__json=json.dumps(many).encode())
    (notice,) = intake.inspect(bundle, Limits()).notices
    assert notice.kind == "tokenizer_larger"
    assert notice.message.startswith("The tokenizer has 1 tokens that the model does not embed (ab;")
    assert "it embeds 16 ids" in notice.message

    def traced(content: str) -> StagedRun:
        with use_shelf(tmp_path / "shelf"):
            entry = Shelf(tmp_path / "shelf").put((i.name, i.path) for i in bundle.items)
            settings = {"subject": entry.slug, "text": "free", "content": content, "length": 4, "samples": 1}
            return run_one(STUDY, STUDY.config.model_validate(settings), tmp_path / "staging")

    assert traced("ba").row.status == "done"
    with pytest.raises(CloudChamberError) as error:
        traced("baab")
    assert (error.value.kind, error.value.where) == ("brought_input", "tokenizer.json")
    assert "token 99 (ab), but the model embeds 16 ids only" in error.value.message


def test_a_configuration_of_a_million_layers_takes_no_time_and_no_memory(tmp_path: Path) -> None:
    import resource
    import time

    started = time.monotonic()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for key, size in (("num_hidden_layers", 10**6), ("hidden_size", 10**9), ("vocab_size", 10**12)):
        bundle = folder(tmp_path / key, {key: size})
        told = refusal(intake.inspect(bundle, Limits()))
        assert (told["kind"], told["where"]) == ("brought_too_large", key)
        with pytest.raises(Refused):
            intake.open_model(bundle, Limits(), "cpu")
    assert time.monotonic() - started < 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # kB
