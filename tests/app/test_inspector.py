"""The inspector's figures and words, from inspections with known numbers."""

from __future__ import annotations

import json
import math
import time

import pytest

from app.figures import inspector
from app.theme import LIGHT
from models.checkpoints.inspection import Inspection, Statistics, Tensor

EVIL = '<img src=x onerror="alert(1)">|`**'


def small(**more: object) -> Inspection:
    """Two types of numbers: 600 bytes of F32 in one tensor, 400 of BF16 in two."""
    tensors = (
        Tensor("a.weight", (10, 10), "BF16", 200, "one"),
        Tensor("b.weight", (10, 15), "F32", 600, "one"),
        Tensor("c.scale", (), "BF16", 200, "one"),
    )
    fields: dict[str, object] = {
        "format": "safetensors",
        "study": "attention_sinks",
        "opener": "huggingface",
        "architecture": "LlamaForCausalLM",
        "family": "llama",
        "layers": 30,
        "heads": 9,
        "kv_heads": 3,
        "vocabulary": 49_152,
        "max_positions": 8_192,
        "parameters": 134_515_008,
        "bytes": 1_000,
        "tensors": tensors,
    }
    return Inspection(**{**fields, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("count", "text"), [(1, "1 byte"), (12, "12 bytes"), (538_000_000, "538 MB"), (2.5e9, "2.5 GB")]
)
def test_bytes_are_written_as_people_do(count: float, text: str) -> None:
    assert inspector.size(count).replace("\N{NO-BREAK SPACE}", " ") == text


def test_parameters_are_counted_in_millions() -> None:
    assert inspector.amount(134_515_008).replace("\N{NO-BREAK SPACE}", " ") == "134.5 M"
    assert inspector.title("LlamaForCausalLM", "llama", 812) == "LlamaForCausalLM, 812"
    assert inspector.title("", "", 0) == "model"


def test_card_tells_what_is_known_and_nothing_else() -> None:
    rows = {k: v.replace("\N{NO-BREAK SPACE}", " ") for k, v in inspector.card(small(facts={"Opset": "17"}))}
    assert rows["Layers × heads"] == "30 × 9, 3 for keys and values"
    assert rows["Parameters"] == "134.5 M in 1 kB"
    assert rows["Reads"] == "text: up to 8,192 tokens, 49,152 ids"
    assert rows["Tokenizer"].startswith("none")
    assert rows["Opset"] == "17"
    assert "Width" not in rows


def test_card_of_maps_and_pictures() -> None:
    maps = dict(inspector.card(small(takes="nothing", samples=3, length=64)))
    assert maps["Reads"] == "nothing: 3 × stored maps of 64 tokens"
    assert "Tokenizer" not in maps
    pictures = dict(inspector.card(small(takes="image", image=(3, 48, 320))))
    assert pictures["Reads"].startswith("pictures, 3 × 48 × 320")


def test_types_are_bars_of_megabytes_largest_first() -> None:
    drawn = inspector.dtype_bars(small(), LIGHT)
    bar = drawn.fig.data[0]
    assert list(bar.y) == ["F32", "BF16"]
    assert list(bar.x) == [0.0006, 0.0004]
    assert "F32 60" in drawn.alt
    assert bar.text[1].endswith("2 tensors")


def test_many_types_become_eight_rows_and_lose_no_byte() -> None:
    tensors = tuple(Tensor(f"t{i}", (1,), f"Q{i}", 100 + i) for i in range(20))
    bar = inspector.dtype_bars(small(tensors=tensors), LIGHT).fig.data[0]
    assert len(bar.y) == 8
    assert sum(bar.x) == pytest.approx(sum(t.bytes for t in tensors) / 1e6)


def test_table_is_sorted_by_size_and_shares_sum_to_one() -> None:
    frame = inspector.tensor_table(small())
    assert frame["name"].tolist() == ["b.weight", "a.weight", "c.scale"]
    assert frame["shape"].tolist() == ["10 × 15", "10 × 10", ""]
    assert frame["share"].sum() == pytest.approx(1)
    assert "file" not in frame


def test_broken_tensors_come_first() -> None:
    nan = float("nan")
    values = [Statistics("a.weight", 0, 1, -1, 1, 3, 2, 0), Statistics("b.weight", 0, 1, -1, 1, 0, 0, 0)]
    values.append(Statistics("c.scale", nan, nan, nan, nan, 0, 0, 1))
    frame = inspector.tensor_table(small(), values)
    assert frame["name"].tolist() == ["a.weight", "c.scale", "b.weight"]
    assert frame["NaN"].tolist() == [2, 0, 0]
    said = inspector.table_reading(small(), values)
    assert "**2 tensors** with NaN or infinite entries" in said
    fine = [Statistics(name, 0, 1, -1, 1, 0, 0, 0) for name in ("a.weight", "b.weight", "c.scale")]
    assert "Every entry is a finite number" in inspector.table_reading(small(), fine)
    said = inspector.table_reading(small(), fine[1:2])
    assert "2 tensors of type BF16 could not be read" in said
    assert "Every entry of the others is a finite number" in said
    assert "finite" not in inspector.table_reading(small(), [])


def test_strangers_names_are_inert() -> None:
    found = small(tensors=(Tensor(EVIL, (1,), EVIL, 4),), architecture=EVIL)
    drawn = inspector.dtype_bars(found, LIGHT)
    assert "<img" not in "".join(drawn.fig.data[0].y)
    assert "<img" not in inspector.table_reading(found).replace("\\<img", "")


def test_statistics_come_back_from_json_with_null_as_nan() -> None:
    row = {"name": "w", "mean": None, "std": 1.5, "minimum": 0, "maximum": 2, "zeros": 1, "nans": 2}
    (one,) = inspector.statistics_of(json.dumps([row | {"infinities": 3}]))
    assert math.isnan(one.mean)
    assert (one.std, one.nans, one.infinities) == (1.5, 2, 3)
    for bad in ("[1]", "{}x", '[{"name": 1}]', "null"):
        with pytest.raises(ValueError, match=r"."):
            inspector.statistics_of(bad)


def test_five_thousand_tensors_take_no_time() -> None:
    tensors = tuple(Tensor(f"model.layers.{i}.weight", (64, 64), "F16", 8_192, "a") for i in range(5_000))
    found = small(tensors=tensors)
    start = time.process_time()
    assert len(inspector.tensor_table(found)) == 5_000
    inspector.dtype_bars(found, LIGHT)
    assert time.process_time() - start < 1.0


def test_an_empty_file_has_words() -> None:
    assert inspector.table_reading(small(tensors=())) == "The file lists no tensor."
