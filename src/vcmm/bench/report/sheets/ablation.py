"""The ablation: VCMM without each of its parts, and beside momenta that were searched for.

The controls below the line are not in the paper. The best shared momentum, found by the same search
as the asymmetric ones, tells whether asymmetry helps or the search does. Strength 0 must equal the
first row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...analysis import metric_name
from ...arms import Arm, Setting
from ...roles import betas, changed, shared
from ...selection import on_valid
from .. import published as paper
from ..sheet import Cell, Column, Sheet
from .cells import beside, compared, count, gained, probability, scores, spread

Json = Mapping[str, Any]
LEAST = 2  # parts that were taken away, before it is an ablation


@dataclass(frozen=True, slots=True)
class Line:
    """A row: its name, its arm, and what stands small beside the name."""

    name: str
    arm: Arm
    small: str = ""


def ablation(setting: Setting, selection: str) -> Sheet | None:
    """The rows of the paper that were trained, then the controls."""
    lines, first_control = _lines(setting)
    names = {line.name for line in lines}
    if len(names & {ASYMMETRIC, *PARTS}) < LEAST:
        return None
    metric = setting.runs[0].metric
    values = [scores(line.arm, selection, metric) for line in lines]
    by_name = {line.name: own for line, own in zip(lines, values, strict=True)}
    to_shared = compared(_pairs(lines, values, by_name, SHARED))
    to_full = compared(_pairs(lines, values, by_name, FULL))
    rows = [
        (
            Cell(line.name, line.small),
            beside(spread(own, metric), paper.ablated(line.arm.spec, line.name, metric)),
            gained(over_shared),
            probability(None if over_shared is None else over_shared.p),
            gained(over_full),
            probability(None if over_full is None else over_full.p),
            count(len(line.arm.runs)),
        )
        for line, own, over_shared, over_full in zip(lines, values, to_shared, to_full, strict=True)
    ]
    heads = ("to shared (points)", "p (Holm)", "to full (points)", "p (Holm)", "seeds")
    return Sheet(
        name="ablation",
        title=f"Ablation on {setting.title}",
        caption=(
            f"Ablation of VCMM on {setting.title}, test split, epoch by {selection}: mean ± sample "
            "standard deviation over seeds, and 95 % t-interval. Below the line: controls."
        ),
        columns=(
            Column("momentum", number=False),
            Column(f"{metric_name(metric)} (%)"),
            *map(Column, heads),
        ),
        rows=tuple(rows),
        notes=_notes(setting, lines),
        rules=frozenset({first_control} if 0 < first_control < len(rows) else ()),
    )


SHARED, FULL = "shared", "full"
ASYMMETRIC, BEST_SHARED = "fixed asymmetric", "best shared"
PARTS: dict[str, Callable[[Json], bool]] = {
    "frozen": lambda spec: (
        spec["controller"]["name"] == "frozen"
        and not spec["controller"].get("floor_after_smoothing", False)
    ),
    "without noise subtraction": lambda spec: changed(spec) == {"subtract_noise": False},
    "without centring": lambda spec: changed(spec) == {"center": False},
    "without exact correction": lambda spec: changed(spec) == {"exact": False},
}
CONTROLS: dict[str, Callable[[Json], bool]] = {
    "strength 0": lambda spec: changed(spec) == {"strength": 0},
    "floor after smoothing": lambda spec: changed(spec) == {"floor_after_smoothing": True},
}


def _lines(setting: Setting) -> tuple[list[Line], int]:
    """All rows, and the number of those that the paper has."""
    arms = [arm for arm in setting.arms if _comparable(setting, arm)]
    fixed = [arm for arm in arms if betas(arm.spec)]
    unequal = _best([arm for arm in fixed if not shared(arm.spec)])
    equal = _best([arm for arm in fixed if shared(arm.spec)])
    found = [
        (SHARED, setting.reference),
        (ASYMMETRIC, unequal or equal),
        *((name, _first(arms, wanted)) for name, wanted in PARTS.items()),
        (FULL, _first(arms, _full)),
    ]
    more = [
        (BEST_SHARED, equal),
        *((name, _first(arms, wanted)) for name, wanted in CONTROLS.items()),
    ]
    made = [Line(name, arm, _momenta(arm)) for name, arm in found if arm is not None]
    controls = [Line(name, arm, _momenta(arm)) for name, arm in more if arm is not None]
    return [*made, *controls], len(made)


def _comparable(setting: Setting, arm: Arm) -> bool:
    """Whether it is joint training, joined as the reference is."""
    reference = setting.reference
    axes = ("fusion", "modalities", "method")
    return reference is not None and all(arm.spec[a] == reference.spec[a] for a in axes)


def _first(arms: Sequence[Arm], wanted: Callable[[Json], bool]) -> Arm | None:
    found = [arm for arm in arms if wanted(arm.spec)]
    return max(found, key=lambda arm: len(arm.runs), default=None)


def _full(spec: Json) -> bool:
    return spec["controller"]["name"] == "vcmm" and not changed(spec)


def _best(arms: Sequence[Arm]) -> Arm | None:
    """As a search has it: with the most seeds, then by the first seed on valid."""
    return max(
        arms,
        key=lambda arm: (len(arm.runs), on_valid(arm.runs[min(arm.runs)])),
        default=None,
    )


def _momenta(arm: Arm) -> str:
    found = betas(arm.spec)
    if not found:
        return ""
    if shared(arm.spec):
        return f"{next(iter(found.values())):g} for all"
    return ", ".join(f"{name} {beta:g}" for name, beta in sorted(found.items()))


def _pairs(
    lines: Sequence[Line],
    values: Sequence[dict[int, float]],
    by_name: Mapping[str, dict[int, float]],
    against: str,
) -> list[tuple[dict[int, float], dict[int, float]] | None]:
    return [
        None if line.name == against or against not in by_name else (own, by_name[against])
        for line, own in zip(lines, values, strict=True)
    ]


def _notes(setting: Setting, lines: Sequence[Line]) -> tuple[str, ...]:
    said = [
        "Differences are paired over common seeds, with their 95 % t-intervals; the p-values of "
        "the paired t-tests are adjusted by Holm’s method within their column."
    ]
    arms = (*setting.arms, *setting.aside)
    tried = sum(betas(arm.spec) is not None and _comparable(setting, arm) for arm in arms)
    names = {line.name: line.arm for line in lines}
    if ASYMMETRIC in names:
        said.append(
            f"Fixed momenta were chosen on valid with the first seed, out of {tried} that were "
            "tried. That seed is among those shown."
        )
        if shared(names[ASYMMETRIC].spec):
            said.append("The best momenta were equal, so both fixed rows are the same runs.")
    if paper.reports_ablation(setting.arms[0].spec):
        said.append("“paper” is what the paper reports, of its own training.")
    return tuple(said)
