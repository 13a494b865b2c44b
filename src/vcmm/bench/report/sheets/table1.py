"""Table 1: every method by its metrics on test, and how sure it is that it beats joint training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...analysis import metric_name
from ...arms import Arm, Setting, label
from ...roles import published
from ...statistics import least
from .. import published as paper
from ..sheet import Cell, Column, Sheet, ranked
from .cells import beside, compared, count, gained, known, probability, scores, spread

SHOWN = ("accuracy", "map", "macro_f1")


def table1(setting: Setting, selection: str) -> Sheet | None:
    """Each modality alone, joint training, and every method with its published options."""
    arms = [arm for arm in setting.arms if published(arm.spec)]
    if len([arm for arm in arms if not arm.alone]) < 2:
        return None
    primary = setting.runs[0].metric
    metrics = [primary, *(name for name in SHOWN if name != primary)]
    columns = {
        Column(f"{metric_name(metric)} (%)"): _metric(setting, arms, selection, metric)
        for metric in metrics
    }
    columns |= _compared(setting, arms, selection, primary)
    rates = [arm.spec["optimizer"].get("lr", 0.0) for arm in arms]
    if len(set(rates)) > 1:
        columns[Column("lr")] = [Cell(f"{lr:g}", values={"mean": lr}) for lr in rates]
    columns[Column("seeds")] = [count(len(arm.runs)) for arm in arms]
    shown = {column: cells for column, cells in columns.items() if known(cells)}
    specs = [arm.spec for arm in arms]
    names = [Cell(label(spec, specs)) for spec in specs]
    alone = sum(arm.alone is not None for arm in arms)
    return Sheet(
        name="table1",
        title=f"Results on {setting.title}",
        caption=(
            f"Results on {setting.title}, test split, epoch by {selection}. Mean ± sample standard "
            "deviation over seeds, and 95 % t-interval."
        ),
        columns=(Column("method", number=False), *shown),
        rows=tuple(zip(names, *shown.values(), strict=True)),
        notes=_notes(setting, arms),
        rules=frozenset({alone} if 0 < alone < len(arms) else ()),
    )


def _metric(setting: Setting, arms: Sequence[Arm], selection: str, metric: str) -> list[Cell]:
    """A column, with its marks and with what the paper reports."""
    cells = [spread(scores(arm, selection, metric), metric) for arm in arms]
    each = list(zip(arms, cells, strict=True))
    # As it is shown: a difference that the table does not show is none.
    alone = [_shown(c.values["mean"]) for arm, c in each if arm.alone and c.values]
    best = max(alone, default=None)
    marked = [
        replace(cell, marks=frozenset({"below"}))
        if best is not None and not arm.alone and cell.values and _shown(cell.values["mean"]) < best
        else cell
        for arm, cell in each
    ]
    return [
        beside(cell, paper.reported(arm.spec, metric))
        for arm, cell in zip(arms, ranked(marked), strict=True)
    ]


def _shown(share: float) -> float:
    return round(share, 3)


def _compared(
    setting: Setting, arms: Sequence[Arm], selection: str, metric: str
) -> dict[Column, list[Cell]]:
    """Against joint training by the same fusion, by two tests."""
    pairs = [
        None
        if (reference := setting.reference_of(arm)) is None
        else (scores(arm, selection, metric), scores(reference, selection, metric))
        for arm in arms
    ]
    found = compared(pairs)
    return {
        Column("to joint (points)"): [gained(one) for one in found],
        Column("p (t, Holm)"): [probability(one.p if one else None) for one in found],
        Column("p (Wilcoxon, Holm)"): [probability(one.signed if one else None) for one in found],
    }


def _notes(setting: Setting, arms: Sequence[Arm]) -> tuple[str, ...]:
    said = [
        "To joint: the paired difference over common seeds to joint training by the same fusion, "
        "or by the mean of logits where that was not trained, with its 95 % t-interval. p: paired "
        "t-tests, and Wilcoxon’s signed-rank tests, each adjusted by Holm’s method over this "
        "table. “not distinguishable” goes by the t-tests."
    ]
    seeds = max(len(arm.runs) for arm in arms)
    if seeds > 1:
        said.append(
            f"With {seeds} seeds the least two-sided p that Wilcoxon’s test can give is "
            f"{least(seeds):.3g}, before the adjustment."
        )
    if paper.reports(setting.arms[0].spec):
        said.append("“paper” is what the paper reports, of its own training.")
    return tuple(said)
