# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false
"""Arithmetic on lists of tensors, in as few kernels as torch has for it.

An encoder has a gradient per tensor and torch a family of functions for such lists, which its own
optimizers use. They are private by name; this file is the only one that knows them. On a CPU they
are loops over memory, so what is done to a list in several sweeps is done in `blocks`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

CACHED = 1 << 20  # numbers of a block on a CPU, unless a single tensor has more

Tensors = list[Tensor] | tuple[Tensor, ...]


def blocks(tensors: Tensors) -> Iterator[slice]:
    """The list in parts that stay in a cache; elsewhere than on a CPU, in one."""
    begun, numbers = 0, 0
    for end, tensor in enumerate(tensors, start=1):
        numbers += tensor.numel()
        if end == len(tensors) or (tensor.is_cpu and numbers >= CACHED):
            yield slice(begun, end)
            begun, numbers = end, 0


def lengths(tensors: Tensors, units: Sequence[float] | None = None) -> Tensor:
    """||x|| of every tensor, in units of its own if there are any: [T]."""
    found = torch._foreach_norm(tensors)
    return torch.stack(found if units is None else torch._foreach_div(found, units))


def sums(tensors: Tensors, others: Tensors) -> Tensors:
    """x + y."""
    return torch._foreach_add(tensors, others)


def differences(tensors: Tensors, others: Tensors) -> Tensors:
    """x - y."""
    return torch._foreach_sub(tensors, others)


def add_(tensors: Tensors, others: Tensors) -> None:
    """x <- x + y."""
    torch._foreach_add_(tensors, others)


def multiply_(tensors: Tensors, factor: Tensor) -> None:
    """x <- factor x, with one factor for all."""
    torch._foreach_mul_(tensors, factor)
