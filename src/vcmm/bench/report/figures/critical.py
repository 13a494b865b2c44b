"""How all arms rank over several data sets, and which of them may be told apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...across import across
from ...arms import Arm, Setting
from ...wording import p_value
from ..figure import Figure, Panel, Series
from ..style import DASHES, SYMBOLS, Look

OTHER = Look("muted", DASHES[0], SYMBOLS[0])


def critical(
    settings: Sequence[Setting], selection: str, looks: Mapping[str, Look]
) -> Figure | None:
    """One line per arm, from the best mean rank down; None for one data set alone."""
    found = across(settings, selection)
    if found is None:
        return None
    order = found.ranking
    half = order.critical / 2
    each = list(zip(order.arms, order.ranks, strict=True))[::-1]
    series = [
        Series(name, looks.get(name, OTHER), [rank], [index], [rank - half], [rank + half])
        for index, (name, rank) in enumerate(each)
    ]
    said = ""
    if order.p is not None:
        words = p_value(order.p)
        said = f" Friedman's test for any difference: p {'' if words[0] == '<' else '= '}{words}."
    return Figure(
        name="critical",
        title="Ranks over all data sets",
        caption=(
            f"Mean rank of each arm over {', '.join(found.data)}, 1 is best, by the mean on test "
            f"over seeds. Bars: Nemenyi's critical difference at .05, {order.critical:.2f}.{said}"
        ),
        reading=(
            "Two arms whose bars overlap are not distinguishable. With few data sets the bars are "
            "wide, and ranks alone show little."
        ),
        panels=(Panel("", "ranges", "mean rank", "", tuple(series), from_zero=False),),
        arms=tuple(_sources(found.data, found.arms)),
        by_rule=True,
    )


def _sources(data: Sequence[str], arms: Mapping[str, Sequence[Arm]]) -> list[Arm]:
    """The arms by name and data set, for the list of runs behind the figure."""
    return [
        Arm(f"{name}, {title}", arm.runs)
        for name, each in arms.items()
        for title, arm in zip(data, each, strict=True)
    ]
