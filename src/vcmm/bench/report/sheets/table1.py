"""Table 1: every method by its metrics on test, and how sure it is that it beats joint training."""

from __future__ import annotations

from dataclasses import replace

from ...analysis import metric_name
from ...arms import Arm, Setting
from ...roles import published
from .. import published as paper
from ..sheet import Cell, Column, Sheet, ranked
from .cells import compared, count, gained, known, probability, scores, spread

SHOWN = ("accuracy", "map", "macro_f1")


def table1(setting: Setting, selection: str) -> Sheet | None:
    """Each modality alone, joint training, and every method with its published options."""
    arms = [arm for arm in setting.arms if published(arm.spec)]
    if len([arm for arm in arms if not arm.alone]) < 2:
        return None
    primary = setting.runs[0].metric
    metrics = [primary, *(name for name in SHOWN if name != primary)]
    columns = [_metric(setting, arms, selection, metric) for metric in metrics]
    kept = [(name, cells) for name, cells in zip(metrics, columns, strict=True) if known(cells)]
    found = compared([_against(setting, arm, selection, primary) for arm in arms])
    rows = [
        (
            Cell(arm.label),
            *(cells[index] for _, cells in kept),
            gained(one),
            probability(None if one is None else one.p),
            count(len(arm.runs)),
        )
        for index, (arm, one) in enumerate(zip(arms, found, strict=True))
    ]
    heads = [f"{metric_name(name)} (%)" for name, _ in kept]
    alone = sum(arm.alone is not None for arm in arms)
    return Sheet(
        name="table1",
        title=f"Results on {setting.title}",
        caption=(
            f"Results on {setting.title}, test split, epoch by {selection}. Mean ± sample standard "
            "deviation over seeds, and 95 % t-interval. The best is bold, the second underlined. "
            "Grey: below the best single modality."
        ),
        columns=(
            Column("method", number=False),
            *map(Column, heads),
            Column("to joint (points)"),
            Column("p (Holm)"),
            Column("seeds"),
        ),
        rows=tuple(rows),
        notes=_notes(setting),
        rules=frozenset({alone} if 0 < alone < len(arms) else ()),
    )


def _metric(setting: Setting, arms: list[Arm], selection: str, metric: str) -> list[Cell]:
    """A column, with its marks and with what the paper reports."""
    cells = [spread(scores(arm, selection, metric), metric) for arm in arms]
    each = list(zip(arms, cells, strict=True))
    best = max((c.values["mean"] for arm, c in each if arm.alone and c.values), default=None)
    marked = [
        replace(cell, marks=frozenset({"below"}))
        if best is not None and not arm.alone and cell.values and cell.values["mean"] < best
        else cell
        for arm, cell in each
    ]
    return [
        _with_paper(cell, paper.reported(arm.spec, metric))
        for arm, cell in zip(arms, ranked(marked), strict=True)
    ]


def _with_paper(cell: Cell, reported: float | None) -> Cell:
    if reported is None:
        return cell
    small = f"{cell.small} paper {100 * reported:.1f}".strip()
    return replace(cell, small=small, values={**cell.values, "paper": reported})


def _against(
    setting: Setting, arm: Arm, selection: str, metric: str
) -> tuple[dict[int, float], dict[int, float]] | None:
    reference = setting.reference_of(arm)
    if reference is None:
        return None
    return scores(arm, selection, metric), scores(reference, selection, metric)


def _notes(setting: Setting) -> tuple[str, ...]:
    said = [
        "To joint: the paired difference over common seeds to joint training by the same fusion, "
        "or by the mean of logits where that was not trained; paired t-tests, adjusted by Holm's "
        "method over this table."
    ]
    if paper.reports(setting.arms[0].spec):
        said.append("“paper” is what the paper reports, of one run and its own training.")
    return tuple(said)
