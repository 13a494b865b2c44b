"""Small nested state as one string, for checkpoints.

DistributedCheckpoint loads into the structure that a fresh object shows, and a fresh controller has
neither probes nor ages yet. One string has the same structure always, is restored whole or not at
all, and holds nothing that `torch.load(weights_only=True)` would refuse.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

_TENSOR = "tensor"


def pack(state: Mapping[str, Any]) -> str:
    """Tensors, numbers, strings, lists and dicts of them, bit for bit."""
    return json.dumps(state, default=_encode)


def unpack(text: str) -> dict[str, Any]:
    """What `pack` was given. ValueError for any other text."""
    state = json.loads(text, object_hook=_decode)
    if not isinstance(state, dict):
        raise ValueError("the record is not an object")
    return cast(dict[str, Any], state)


def _encode(value: Any) -> dict[str, Any]:
    if not isinstance(value, Tensor):
        raise TypeError(
            f"state holds a {type(value).__name__}; only tensors, numbers, strings, lists and "
            "dicts of them can be saved"
        )
    data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return {
        _TENSOR: base64.b64encode(data.numpy().tobytes()).decode("ascii"),
        "dtype": str(value.dtype).removeprefix("torch."),
        "shape": list(value.shape),
    }


def _decode(value: dict[str, Any]) -> Any:
    if _TENSOR not in value:
        return value
    dtype = getattr(torch, value["dtype"], None)
    data = bytearray(base64.b64decode(value[_TENSOR], validate=True))
    shape = tuple(value["shape"])
    if not isinstance(dtype, torch.dtype) or len(data) != dtype.itemsize * math.prod(shape):
        raise ValueError(
            f"the record holds a damaged tensor of dtype {value['dtype']}, shape {shape}"
        )
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype).reshape(shape)
