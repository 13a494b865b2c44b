"""What every modality can do alone, and what joint training makes of it."""

from __future__ import annotations

from ... import analysis
from ...statistics import Interval
from ..figure import Figure, Panel, Series, Source
from ..style import BARS, DASHES, SYMBOLS, Look


def imbalance(source: Source) -> Figure | None:
    """Three bars per modality: alone, its encoder in joint training, its head in joint training."""
    found = analysis.imbalance(source.setting, source.selection)
    if not found:
        return None
    measures = {
        "trained alone": [one.unimodal for one in found],
        "encoder in joint training": [one.probe for one in found],
        "own head in joint training": [one.head for one in found],
    }
    names = [one.modality for one in found]
    series = [
        _bars(label, BARS[index], names, values)
        for index, (label, values) in enumerate(measures.items())
        if any(values)
    ]
    behind = [one.modality for one in found if one.verdict == analysis.UNDER_TRAINED]
    verdict = f"Under-trained: {', '.join(behind)}." if behind else "None is shown to be so here."
    return Figure(
        name="imbalance",
        title="Modalities alone and in joint training",
        caption=(
            "Test accuracy of each modality: trained alone, of a linear classifier fitted on the "
            "frozen features of its encoder after joint training, and of its own head in joint "
            "training. Means over seeds with 95 % t-intervals."
        ),
        reading=(
            "A modality is under-trained when its encoder does worse after joint training than "
            "alone, by more than the seeds explain: the paired interval of first bar minus second "
            f"is above zero. {verdict}"
        ),
        panels=(Panel("", "bars", "", "test accuracy (%)", tuple(series)),),
        arms=tuple(
            arm for arm in source.setting.arms if arm.alone or arm is source.setting.reference
        ),
        by_rule=True,
    )


def _bars(label: str, colour: str, names: list[str], values: list[Interval | None]) -> Series:
    return Series(
        label,
        Look(colour, DASHES[0], SYMBOLS[0]),
        x=names,
        y=[None if one is None else 100 * one.mean for one in values],
        low=[None if one is None or one.low is None else 100 * one.low for one in values],
        high=[None if one is None or one.high is None else 100 * one.high for one in values],
    )
