"""From a configuration to token ids: the chunks a run of the attention study looks at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from data.errors import CloudChamberError
from data.sources.reactions import REACTIONS
from data.sources.texts import TEXTS
from precompute.runs.subjects import Tokenizer
from precompute.studies.attention_sinks import MAX_TOKENS, AttentionConfig
from precompute.study import Recorder

# A token is at least one character here and seldom more than eight; twelve leaves room, and the
# length is checked after tokenising.
_CHARACTERS_PER_TOKEN = 12


@dataclass(frozen=True)
class Samples:
    """Token ids of each sample, special tokens included, and how many of them stand in front."""

    ids: tuple[tuple[int, ...], ...]
    prefix: int


def make_samples(config: AttentionConfig, tokenizer: Tokenizer, recorder: Recorder) -> Samples:
    """The samples of `config` for a tokenizer.

    Says with a notice when a visitor's text had to be cut. Raises CloudChamberError when a text is
    empty, too short for the samples asked for, or unknown.
    """
    wrap = tokenizer.encode("", special=True) if config.bos else []
    prefix = wrap[:1]
    suffix = wrap[1:]
    room = config.length - len(wrap)
    if room < 1:
        raise CloudChamberError(
            "text_empty",
            f"A length of {config.length} leaves no room for text.",
            "Raise the length.",
            where="length",
        )
    if config.text == "free":
        content = _free(config, tokenizer, room, recorder)
    elif config.text == "reactions":
        content = _reactions(tokenizer, room)[: config.samples]
    elif config.text in ("random", "repeated"):
        content = _drawn(config, tokenizer, room)
    else:
        content = _consecutive(config, tokenizer, room)
    return Samples(tuple((*prefix, *ids, *suffix) for ids in content), len(prefix))


def _free(config: AttentionConfig, tokenizer: Tokenizer, room: int, recorder: Recorder) -> list[list[int]]:
    """A text of a visitor's: consecutive chunks of it, as many as it fills; at least its beginning."""
    ids = tokenizer.encode(config.content or "", special=False)
    if not ids:
        raise CloudChamberError(
            "text_empty", "The text holds no tokens.", "Type or paste some text.", where="text"
        )
    chunks = min(config.samples, max(len(ids) // room, 1))
    if chunks < config.samples:
        recorder.notice(
            "text_short",
            f"The text has {len(ids):,} tokens: {chunks} of the {config.samples} chunks of {room:,} that "
            "were asked for.",
            config.samples - chunks,
        )
    elif len(ids) > chunks * room and config.samples == 1:
        recorder.notice(
            "text_cut",
            f"The text has {len(ids):,} tokens; the first {room:,} are traced.",
            len(ids) - room,
        )
    return [ids[i * room : (i + 1) * room] for i in range(chunks)]


def _consecutive(config: AttentionConfig, tokenizer: Tokenizer, room: int) -> list[list[int]]:
    """Consecutive chunks of a bundled text: what Gu et al. 2025 measure on."""
    if config.text not in TEXTS:
        raise CloudChamberError(
            "text_unknown",
            f"There is no text {config.text!r}.",
            f"Choose one of: {', '.join((*TEXTS, 'random', 'repeated', 'reactions'))}.",
            where="text",
        )
    needed = room * config.samples
    ids = tokenizer.encode(TEXTS[config.text].read(needed * _CHARACTERS_PER_TOKEN), special=False)
    if len(ids) < needed:
        raise CloudChamberError(
            "text_short",
            f"The text {config.text!r} has {len(ids):,} tokens; the samples need {needed:,}.",
            "Ask for fewer or shorter samples.",
            where="samples",
        )
    return [ids[i * room : (i + 1) * room] for i in range(config.samples)]


def _drawn(config: AttentionConfig, tokenizer: Tokenizer, room: int) -> list[list[int]]:
    """Tokens without meaning: each drawn at random, or one drawn token repeated."""
    rng = np.random.default_rng(config.seed)
    ordinary = np.array([i for i in range(tokenizer.vocabulary) if not tokenizer.is_special(i)])
    size = (config.samples, 1 if config.text == "repeated" else room)
    drawn = np.broadcast_to(rng.choice(ordinary, size=size), (config.samples, room))
    return [[int(i) for i in row] for row in drawn]


def _reactions(tokenizer: Tokenizer, room: int) -> list[list[int]]:
    """One sample a reaction, of its own length; those that do not fit are left out whole."""
    encoded = [tokenizer.encode(smiles, special=False) for _, smiles in REACTIONS]
    return [ids for ids in encoded if len(ids) <= room]


def batches(samples: Samples, tokens: int = 2 * MAX_TOKENS) -> list[Sequence[int]]:
    """Indices of consecutive samples of equal length, at most `tokens` tokens a batch."""
    groups: list[list[int]] = []
    for index, ids in enumerate(samples.ids):
        fits = groups and len(samples.ids[groups[-1][0]]) == len(ids)
        if fits and (len(groups[-1]) + 1) * len(ids) <= tokens:
            groups[-1].append(index)
        else:
            groups.append([index])
    return list(groups)
