"""The search: what every arm was tried with, what was chosen, and what that took."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum

from ...analysis import metric_name
from ...arms import Arm, Setting
from ...records import Run
from ...roles import betas, kind, recording
from ...selection import on_valid
from ..sheet import Cell, Column, Sheet
from .cells import count, times


def search(setting: Setting, selection: str) -> Sheet | None:
    """A row for each arm that was searched for; None where nothing was."""
    del selection  # a search looks at valid, whatever the table does
    rows = [row for arm in setting.arms if (row := _row(setting, arm)) is not None]
    if not rows:
        return None
    name = metric_name(setting.runs[0].metric)
    return Sheet(
        name="search",
        title=f"Search on {setting.title}",
        caption=(
            f"What was tried for each arm on {setting.title}, with one seed and judged on valid "
            "alone. What a search took is in forwards and twice backwards, over one training of "
            "joint."
        ),
        columns=(
            Column("arm", number=False),
            Column("trials"),
            Column("tried", number=False),
            Column("chosen", number=False),
            Column(f"best {name} on valid (%)"),
            Column("worst (%)"),
            Column("trials over joint"),
        ),
        rows=tuple(rows),
        notes=_notes(rows),
    )


def _row(setting: Setting, arm: Arm) -> tuple[Cell, ...] | None:
    """An arm and its trials: the runs of its kind with the seed that all of them have."""
    seed = min(arm.runs)
    peers = [other for other in (*setting.aside, *setting.arms) if _peer(other, arm, seed)]
    if not any(other in setting.aside for other in peers):
        return None
    tried = [other.runs[seed] for other in peers]
    found = sorted(on_valid(run) for run in tried)
    unit = None if setting.reference is None else _passes(list(setting.reference.runs.values()))
    cost = None if unit is None else len(tried) * _passes(tried) / unit
    return (
        Cell(arm.label),
        count(len(tried)),
        Cell(_range(tried)),
        Cell(_setting(arm.runs[seed])),
        Cell(f"{100 * found[-1]:.1f}", values={"mean": found[-1]}),
        Cell(f"{100 * found[0]:.1f}", values={"mean": found[0]}),
        times(cost),
    )


def _peer(other: Arm, arm: Arm, seed: int) -> bool:
    """Whether it was tried for the same; a recording is the same training again."""
    again = recording(other.spec) and other is not arm
    return kind(other.spec) == kind(arm.spec) and seed in other.runs and not again


def _range(tried: Sequence[Run]) -> str:
    """Between which values trials were made."""
    parts: list[str] = []
    rates = sorted({run.spec["optimizer"].get("lr", 0.0) for run in tried})
    if len(rates) > 1:
        parts.append(f"lr {rates[0]:g} to {rates[-1]:g}")
    momenta = sorted({beta for run in tried for beta in (betas(run.spec) or {}).values()})
    if momenta:
        parts.append(f"momenta {momenta[0]:g} to {momenta[-1]:g}")
    return ", ".join(parts)


def _setting(run: Run) -> str:
    given = betas(run.spec) or {}
    rate = run.spec["optimizer"].get("lr")
    parts = [] if rate is None else [f"lr {rate:g}"]
    return ", ".join([*parts, *(f"{name} {beta:g}" for name, beta in sorted(given.items()))])


def _passes(runs: Sequence[Run]) -> float:
    """Of a run, on average. A backward takes about two forwards."""
    rows = [row for run in runs for row in run.cost]
    return fsum(row.forwards + 2 * row.backwards for row in rows) / len(runs)


def _notes(rows: Sequence[tuple[Cell, ...]]) -> tuple[str, ...]:
    counts = {row[1].text for row in rows}
    if len(counts) == 1:
        return ("Every arm had the same number of trials.",)
    return ("The numbers of trials differ: what was tried more often had more chances.",)
