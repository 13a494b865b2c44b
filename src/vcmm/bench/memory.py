"""How much memory a training step takes."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


def peak_bytes(function: Callable[[], Any], device: torch.device) -> int:
    """The most bytes that torch's allocator had given out at once during a call.

    Not the resident set, which says what the C library has kept of memory given back. On a CPU the
    allocator keeps no count, but the profiler sees every allocation and release. Only what is
    allocated during the call counts, so garbage of earlier calls is collected first: to be freed in
    the middle of this one, it would make room that is not there.
    """
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        function()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it would print when it starts and stops
    # What was there before counts for nothing, but torch complains when the profiler sees it go.
    kept = [thing for thing in gc.get_objects() if issubclass(type(thing), Tensor)]
    cpu = torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[cpu], profile_memory=True) as profile:
        function()
    del kept
    assert profile.profiler is not None
    results: Any = profile.profiler.kineto_results  # its stubs lack nbytes
    events: list[Any] = results.events()
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    now = peak = 0
    for _, change in changes:
        now += change
        peak = max(peak, now)
    return peak


def held_bytes(module: nn.Module, optimizer: Optimizer) -> int:
    """What lies there between steps: parameters, buffers and the optimizer's state."""
    return sum(tensor.nbytes for tensor in _held(module, optimizer))


def _held(module: nn.Module, optimizer: Optimizer) -> Iterator[Tensor]:
    yield from module.parameters()
    yield from module.buffers()
    for entry in optimizer.state.values():
        yield from (value for value in entry.values() if isinstance(value, Tensor))
