"""Accuracy against all that was spent on it, the search of hyperparameters included."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb, fsum

from ...analysis import metric_name
from ...arms import Arm
from ...records import Run
from ...roles import kind
from ...selection import counted
from ..figure import Figure, Panel, Series, Source
from ..related import compared, everything


def budget(source: Source) -> Figure | None:
    """A line per arm: what is to be expected of the best of so many trials."""
    reference = source.setting.reference
    if reference is None:
        return None
    found = _trials(source, reference)
    joint = found.get(kind(reference.spec), [])
    if not joint or max(map(len, found.values())) < 2:
        return None
    unit = fsum(map(_passes, joint)) / len(joint)
    arms = {kind(arm.spec): arm for arm in reversed(compared(source)) if not arm.alone}
    series: list[Series] = []
    for name, arm in reversed(arms.items()):
        tried = _scored(found.get(name, []), source.selection)
        if tried:
            cost = fsum(_passes(run) for run in found[name]) / len(found[name]) / unit
            x = [cost * count for count in range(1, len(tried) + 1)]
            series.append(Series(arm.label, source.look(arm), x, expected(tried)))
    metric = metric_name(source.setting.runs[0].metric)
    return Figure(
        name="budget",
        title="Accuracy against compute, with the search",
        caption=(
            f"Test {metric} that is to be expected of the trial which is best on valid, among so "
            "many that are drawn from those that were made, all with the same seed. Compute is "
            "that of all these trials: forwards and twice backwards, in trainings of the reference."
        ),
        reading=(
            "A line that starts high needs no search; one that is above the others at the same "
            "compute is the better use of it. One seed stands behind each trial, so small "
            "differences may be chance."
        ),
        panels=(
            Panel(
                "",
                "lines",
                "compute, in trainings of joint",
                f"expected test {metric} (%)",
                tuple(series),
                log_x=True,
                marked=True,
            ),
        ),
        arms=tuple(
            Arm(f"trials of {arm.label}", dict(enumerate(found[name])))
            for name, arm in reversed(arms.items())
            if found.get(name)
        ),
        by_rule=True,
    )


def expected(trials: Sequence[tuple[float, float]]) -> list[float]:
    """Of the best on valid of k trials drawn without replacement: its mean on test, k = 1..n.

    The trial of rank i on valid, of n, is the best of k in C(i - 1, k - 1) of C(n, k) draws.
    """
    order = [test for _, test in sorted(trials)]
    n = len(order)
    return [
        fsum(comb(rank, k - 1) * test for rank, test in enumerate(order)) / comb(n, k)
        for k in range(1, n + 1)
    ]


def _trials(source: Source, reference: Arm) -> dict[str, list[Run]]:
    """What was tried with the first seed, by what was searched for."""
    anchor = next(iter(reference.runs.values()))
    found: dict[str, list[Run]] = {}
    seeds: dict[str, int] = {}
    shared = ("epochs", "batch_size")  # another batch size is no trial, but a step of a sweep
    family = [
        run
        for run in everything(source)
        if all(run.spec[name] == anchor.spec[name] for name in shared)
    ]
    for run in family:
        name = kind(run.spec)
        seeds[name] = min(run.seed, seeds.get(name, run.seed))
    for run in sorted(family, key=lambda run: run.hash):
        if run.seed == seeds[name := kind(run.spec)]:
            found.setdefault(name, []).append(run)
    return found


def _scored(runs: Sequence[Run], selection: str) -> list[tuple[float, float]]:
    """On valid, and on test in percent, of the trials that have both."""
    found: list[tuple[float, float]] = []
    for run in runs:
        valid = [
            row.values[run.metric]
            for row in run.evals
            if row.split == "valid" and run.metric in row.values
        ]
        test = counted(run, selection)
        if valid and run.metric in test:
            found.append((max(valid), 100 * test[run.metric]))
    return found


def _passes(run: Run) -> float:
    """Of a whole run. A backward takes about two forwards."""
    return float(sum(row.forwards + 2 * row.backwards for row in run.cost))
