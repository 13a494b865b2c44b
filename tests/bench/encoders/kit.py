"""Forms, and weights that nobody could mistake for those of a fresh encoder."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from vcmm.bench.types import Form, Kind


def form(kind: Kind, *shape: int) -> Form:
    return Form(kind, shape, None, np.zeros(1), np.ones(1))


def trained(module: nn.Module, seed: int = 0) -> dict[str, Tensor]:
    """Values for all weights and buffers, as a training might have left them."""
    chance = torch.Generator().manual_seed(seed)
    state: dict[str, Tensor] = {}
    for name, value in module.state_dict().items():
        if not value.is_floating_point():
            state[name] = torch.full_like(value, 7)
        elif name.endswith("running_var"):
            state[name] = 0.5 + torch.rand(value.shape, generator=chance, dtype=value.dtype)
        elif value.ndim > 1:
            drawn = torch.randn(value.shape, generator=chance, dtype=value.dtype)
            state[name] = drawn * (value[0].numel() ** -0.5)
        else:
            drawn = torch.randn(value.shape, generator=chance, dtype=value.dtype)
            state[name] = 0.8 + 0.2 * drawn
    return state


def same(module: nn.Module, state: dict[str, Tensor]) -> bool:
    own = module.state_dict()
    return own.keys() == state.keys() and all(torch.equal(own[k], state[k]) for k in own)
