"""Time and memory, measured so that what else the machine is doing matters least.

Two things are compared in pairs, in random order within a pair, and every pair gives one ratio: a
disturbance that lasts longer than a pair falls on both. The median of the ratios is reported with
an interval that holds it with 95 % confidence whatever the distribution (order statistics). How
long to go on is decided by the width of that interval and never by the ratio itself.
"""

from __future__ import annotations

import gc
import math
import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Side = Callable[[], float]  # prepares as it likes, and returns the seconds of what counts


@dataclass(frozen=True)
class Plan:
    """Go on until the interval is `precision` wide (relative), within these limits."""

    least: int
    most: int
    seconds: float
    precision: float

    def goes_on(self, samples: Sequence[float], started: float) -> bool:
        if len(samples) < self.least:
            return True
        if len(samples) >= self.most or time.perf_counter() - started > self.seconds:
            return False
        median, low, high = spread(samples)
        return high - low > self.precision * median


def spread(samples: Sequence[float]) -> tuple[float, float, float]:
    """The median, and the two order statistics that enclose it with 95 % confidence."""
    ordered = sorted(samples)
    n = len(ordered)
    rank = max(0, math.floor((n - 1.96 * math.sqrt(n)) / 2))
    return statistics.median(ordered), ordered[rank], ordered[n - 1 - rank]


def compare(ours: Side, plain: Side, plan: Plan) -> tuple[list[float], list[float]]:
    """Seconds of both, pair by pair."""
    first = random.Random(0)
    for side in (ours, plain):  # not counted: what is made once, and caches
        side(), side()
    a: list[float] = []
    b: list[float] = []
    started = time.perf_counter()
    while plan.goes_on(ratios(a, b), started):
        if first.random() < 0.5:
            a.append(ours())
            b.append(plain())
        else:
            b.append(plain())
            a.append(ours())
    return a, b


def ratios(a: Sequence[float], b: Sequence[float]) -> list[float]:
    return [x / y for x, y in zip(a, b, strict=True)]


def seconds_of(function: Callable[[], Any], device: torch.device) -> float:
    """Of one call; on a GPU until the device has done what was queued, by CUDA events."""
    if device.type == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize(device)
        start.record()
        function()
        end.record()
        torch.cuda.synchronize(device)
        return start.elapsed_time(end) / 1e3
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


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
    cpu = torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[cpu], profile_memory=True) as profile:
        function()
    assert profile.profiler is not None
    events = profile.profiler.kineto_results.events()
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    now = peak = 0
    for _, change in changes:
        now += change
        peak = max(peak, now)
    return peak
