"""Files of models: our own networks, written and read; and whatever users bring (intake).

`load` and `save` are of `models.checkpoints.own`. They come when asked for, because that module needs
torch, and the app, which must not import it, reads inspections with their neighbours here.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from models.checkpoints.own import CheckpointError, load, save

__all__ = ["CheckpointError", "load", "save"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module("models.checkpoints.own"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
