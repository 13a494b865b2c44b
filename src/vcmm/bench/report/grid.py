"""The results table of the page: columns, and cells with what they show and what they sort by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..analysis import METRICS, Row, Table, is_percent, metric_name
from ..statistics import Interval, Paired
from ..wording import p_value
from .style import Look


@dataclass(frozen=True, slots=True)
class Cell:
    """A value, what stands small beneath it, and the number or text that it is sorted by."""

    text: str = ""
    small: str = ""
    sort: float | str = ""
    kind: str = ""  # a class of the style sheet


@dataclass(frozen=True, slots=True)
class Column:
    """A heading, and how its cell is made from a row."""

    key: str
    title: str
    cell: Callable[[Row], Cell]
    hidden: bool = False  # until it is asked for
    number: bool = True


def grid(made: Table, styles: Mapping[str, Look]) -> dict[str, Any]:
    """What the template needs of a table."""
    columns = _columns(made)
    rows = [
        {
            "label": row.arm.label,
            "look": styles[row.arm.label],
            "reference": row.arm is made.setting.reference,
            "cells": [column.cell(row) for column in columns],
        }
        for row in made.rows
    ]
    return {"columns": columns, "rows": rows}


def _columns(made: Table) -> list[Column]:
    names = dict.fromkeys(name for row in made.rows for name in row.metrics)
    rest = [name for name in METRICS if name in names and name != made.metric]
    rest += [name for name in names if name not in METRICS]
    metric = made.metric
    verdicts = [
        Column("difference", "vs joint", lambda row: _difference(row.difference)),
        Column("p", "p (Holm)", lambda row: _p(row.p_holm)),
        Column("verdict", "verdict", _verdict, number=False),
    ]
    costs = [
        Column("time", "time", _time),
        Column("memory", "memory", _memory),
        Column("rate", "s / 1000 samples", _rate, hidden=True),
        Column("forwards", "forwards / sample", lambda row: _passes(row.expense.forwards), True),
        Column("backwards", "backwards / sample", lambda row: _passes(row.expense.backwards), True),
    ]
    return [
        _metric(metric),
        *verdicts,
        *(_metric(name, hidden=name not in METRICS[:3]) for name in rest),
        *costs,
        Column("seeds", "seeds", lambda row: Cell(str(len(row.arm.runs)), sort=len(row.arm.runs))),
    ]


def _metric(name: str, *, hidden: bool = False) -> Column:
    unit = " (%)" if is_percent(name) else ""
    scale, form = (100.0, ".1f") if is_percent(name) else (1.0, ".3f")

    def cell(row: Row) -> Cell:
        found = row.metrics.get(name)
        return Cell() if found is None else _spread(found, scale, form)

    return Column(name, f"{metric_name(name)}{unit}", cell, hidden)


def _spread(found: Interval, scale: float, form: str) -> Cell:
    text, sort = f"{scale * found.mean:{form}}", scale * found.mean
    if found.sd is None or found.low is None or found.high is None:
        return Cell(text, "one seed", sort)
    bounds = f"[{scale * found.low:{form}}, {scale * found.high:{form}}]"
    return Cell(f"{text} ± {scale * found.sd:{form}}", bounds, sort)


def _difference(found: Paired | None) -> Cell:
    if found is None:
        return Cell("–")
    text = _signed(found.mean)
    if found.low is None or found.high is None:
        return Cell(text, "no interval", 100 * found.mean)
    return Cell(text, f"[{_signed(found.low)}, {_signed(found.high)}]", 100 * found.mean)


def _signed(share: float) -> str:
    return f"{100 * share:+.1f}".replace("-", "\N{MINUS SIGN}")


def _p(p: float | None) -> Cell:
    return Cell("–") if p is None else Cell(p_value(p), sort=p)


def _verdict(row: Row) -> Cell:
    if row.verdict is None:
        return Cell("reference" if row.difference is None else "–", sort="reference")
    signs = {"better": ("▲ ", "good"), "worse": ("▼ ", "bad")}
    sign, kind = signs.get(row.verdict, ("", "plain"))
    return Cell(f"{sign}{row.verdict}", sort=row.verdict, kind=kind)


def _time(row: Row) -> Cell:
    seconds = row.expense.seconds.mean
    return Cell(_seconds(seconds), _times(row.expense.seconds_ratio), seconds)


def _rate(row: Row) -> Cell:
    rate = row.expense.rate.mean
    return Cell(f"{rate:.3g}", _times(row.expense.rate_ratio), rate)


def _memory(row: Row) -> Cell:
    if row.expense.peak_bytes is None:
        return Cell("–")
    peak = row.expense.peak_bytes.mean
    return Cell(f"{peak / 2**20:.1f} MiB", _times(row.expense.peak_ratio), peak)


def _passes(count: float) -> Cell:
    return Cell(f"{count:.3g}", sort=count)


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}× joint"


def _seconds(value: float) -> str:
    if value < 120:
        return f"{value:.1f} s"
    return f"{value / 60:.1f} min" if value < 7200 else f"{value / 3600:.1f} h"
