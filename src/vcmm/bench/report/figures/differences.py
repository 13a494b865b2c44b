"""How far every arm is from joint training, with the interval of the paired difference."""

from __future__ import annotations

from ...analysis import metric_name, table
from ..figure import Figure, Panel, Series, Source
from ..related import compared


def differences(source: Source) -> Figure | None:
    """One line per arm, from the best mean difference down."""
    made = table(source.setting, source.selection)
    arms = compared(source)
    rows = [
        (row, row.difference) for row in made.rows if row.difference is not None and row.arm in arms
    ]
    if not rows:
        return None
    rows.sort(key=lambda pair: pair[1].mean)
    series = [
        Series(
            row.arm.label,
            source.look(row.arm),
            x=[100 * found.mean],
            y=[index],
            low=[None if found.low is None else 100 * found.low],
            high=[None if found.high is None else 100 * found.high],
        )
        for index, (row, found) in enumerate(rows)
    ]
    metric = metric_name(made.metric)
    return Figure(
        name="differences",
        title="Difference to joint training",
        caption=(
            f"Test {metric} minus that of joint training with the same seed (and by the same "
            "fusion, where that was trained): mean over seeds and 95 % t-interval, in percentage "
            "points."
        ),
        reading=(
            "An interval that crosses zero is compatible with no difference. The intervals are not "
            "adjusted for how many arms there are; the p-values in the table are."
        ),
        panels=(Panel("", "ranges", f"difference in {metric} (points)", "", tuple(series)),),
        arms=tuple(row.arm for row, _ in rows),
        by_rule=True,
    )
