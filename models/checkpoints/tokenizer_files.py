"""Tokenizers that come as files: what they are, and the tokenizers library's object for them."""

from __future__ import annotations

import json
from typing import Any

from models.checkpoints.bundle import Bundle, Item, Limits
from models.checkpoints.inspection import Notice
from models.checkpoints.refused import Refused, shown

_KINDS = {
    "BPE": "byte-pair encoding",
    "WordPiece": "word pieces",
    "Unigram": "unigram pieces",
    "WordLevel": "whole words",
}


def load(bundle: Bundle, limits: Limits) -> tuple[Any | None, tuple[Notice, ...]]:
    """A `tokenizers.Tokenizer` from tokenizer.json, vocab.json + merges.txt or vocab.txt; None without any.

    Notices say what was there and is not read. Raises Refused for one that is damaged.
    """
    if (item := bundle.named("tokenizer.json")) is not None:
        return _guarded(item, limits, _from_json), ()
    merges, vocab = bundle.named("merges.txt"), bundle.named("vocab.json")
    if merges is not None and vocab is not None:
        return _guarded(vocab, limits, lambda path: _byte_level(path, str(merges.path))), ()
    if (words := bundle.named("vocab.txt")) is not None:
        return _guarded(words, limits, lambda path: _word_pieces(path, _lower(bundle, limits))), ()
    if (model := bundle.named("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")) is not None:
        said = (
            f"{shown(model.base)} is not read. Save the tokenizer as tokenizer.json: "
            "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)."
        )
        return None, (Notice("tokenizer_not_read", said, 1),)
    return None, ()


def describe(tokenizer: Any | None) -> str:
    """One phrase: "byte-level BPE, 49,152 tokens"; empty for None."""
    if tokenizer is None:
        return ""
    kind = type(tokenizer.model).__name__
    level = "byte-level " if "ByteLevel" in f"{tokenizer.decoder!r}{tokenizer.pre_tokenizer!r}" else ""
    return f"{level}{_KINDS.get(kind, kind)}, {tokenizer.get_vocab_size():,} tokens"


def unfit(tokenizer: Any | None, vocabulary: int | None) -> tuple[Notice, ...]:
    """A notice when the tokenizer has ids beyond the `vocabulary` that the model embeds."""
    if tokenizer is None or vocabulary is None:
        return ()
    beyond = [token for token, number in tokenizer.get_vocab().items() if number >= vocabulary]
    if not beyond:
        return ()
    said = (
        f"The tokenizer has {len(beyond):,} tokens that the model does not embed ({shown(beyond[0])}; it "
        f"embeds {vocabulary:,} ids): a text that holds one is refused."
    )
    return (Notice("tokenizer_larger", said, len(beyond)),)


def adds_special(tokenizer: Any | None) -> bool:
    """Whether its post-processor puts tokens of its own around a text."""
    if tokenizer is None:
        return False
    whole = tokenizer.encode("a", add_special_tokens=True).ids
    return bool(whole != tokenizer.encode("a", add_special_tokens=False).ids)


def _guarded(item: Item, limits: Limits, make: Any) -> Any:
    if item.size > limits.tokenizer_bytes:
        raise Refused(
            "brought_too_large",
            f"The tokenizer has {item.size:,} bytes; at most {limits.tokenizer_bytes:,} are read.",
            "Leave it out to read bytes or ids.",
            where=shown(item.base),
        )
    try:
        tokenizer = make(str(item.path))
        tokenizer.encode("a b", add_special_tokens=True)
        return tokenizer
    except BaseException as error:
        # The library is written in Rust: a damaged file raises a plain Exception or, as a panic, a
        # BaseException. Whatever else it may be (memory, an interrupt) goes on.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        if isinstance(error, MemoryError):
            raise
        raise Refused(
            "brought_damaged",
            f"The tokenizer cannot be read: {shown(error)}.",
            "Save it again with tokenizer.save_pretrained(folder), or leave it out to read bytes or ids.",
            where=shown(item.base),
        ) from error


def _from_json(path: str) -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(path)


def _byte_level(vocab: str, merges: str) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(models.BPE.from_file(vocab, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _word_pieces(path: str, lower: bool) -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    tokenizer = Tokenizer(models.WordPiece.from_file(path, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    cls, sep = tokenizer.token_to_id("[CLS]"), tokenizer.token_to_id("[SEP]")
    if cls is not None and sep is not None:
        tokenizer.add_special_tokens(["[CLS]", "[SEP]", "[PAD]", "[MASK]", "[UNK]"])
        tokenizer.post_processor = processors.BertProcessing(("[SEP]", sep), ("[CLS]", cls))
    return tokenizer


def _lower(bundle: Bundle, limits: Limits) -> bool:
    """do_lower_case of tokenizer_config.json; BERT's default is to lower."""
    item = bundle.named("tokenizer_config.json")
    if item is None or item.size > limits.config_bytes:
        return True
    try:
        found = json.loads(item.path.read_bytes())
    except ValueError:
        return True
    return not (isinstance(found, dict) and found.get("do_lower_case") is False)
