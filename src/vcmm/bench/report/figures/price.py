"""What accuracy costs: one mark per arm. `time.py` and `memory.py` say in what."""

from __future__ import annotations

from collections.abc import Callable

from ...analysis import metric_name
from ...records import Run
from ...selection import counted, primary
from ...statistics import interval
from ..figure import Panel, Series, Source


def against(source: Source, label: str, price: Callable[[Run], float | None]) -> Panel | None:
    """Test accuracy over a price of a run, with single seeds as dots."""
    metric = primary(source.setting.runs[0])
    series: list[Series] = []
    for arm in source.setting.arms:
        priced = [(price(run), run) for run in arm.runs.values()]
        dots = [
            (paid, 100 * counted(run, source.selection)[metric])
            for paid, run in priced
            if paid is not None
        ]
        if not dots:
            continue
        mean, found = interval([paid for paid, _ in dots]).mean, interval([y for _, y in dots])
        marks = Series(
            arm.label, source.look(arm), [mean], [found.mean], [found.low], [found.high], dots
        )
        series.append(marks)
    if not series:
        return None
    return Panel("", "marks", label, f"test {metric_name(metric)} (%)", tuple(series))
