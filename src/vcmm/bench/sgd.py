"""torch's SGD, with parameters that get their first gradient later than others of their group.

torch's fused kernel fails on a group in which some parameters have a momentum buffer and some have
none yet: a frozen part, or a module that joined. Without dampening, a buffer that begins with the
first gradient is one that was zero before, so late ones are given zeros.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class SGD(torch.optim.SGD):
    """As torch's, with dampening 0."""

    def _init_group(
        self,
        group: dict[str, Any],
        params: list[Tensor],
        grads: list[Tensor],
        momentum_buffer_list: list[Tensor | None],
    ) -> bool:
        sparse = super()._init_group(group, params, grads, momentum_buffer_list)
        buffers = momentum_buffer_list
        if any(buffer is not None for buffer in buffers):
            for i, parameter in enumerate(params):
                if buffers[i] is None:
                    buffers[i] = torch.zeros_like(parameter)
        return sparse
