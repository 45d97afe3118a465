"""One file per format that can be opened; listed in models.checkpoints.registry."""
