"""What accuracy costs: one mark per arm. `time.py` and `memory.py` say in what."""

from __future__ import annotations

from collections.abc import Callable

from ...analysis import metric_name
from ...records import Run
from ...selection import counted
from ...statistics import interval
from ..figure import Panel, Series, Source
from ..related import compared


def against(source: Source, label: str, price: Callable[[Run], float | None]) -> Panel | None:
    """Test accuracy over a price of a run, with single seeds as dots."""
    metric = source.setting.runs[0].metric
    series: list[Series] = []
    for arm in compared(source):
        paid = [(price(run), counted(run, source.selection)) for run in arm.runs.values()]
        dots = [(x, 100 * y[metric]) for x, y in paid if x is not None and metric in y]
        if not dots:
            continue
        mean, found = interval([x for x, _ in dots]).mean, interval([y for _, y in dots])
        marks = Series(
            arm.label, source.look(arm), [mean], [found.mean], [found.low], [found.high], dots
        )
        series.append(marks)
    if not series:
        return None
    return Panel("", "marks", label, f"test {metric_name(metric)} (%)", tuple(series))
