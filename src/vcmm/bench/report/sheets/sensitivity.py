"""How much VCMM's settings matter: one is changed at a time, and everything else stays.

A learning rate or a batch size changes joint training too, so those are compared with joint
training by the same (`Setting.near`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...analysis import metric_name
from ...arms import Arm, Setting
from ...roles import PUBLISHED, changed
from ..sheet import Cell, Column, Sheet
from .cells import compared, count, gained, probability, scores, spread

OPTIONS = ("strength", "smoothing", "floor", "gain_range", "warmup")
LEAST = 3  # values that make a sweep, the published one included


@dataclass(frozen=True, slots=True)
class Step:
    """One value of a setting, the arm that was trained with it, and joint training beside it."""

    name: str
    value: Any
    arm: Arm
    joint: Arm | None
    usual: bool  # whether it is the value of everything else in the table


def sensitivity(setting: Setting, selection: str) -> Sheet | None:
    """A group of rows for each setting that was varied."""
    steps = [step for group in _groups(setting) for step in group]
    if not steps:
        return None
    metric = setting.runs[0].metric
    ours = [scores(step.arm, selection, metric) for step in steps]
    theirs = [scores(step.joint, selection, metric) for step in steps]
    usual = {step.name: own for step, own in zip(steps, ours, strict=True) if step.usual}
    to_joint = compared(list(zip(ours, theirs, strict=True)))
    to_usual = compared(
        [
            None if step.usual else (own, usual[step.name])
            for step, own in zip(steps, ours, strict=True)
        ]
    )
    rows = tuple(
        (
            Cell(_name(step.name)),
            Cell(_written(step.value), "usual" if step.usual else ""),
            spread(joint, metric),
            spread(own, metric),
            gained(over_joint),
            probability(None if over_joint is None else over_joint.p),
            gained(over_usual),
            probability(None if over_usual is None else over_usual.p),
            count(len(step.arm.runs)),
        )
        for step, own, joint, over_joint, over_usual in zip(
            steps, ours, theirs, to_joint, to_usual, strict=True
        )
    )
    starts = {i for i, step in enumerate(steps) if i and step.name != steps[i - 1].name}
    unit = f"{metric_name(metric)} (%)"
    heads = (f"joint, {unit}", f"VCMM, {unit}", "to joint", "p (Holm)", "to usual", "p (Holm)")
    return Sheet(
        name="sensitivity",
        title=f"Sensitivity on {setting.title}",
        caption=(
            f"What the settings of VCMM matter on {setting.title}, test split, epoch by "
            f"{selection}. One is changed at a time. Mean ± sample standard deviation over seeds, "
            "and 95 % t-interval; differences in points."
        ),
        columns=(
            Column("setting", number=False),
            Column("value"),
            *map(Column, heads),
            Column("seeds"),
        ),
        rows=rows,
        notes=(
            "Differences are paired over common seeds; the p-values of the paired t-tests are "
            "adjusted by Holm’s method within their column. Joint training has the same learning "
            "rate and batch size as VCMM beside it.",
        ),
        rules=frozenset(starts),
    )


def _groups(setting: Setting) -> Iterator[list[Step]]:
    usual = calibrated(setting)
    if usual is None:
        return
    near = _same(setting, setting.near)
    for option in OPTIONS:
        varied = [
            (arm.spec["controller"].get(option, PUBLISHED[option]), arm)
            for arm in _same(setting, setting.arms)
            if set(changed(arm.spec)) == {option}
        ]
        own = usual.spec["controller"].get(option, PUBLISHED[option])
        steps = [Step(option, value, arm, setting.reference, False) for value, arm in varied]
        yield _ordered([*steps, Step(option, own, usual, setting.reference, True)])
    for name, value, other in (
        ("lr", _rate, _size),
        ("batch_size", _size, _rate),
    ):
        at = [arm for arm in near if _matches(arm, usual, value, other, name)]
        steps = [
            Step(name, value(arm), arm, _beside(arm, near), False)
            for arm in at
            if arm.controller == "vcmm" and not changed(arm.spec)
        ]
        yield _ordered([*steps, Step(name, value(usual), usual, setting.reference, True)])


def calibrated(setting: Setting) -> Arm | None:
    """Joint training with VCMM as published, joined as the reference is."""
    found = [
        arm
        for arm in _same(setting, setting.arms)
        if arm.controller == "vcmm" and not changed(arm.spec)
    ]
    return max(found, key=lambda arm: len(arm.runs), default=None)


def _same(setting: Setting, arms: Sequence[Arm]) -> list[Arm]:
    reference = setting.reference
    axes = ("method", "fusion", "modalities")
    return [
        arm
        for arm in arms
        if reference is not None and all(arm.spec[a] == reference.spec[a] for a in axes)
    ]


def _matches(
    arm: Arm, usual: Arm, value: Callable[[Arm], Any], other: Callable[[Arm], Any], name: str
) -> bool:
    """Whether this is all that differs; under a search every arm has its own learning rate."""
    return value(arm) != value(usual) and (name == "batch_size" or other(arm) == other(usual))


def _beside(arm: Arm, near: Sequence[Arm]) -> Arm | None:
    """Joint training under the same conditions."""
    axes = ("optimizer", "batch_size", "epochs")
    plain = [one for one in near if one.plain]
    return next((one for one in plain if all(one.spec[a] == arm.spec[a] for a in axes)), None)


def _ordered(steps: list[Step]) -> list[Step]:
    return sorted(steps, key=lambda step: step.value) if len(steps) >= LEAST else []


def _rate(arm: Arm) -> float:
    return float(arm.spec["optimizer"].get("lr", 0.0))


def _size(arm: Arm) -> int:
    return arm.spec["batch_size"]


def _name(setting: str) -> str:
    return {"lr": "learning rate"}.get(setting, setting.replace("_", " "))


def _written(value: float | list[float]) -> str:
    if isinstance(value, list):
        return " to ".join(f"{part:g}" for part in value)
    return f"{value:g}"
