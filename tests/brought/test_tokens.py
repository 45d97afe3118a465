"""Tokenizers of brought models: own ones say what they add; without one, bytes or ids are read."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from data.errors import CloudChamberError
from models.checkpoints.attention import AttentionModel
from precompute.runs.brought_tokens import own_tokenizer, tokenizer_of

pytestmark = pytest.mark.models


def model(**facts: Any) -> AttentionModel:
    def trace(inputs: object, **callbacks: object) -> None:
        raise AssertionError("not looked at here")

    base = {"format": "x", "architecture": "X", "family": "x", "takes": "text", "layers": 1, "heads": 1}
    return AttentionModel(**base, kv_heads=1, parameters=1, trace=trace, **facts)  # type: ignore[arg-type]


def words(*extra: str) -> Tokenizer:
    vocabulary = {w: i for i, w in enumerate(("[UNK]", "[CLS]", "[SEP]", "a", "b", "c", *extra))}
    fast = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    fast.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    fast.add_special_tokens(["[CLS]", "[SEP]"])
    return fast


def test_what_the_post_processor_adds_are_start_and_end_tokens() -> None:
    fast = words()
    fast.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP] [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    tokenizer = own_tokenizer(fast)
    assert tokenizer.encode("ab", special=False) == [3, 4]
    assert tokenizer.encode("ab", special=True) == [1, 3, 4, 2, 2]
    assert tokenizer.encode("", special=True) == [1, 2, 2]
    assert [tokenizer.is_special(i) for i in (1, 2, 3)] == [True, True, False]


def test_one_that_adds_nothing_adds_nothing() -> None:
    assert own_tokenizer(words()).encode("ab", special=True) == [3, 4]


def test_truncation_and_padding_that_were_saved_with_it_are_off() -> None:
    fast = words()
    fast.enable_truncation(2)
    fast.enable_padding(length=9)
    assert own_tokenizer(fast).encode("abcabc", special=False) == [3, 4, 5, 3, 4, 5]


def test_control_tokens_in_a_text_are_characters() -> None:
    assert 1 not in own_tokenizer(words()).encode("[CLS]", special=False)


def test_sentencepiece_marks_and_byte_tokens_read_as_text() -> None:
    vocabulary = {"<unk>": 0, "▁the": 1, "<0x0A>": 2, "<0xC3>": 3, "▁▁x": 4}
    fast = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    fast.normalizer = normalizers.Replace(" ", "▁")
    fast.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    assert own_tokenizer(fast).pieces([1, 2, 3, 4, 99]) == [" the", "\n", "\\xc3", "  x", "<99>"]


def test_byte_level_tokens_read_as_bytes() -> None:
    fast = Tokenizer(models.BPE({"Ġ": 0, "Ã": 1, "Ċ": 2, "h": 3, "Ġh": 4}, [("Ġ", "h")]))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    assert own_tokenizer(fast).pieces([0, 1, 2, 4]) == [" ", "\\xc3", "\n", " h"]


@pytest.mark.parametrize("content", ["3 17 4", "[3, 17, 4]", " 3,17 ; 4\n"])
def test_numbers_are_ids_without_a_tokenizer(content: str) -> None:
    tokenizer, said = tokenizer_of(model(vocabulary=20), content)
    assert tokenizer.encode(content, special=True) == [3, 17, 4]
    assert tokenizer.pieces([3, 17]) == ["3", "17"] and "token ids" in said


def test_a_number_that_is_no_id_stays_out_of_reach() -> None:
    tokenizer, _ = tokenizer_of(model(vocabulary=20), "9" * 4_000)
    assert tokenizer.encode("9" * 4_000, special=False) == [2**31 - 1]


def test_text_is_read_byte_by_byte_without_a_tokenizer() -> None:
    tokenizer, said = tokenizer_of(model(vocabulary=260), "é\ud800")
    assert tokenizer.encode("aé\ud800", special=True) == [97, 0xC3, 0xA9, 63]
    assert tokenizer.pieces([97, 0xC3, 10, 259]) == ["a", "\\xc3", "\n", "<259>"]
    assert "byte by byte" in said and "tokenizer.json" in said


def test_a_model_of_few_ids_cannot_read_bytes() -> None:
    with pytest.raises(CloudChamberError, match="too few to read bytes") as error:
        tokenizer_of(model(vocabulary=100), "hello")
    assert error.value.kind == "brought_input" and "token ids" in error.value.remedy


def test_an_own_tokenizer_is_not_commented_on() -> None:
    tokenizer, said = tokenizer_of(model(vocabulary=6, tokenizer=words()), "1 2 3")
    assert said == "" and tokenizer.vocabulary == 6
