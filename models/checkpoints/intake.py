"""The door: from files as they were brought to an inspection, and to an opened model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from models.checkpoints.bundle import Bundle, Item, Limits, Progress, no_progress
from models.checkpoints.inspection import Inspection, Statistics

if TYPE_CHECKING:
    from models.checkpoints.attention import AttentionModel


def unpack(items: Sequence[Item], folder: Path, limits: Limits, progress: Progress = no_progress) -> Bundle:
    """The files, archives replaced by their members (written into `folder` under numbers)."""
    raise NotImplementedError


def inspect(bundle: Bundle, limits: Limits) -> Inspection:
    """What it is, from headers alone."""
    raise NotImplementedError


def statistics(bundle: Bundle, limits: Limits, progress: Progress = no_progress) -> list[Statistics]:
    """Values of every tensor, streamed."""
    raise NotImplementedError


def open_model(
    bundle: Bundle, limits: Limits, device: str, consent: bool = False, progress: Progress = no_progress
) -> AttentionModel:
    """The model, ready to be traced."""
    raise NotImplementedError
