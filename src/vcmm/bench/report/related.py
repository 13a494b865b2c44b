"""Arms that figures ask for by what they are, and runs that differ from an arm in one thing.

Some of those stand in no table: what a search tried, and what has another batch size. What is
compared is compared over the same seeds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from ..arms import Arm
from ..records import Run
from ..roles import PUBLISHED, RECORDER, published, recording
from ..selection import counted
from ..statistics import Interval, interval
from .figure import Series, Source
from .style import Look

LEAST = 3  # values that make a sweep
SWEEPS = ("strength", "smoothing", "floor", "gain_range", "warmup")  # options of VCMM
BATCH, RATE = "batch_size", "lr"
Swept = dict[Any, dict[int, Run]]  # by value and by seed


def vanilla(source: Source) -> Arm | None:
    """Joint training without a controller, by the plain fusion."""
    return source.setting.reference


def calibrated(source: Source) -> Arm | None:
    """Joint training with VCMM as published, by the fusion of the reference."""
    reference = source.setting.reference
    found = [
        arm
        for arm in source.setting.arms
        if arm.method == "joint" and arm.controller == "vcmm" and published(arm.spec)
    ]
    if reference is not None:
        same = ("fusion", "modalities")
        found = [arm for arm in found if all(arm.spec[a] == reference.spec[a] for a in same)]
    return min(found, key=lambda arm: (recording(arm.spec), -len(arm.runs)), default=None)


def everything(source: Source) -> list[Run]:
    """The runs of the tables first, then those of searches, grids and sweeps."""
    setting = source.setting
    arms = (*setting.arms, *setting.aside, *setting.near)
    return [run for arm in arms for run in arm.runs.values()]


def compared(source: Source) -> tuple[Arm, ...]:
    """The arms of the setting less the steps of a sweep, which have figures of their own."""
    ours = calibrated(source)
    if ours is None:
        return source.setting.arms
    steps = {
        run.hash
        for option in SWEEPS
        for runs in swept(source, ours, option).values()
        for run in runs.values()
    } - {run.hash for run in ours.runs.values()}
    return tuple(
        arm
        for arm in source.setting.arms
        if not any(run.hash in steps for run in arm.runs.values())
    )


def swept(source: Source, arm: Arm, axis: str) -> Swept:
    """Runs that are those of an arm in all but one thing, by its value, over common seeds.

    The values that were trained with all seeds are enough if there are three; else the seeds are
    those that all values have. Empty where that leaves no sweep.
    """
    _, wanted = _apart(next(iter(arm.runs.values())), axis)
    found: Swept = {}
    for run in sorted(everything(source), key=lambda run: recording(run.spec)):
        value, rest = _apart(run, axis)
        if rest == wanted and value is not None:
            found.setdefault(value, {}).setdefault(run.seed, run)
    most = max((len(runs) for runs in found.values()), default=0)
    full = {value: runs for value, runs in found.items() if len(runs) == most}
    kept = full if len(full) >= LEAST else found
    seeds = set[int].intersection(*(set(runs) for runs in kept.values())) if kept else set[int]()
    if len(kept) < LEAST or not seeds:
        return {}
    return {value: {seed: kept[value][seed] for seed in sorted(seeds)} for value in sorted(kept)}


def curve(label: str, look: Look, values: Mapping[float, Sequence[float]]) -> Series:
    """Means with t-intervals over x."""
    found: list[tuple[float, Interval]] = [(x, interval(ys)) for x, ys in values.items()]
    return Series(
        label,
        look,
        x=[x for x, _ in found],
        y=[one.mean for _, one in found],
        low=[one.low for _, one in found],
        high=[one.high for _, one in found],
    )


def scores(runs: Mapping[int, Run], selection: str) -> list[float]:
    """The primary metric on test in percent, of each run that has it."""
    found = [(run, counted(run, selection)) for run in runs.values()]
    return [100 * values[run.metric] for run, values in found if run.metric in values]


def said_of_seeds(count: int) -> str:
    """How many seeds there are, and what one of them is worth."""
    if count == 1:
        return "One seed, so without an interval: small differences may be chance."
    return f"Means over {count} seeds."


def _apart(run: Run, axis: str) -> tuple[Any, str]:
    """The value of one thing, and all the rest that a run is within its setting."""
    spec = run.spec
    rest = {name: spec[name] for name in ("method", "fusion", "modalities")}
    rest["controller"] = {k: v for k, v in spec["controller"].items() if k not in (RECORDER, axis)}
    rest["optimizer"] = {k: v for k, v in spec["optimizer"].items() if k != axis}
    # Steps may be what is kept where the batch is another, and not epochs.
    rest |= {} if axis == BATCH else {name: spec[name] for name in (BATCH, "epochs")}
    if axis == BATCH:
        value: Any = spec[BATCH]
    elif axis == RATE:
        value = spec["optimizer"].get(RATE)
    else:
        value = spec["controller"].get(axis, PUBLISHED.get(axis))
    if isinstance(value, list):
        value = tuple(cast(list[float], value))
    return value, json.dumps(rest, sort_keys=True)
