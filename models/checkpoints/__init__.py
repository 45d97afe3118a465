"""Checkpoints as bytes: reading and writing the networks that are trained here."""

from models.checkpoints.own import CheckpointError, load, save

__all__ = ["CheckpointError", "load", "save"]
