"""`cloudchamber analyze`: the contract of docs/analyze.md, with real files and a real worker."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.commands import outcome
from data.records.attention_sinks_queries import HEADLINE
from tests.cli.conftest import Command

pytestmark = pytest.mark.models

ROOT = Path(__file__).resolve().parents[2]
LENGTH = 8
HARMONIC = sum(1 / n for n in range(1, LENGTH + 1))


def _save_llama(folder: Path) -> None:
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=300,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=3,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=256,
        )
    ).save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    fast = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.save(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("brought") / "my-llama"
    folder.mkdir()
    _save_llama(folder)
    return folder


@pytest.fixture(scope="module")
def maps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    one = np.tril(np.ones((LENGTH, LENGTH))) / np.arange(1, LENGTH + 1)[:, None]
    path = tmp_path_factory.mktemp("maps") / "even.npy"
    np.save(path, np.broadcast_to(one, (2, 3, LENGTH, LENGTH)).astype(np.float32))
    return path


@pytest.fixture
def note(tmp_path: Path) -> Path:
    path = tmp_path / "note.txt"
    path.write_text("tracks of particles in a cloud " * 20, encoding="utf-8")
    return path


def test_the_whole_answer(command: Command, llama: Path, note: Path, tmp_path: Path) -> None:
    out = tmp_path / "results"
    said = command(
        "analyze", str(llama), "--text", str(note), "--length", "32", "--samples", "4",
        "--out", str(out), "--json",
    )  # fmt: skip
    assert said.code == 0, said.err
    answer = said.json
    assert list(answer) == ["study", "subject", "headline", "notices", "settings", "traces", "seconds"]
    assert answer["study"] == "attention_sinks" and answer["subject"].startswith("brought-")
    head = answer["headline"]
    assert tuple(head) == HEADLINE
    assert (head["layers"], head["heads"], head["length"], head["samples"]) == (3, 2, 32, 4)
    assert len(head["sink_rate_by_layer"]) == 3
    # Embedding 300·16; a layer: 2·16·16 + 2·16·8 of attention, 3·16·16 of the MLP, 2·16 of norms; 16 at last.
    assert head["parameters"] == 4_800 + 3 * (768 + 768 + 32) + 16  # the language-model head is not built
    assert answer["settings"] == {
        "text": str(note), "length": 32, "samples": 4, "special_tokens": False, "eps": 0.3,
    }  # fmt: skip
    assert answer["notices"] == [] and answer["traces"] == str(out) and answer["seconds"] > 0
    assert "decided by the content" in said.err
    report = (out / "report.html").read_text("utf-8")
    assert "my-llama" in report and f"{head['parameters']:,}" in report


def test_what_was_written_is_served(
    command: Command, maps: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from app.commands.serve import home_with
    from data.records import attention_sinks_queries as queries
    from data.store import open_store

    out = tmp_path / "results"
    answer = command("analyze", str(maps), "--out", str(out), "--json").json
    with open_store(home_with(out) / "traces.duckdb") as store:
        runs = queries.trace_runs(store)
        assert runs["subject"].tolist() == [answer["subject"]]
        card = queries.model_card(store, runs["run_id"].iloc[0])
        assert card is not None and card["name"] == "even.npy"
        again = queries.headline(store, runs["run_id"].iloc[0], 0.3)
    assert again == answer["headline"]
    # The same folder may be written again; one with something else in it may not.
    assert command("analyze", str(maps), "--out", str(out), "--json").code == 0
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    said = command("analyze", str(maps), "--out", str(tmp_path / "other"), "--json")
    assert (said.code, said.json["error"]["kind"]) == (outcome.WRONG_USE, "out_taken")


def test_stored_maps_have_their_closed_form(command: Command, maps: Path) -> None:
    head = command("analyze", str(maps), "--eps", "0.3", "--json").json["headline"]
    assert (head["layers"], head["heads"], head["length"], head["samples"]) == (2, 3, LENGTH, 1)
    assert head["first_token_mass"] == pytest.approx((HARMONIC - 1) / (LENGTH - 1), abs=1e-6)
    assert head["sink_rate"] == float(HARMONIC / LENGTH > 0.3) and head["parameters"] == 0
    above = command("analyze", str(maps), "--eps", "0.35", "--json").json["headline"]
    assert above["sink_rate"] == 0.0  # 0.3397 of the first token's importance is below it


def test_people_get_a_table(command: Command, maps: Path) -> None:
    said = command("analyze", str(maps))
    assert said.code == 0
    assert "sink_rate" in said.out and "first_token_mass" in said.out and "study attention_sinks" in said.err


@pytest.mark.parametrize(
    ("content", "kind", "where"),
    [
        (b"", "brought_empty", "m.safetensors"),
        (b"version https://git-lfs.github.com/spec/v1\n", "brought_pointer", "m.safetensors"),
        (b"<!DOCTYPE html><html>sign in</html>", "brought_pointer", "m.safetensors"),
        (b"\x80\x04\x95cos\nsystem\n.", "brought_pickle", "m.safetensors"),
        (b"step,loss\n1,2.0\n", "brought_unsupported", "m.safetensors"),
        (bytes(range(256)) * 8, "brought_unknown", "m.safetensors"),
    ],
)
def test_refusals_say_what_it_is(
    command: Command, tmp_path: Path, content: bytes, kind: str, where: str
) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    said = command("analyze", str(path), "--json")
    error = said.json["error"]
    assert (said.code, error["kind"], error["where"]) == (outcome.REFUSED, kind, where)
    assert error["remedy"].endswith(".") and str(tmp_path) not in error["message"]


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (["nowhere.bin"], "path_missing"),
        (["{maps}", "--study", "krause_attention"], "unknown_study"),
        (["{llama}", "--text", "nowhere.txt"], "path_missing"),
        (["{llama}", "--length", "100000"], "job_invalid"),
        (["{llama}", "--samples", "0"], "job_invalid"),
        (["{maps}", "--eps", "many"], "usage"),
        ([], "usage"),
    ],
)
def test_wrong_use(command: Command, llama: Path, maps: Path, arguments: list[str], kind: str) -> None:
    filled = [a.format(maps=maps, llama=llama) for a in arguments]
    said = command("analyze", *filled, "--json")
    assert (said.code, said.json["error"]["kind"]) == (outcome.WRONG_USE, kind)


def test_a_limit_ends_with_its_own_code(command: Command, llama: Path) -> None:
    said = command("analyze", str(llama), "--text", "kjv", "--length", "1024", "--samples", "400", "--limit",
                   "0.02", "--json")  # fmt: skip
    assert (said.code, said.json["error"]["kind"]) == (outcome.LIMIT, "job_timeout")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_by_a_signal(llama: Path, home: Path, tmp_path: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "app.cli", "analyze", str(llama), "--length", "1024", "--samples", "400",
         "--json"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**_environment(home), "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert process.stderr is not None
    seen = ""
    while "decided by the content" not in seen and process.poll() is None:
        seen += process.stderr.readline()
    process.send_signal(number)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == outcome.CANCELLED
    assert json.loads(out)["error"]["kind"] == "cancelled"
    end = time.monotonic() + 10
    while any(tmp_path.glob("cloudchamber-*/*-*")) and time.monotonic() < end:
        time.sleep(0.1)
    assert not list(tmp_path.glob("cloudchamber-*/*-*"))  # nothing of it is left


def _environment(home: Path) -> dict[str, Any]:
    import os

    return {**os.environ, "CLOUDCHAMBER_HOME": str(home)}


def test_no_tokenizer_is_said(command: Command, llama: Path, tmp_path: Path) -> None:
    paths = [str(llama / "config.json"), str(llama / "model.safetensors")]
    note = tmp_path / "ids.txt"
    note.write_text("5 17 299 4 " * 8)
    answer = command("analyze", *paths, "--text", str(note), "--length", "8", "--samples", "2", "--json").json
    assert [n["kind"] for n in answer["notices"]] == ["no_tokenizer"]
    assert "token ids" in answer["notices"][0]["message"]
    note.write_text("5 17 300")
    said = command("analyze", *paths, "--text", str(note), "--length", "8", "--samples", "1", "--json")
    assert (said.code, said.json["error"]["kind"]) == (outcome.REFUSED, "brought_input")
    assert "300" in said.json["error"]["message"]
