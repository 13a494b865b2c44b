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

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.complex128,
        torch.complex64,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
    )
}


def pack(state: Mapping[str, Any]) -> str:
    """Tensors, numbers, strings, lists and dicts of them, bit for bit."""
    return json.dumps(_encode(state))


def unpack(text: Any) -> dict[str, Any]:
    """What `pack` was given. ValueError for anything else."""
    if not isinstance(text, str):
        raise ValueError(f"the record is a {type(text).__name__}; it must be the saved string")
    try:
        state = json.loads(text)
        if isinstance(state, dict):
            state = _decode(state)
    except (LookupError, TypeError, RuntimeError, OverflowError) as error:
        raise ValueError(f"the record is damaged: {error!r}") from error
    if not isinstance(state, dict):
        raise ValueError("the record is not an object, as a saved state is")
    return cast(dict[str, Any], state)


def _encode(value: Any) -> Any:
    """Dicts become {"dict": ...}, so that no key of theirs can be taken for a tensor's."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_encode(item) for item in cast(list[Any], value)]
    if isinstance(value, Mapping):
        items = cast(Mapping[Any, Any], value)
        for key in items:
            if not isinstance(key, str):
                raise TypeError(f"state has the key {key!r}; only strings can be saved as keys")
        return {"dict": {key: _encode(item) for key, item in items.items()}}
    if isinstance(value, Tensor) and value.dtype in _DTYPES.values():
        data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        return {
            "tensor": base64.b64encode(data.numpy().tobytes()).decode("ascii"),
            "dtype": str(value.dtype).removeprefix("torch."),
            "shape": list(value.shape),
        }
    raise TypeError(
        f"state holds a {type(value).__name__}; only tensors, numbers, strings, lists and dicts of "
        "them can be saved"
    )


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(item) for item in cast(list[Any], value)]
    if not isinstance(value, dict):
        return value
    node = cast(dict[str, Any], value)
    if node.keys() == {"dict"}:
        return {key: _decode(item) for key, item in node["dict"].items()}
    return _decode_tensor(node["tensor"], node["dtype"], node["shape"])


def _decode_tensor(text: str, name: str, shape: list[int]) -> Tensor:
    dtype = _DTYPES[name]
    data = bytearray(base64.b64decode(text, validate=True))
    if any(type(size) is not int or size < 0 for size in shape):
        raise ValueError(f"the record holds a tensor of shape {shape}")
    if len(data) != dtype.itemsize * math.prod(shape):
        raise ValueError(f"the record holds {len(data)} bytes for a {name} tensor of shape {shape}")
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype).reshape(shape)
