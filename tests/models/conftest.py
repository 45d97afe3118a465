"""One torch thread: the models are tiny, and threads that wait for each other cost more than they bring."""

from __future__ import annotations

import os

import torch

os.environ["HF_HUB_OFFLINE"] = "1"
torch.set_num_threads(1)
