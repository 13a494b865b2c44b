"""Accuracy against the time that training took."""

from __future__ import annotations

from ..figure import Figure, Source
from ..related import compared
from .price import against


def time(source: Source) -> Figure | None:
    """One mark per arm, over the seconds of a whole run."""
    panel = against(source, "training time of a run (s)", lambda run: run.seconds)
    if panel is None:
        return None
    repeated = sum(len({row.attempt for row in run.cost}) > 1 for run in source.setting.runs)
    note = f" {repeated} of the runs were interrupted; repeated work is counted." * (repeated > 0)
    return Figure(
        name="time",
        title="Accuracy against time",
        caption=(
            "Test split. Marks are means over seeds with the 95 % t-interval, dots are single "
            f"seeds. Time is that of training alone, without evaluation.{note}"
        ),
        reading=(
            "Up and to the left is better. Times compare only where machine, threads and load were "
            "the same; forwards and backwards in the table do not depend on them."
        ),
        panels=(panel,),
        arms=compared(source),
        by_rule=True,
    )
