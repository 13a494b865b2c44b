"""Figure 1b: fixed momenta for a pair of modalities, equal ones on the diagonal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import combinations

from ...analysis import metric_name
from ...arms import Arm
from ...records import Run
from ...roles import betas
from ..figure import Figure, Panel, Series, Source
from ..related import calibrated, everything, said_of_seeds, scores, vanilla
from ..style import BARS, DASHES, SYMBOLS, Look

Cell = tuple[float, float]  # the momenta of the two
Cells = dict[Cell, dict[int, Run]]  # and the runs by seed


def heat(source: Source) -> Figure | None:
    """One map, of the pair that was searched most finely."""
    reference = source.setting.reference
    if reference is None:
        return None
    best = max(_grids(source, reference).items(), key=lambda item: len(item[1]), default=None)
    if best is None:
        return None
    (first, second, rest), cells = best
    found = _scored(cells, source.selection)
    columns, rows = sorted({a for a, _ in found}), sorted({b for _, b in found})
    if min(len(columns), len(rows)) < 2:
        return None
    places = {(columns.index(a), rows.index(b)): value for (a, b), value in found.items()}
    metric = metric_name(reference.runs[min(reference.runs)].metric)
    one = Series(
        "fixed momenta",
        Look(BARS[0], DASHES[0], SYMBOLS[0]),
        x=[x for x, _ in places],
        y=[y for _, y in places],
        dots=[max(places, key=lambda place: places[place])],
        values=list(places.values()),
    )
    seeds = _common(cells)
    return Figure(
        name="heat",
        title="Shared and asymmetric momentum",
        caption=(
            f"Test {metric} of joint training with a constant momentum for each of two modalities"
            f"{_others(rest)}. The best is framed. {said_of_seeds(len(seeds))}"
            f"{_levels(source, seeds)}"
        ),
        reading=(
            "Along the diagonal both have the same momentum, as a shared one has it. If a map is "
            "best off the diagonal, the modalities want different momenta; the best of so many "
            "cells is too good by chance, and the more so the fewer the seeds."
        ),
        panels=(
            Panel(
                "",
                "heat",
                f"momentum of {first}",
                f"momentum of {second}",
                (one,),
                x_names=[f"{beta:g}" for beta in columns],
                y_names=[f"{beta:g}" for beta in rows],
                value_label=f"test {metric} (%)",
            ),
        ),
        arms=_arms(source, cells),
        by_rule=True,
    )


def _grids(source: Source, reference: Arm) -> dict[tuple[str, str, str], Cells]:
    """All maps there are: by the two modalities, and by the momenta of the others."""
    anchor = next(iter(reference.runs.values()))
    found: dict[tuple[str, str, str], Cells] = {}
    for run in everything(source):
        given = betas(run.spec)
        same = all(run.spec[axis] == anchor.spec[axis] for axis in ("method", "fusion"))
        if not given or not same:
            continue
        for first, second in combinations(sorted(given), 2):
            rest = {name: beta for name, beta in given.items() if name not in (first, second)}
            cells = found.setdefault((first, second, json.dumps(rest, sort_keys=True)), {})
            cells.setdefault((given[first], given[second]), {}).setdefault(run.seed, run)
    return {key: cells for key, cells in found.items() if len(cells) >= 4}


def _common(cells: Cells) -> list[int]:
    """The seeds that all cells have: what the best ones have more is no part of the map."""
    return sorted(set[int].intersection(*(set(runs) for runs in cells.values())))


def _scored(cells: Cells, selection: str) -> dict[Cell, float]:
    seeds = _common(cells)
    values = {
        cell: scores({seed: runs[seed] for seed in seeds}, selection)
        for cell, runs in cells.items()
    }
    return {cell: sum(ys) / len(ys) for cell, ys in values.items() if ys}


def _levels(source: Source, seeds: list[int]) -> str:
    """What joint training gives with the same seeds, without and with VCMM."""
    said: list[str] = []
    for arm in (vanilla(source), calibrated(source)):
        runs: Mapping[int, Run] = arm.runs if arm else {}
        ys = scores({seed: runs[seed] for seed in seeds if seed in runs}, source.selection)
        if arm and len(ys) == len(seeds) > 0:
            said.append(f"{arm.label} {sum(ys) / len(ys):.1f} %")
    return f" With the same seeds: {', '.join(said)}." if said else ""


def _others(rest: str) -> str:
    given = json.loads(rest)
    said = ", ".join(f"{name} {beta:g}" for name, beta in given.items())
    return f", the others being {said}" if said else ""


def _arms(source: Source, cells: Cells) -> tuple[Arm, ...]:
    """One for each cell, for the list of runs behind the figure."""
    made = [
        Arm(f"fixed {a:g}, {b:g}", dict(sorted(runs.items()))) for (a, b), runs in cells.items()
    ]
    reference = source.setting.reference
    return (*([reference] if reference else []), *made)
