"""Our own checkpoints: safetensors whose header says what network it is."""

from __future__ import annotations

import json

from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load as read_tensors
from safetensors.torch import save as write_tensors

from models.attention.networks import Network
from models.attention.specs import NetworkSpec

_KEY = "cloudchamber.network"


class CheckpointError(ValueError):
    """Bytes that are no checkpoint of a network trained here; the message says why."""


def save(network: Network, *, half: bool = False) -> bytes:
    """The network as safetensors bytes; `half` keeps 16 bits a weight, for what ships."""
    state = {k: (v.half() if half else v).contiguous() for k, v in network.state_dict().items()}
    return write_tensors(state, metadata={_KEY: network.spec.model_dump_json(), "format": "pt"})


def load(content: bytes) -> Network:
    """The network of a checkpoint, float32, in eval mode.

    Raises CheckpointError that says what is wrong.
    """
    try:
        size = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + size])
        spec = NetworkSpec.model_validate_json(header["__metadata__"][_KEY])
        state = {k: v.float() for k, v in read_tensors(content).items()}
        network = Network(spec)
        network.load_state_dict(state)
    except (KeyError, TypeError, ValueError, ValidationError, SafetensorError, RuntimeError) as error:
        raise CheckpointError(
            f"this is no checkpoint of a network trained here: {' '.join(str(error).split())[:200]}"
        ) from error
    return network.eval()
