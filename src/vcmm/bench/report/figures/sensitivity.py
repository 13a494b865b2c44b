"""What VCMM's other settings change, and the batch size and the learning rate with them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...analysis import metric_name
from ...arms import Arm
from ..figure import Figure, Panel, Series, Source
from ..related import BATCH, RATE, Swept, calibrated, curve, scores, swept, vanilla

OPTIONS = {  # of the controller: what the axis says, and whether it is logarithmic
    "smoothing": ("smoothing (a)", False),
    "floor": ("floor of the drift (gamma)", True),
    "gain_range": ("gain range", False),
    "warmup": ("warm-up (steps)", False),
}
TRAINING = {BATCH: "batch size", RATE: "learning rate"}  # of both arms


def sensitivity(source: Source) -> Figure | None:
    """A panel for each setting that was varied."""
    arm, joint = calibrated(source), vanilla(source)
    if arm is None:
        return None
    panels: list[Panel] = []
    wider: list[Panel] = []
    label = f"test {metric_name(source.setting.runs[0].metric)} (%)"
    for option, (name, log) in OPTIONS.items():
        if found := swept(source, arm, option):
            panels.append(_panel(name, label, [_line(source, arm, found)], list(found), log))
    for axis, name in TRAINING.items():
        lines = [_training(source, one, axis) for one in (joint, arm) if one is not None]
        if drawn := [line for line in lines if line is not None]:
            wider.append(_panel(name, label, drawn, [], log=True))
    panels = [*_level(panels), *_level(wider)]
    if not panels:
        return None
    return Figure(
        name="sensitivity",
        title="Sensitivity to settings",
        caption=(
            "Test split: joint training with VCMM, with one setting changed at a time; batch size "
            "and learning rate with joint training beside it. Means over the seeds that all values "
            "of a setting have, with 95 % t-intervals."
        ),
        reading=(
            "A flat line is a setting that needs no search. Where both lines move alike, it is the "
            "training that is sensitive, and not the method. Heights compare between the panels of "
            "VCMM's own settings, and between those of the training."
        ),
        panels=tuple(panels),
        arms=(arm,) if joint is None else (joint, arm),
        by_rule=True,
    )


def _level(panels: list[Panel]) -> list[Panel]:
    """Over one range of heights, so that no small change looks like a large one."""
    seen = [
        value
        for panel in panels
        for one in panel.series
        for value in (*one.y, *one.low, *one.high)
        if value is not None
    ]
    if not seen:
        return []
    room = 0.05 * max(max(seen) - min(seen), 1.0)
    return [replace(one, y_range=(min(seen) - room, max(seen) + room)) for one in panels]


def _panel(
    name: str, label: str, series: list[Series], values: list[Any], log: bool = False
) -> Panel:
    """One setting; pairs of numbers stand side by side, as names."""
    names = [f"{v[0]:g}–{v[1]:g}" if isinstance(v, tuple) else "" for v in values]
    pairs = names if any(names) else ()
    return Panel("", "lines", name, label, tuple(series), log_x=log, marked=True, x_names=pairs)


def _line(source: Source, arm: Arm, found: Swept) -> Series:
    values = [(value, scores(runs, source.selection)) for value, runs in found.items()]
    places: dict[float, list[float]] = {
        index if isinstance(value, tuple) else value: ys
        for index, (value, ys) in enumerate(values)
        if ys
    }
    return curve(arm.label, source.look(arm), places)


def _training(source: Source, arm: Arm, axis: str) -> Series | None:
    found = swept(source, arm, axis)
    return _line(source, arm, found) if found else None
