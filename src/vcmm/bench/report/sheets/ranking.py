"""All data sets together: mean ranks, interquartile means, and how likely an arm beats joint."""

from __future__ import annotations

from collections.abc import Sequence

from ...across import Across, across
from ...analysis import EQUAL
from ...arms import Setting
from ...statistics import Bound, Ranking, improvement, overall
from ...wording import p_value
from ..sheet import Cell, Column, Sheet, ranked


def ranking(settings: Sequence[Setting], selection: str) -> Sheet | None:
    """From the best mean rank down; None for one data set alone."""
    found = across(settings, selection)
    if found is None:
        return None
    order = found.ranking
    means = ranked([_share(overall(found.scores[name])) for name in order.arms])
    rows = tuple(
        (
            Cell(name),
            Cell(f"{rank:.2f}", values={"mean": rank}),
            Cell(_letters(order, index)),
            mean,
            _against(found, name),
        )
        for index, (name, rank, mean) in enumerate(zip(order.arms, order.ranks, means, strict=True))
    )
    return Sheet(
        name="ranking",
        title="All data sets",
        caption=(
            f"All arms that {_listed(found.data)} have, test split, epoch by {selection}: mean "
            "rank, 1 is best; interquartile mean of the runs of all data sets; and the probability "
            "that a run is better than one of joint training on the same data. In brackets: 95 % "
            "bootstrap intervals, drawn within each data set and not adjusted for how many arms "
            "there are."
        ),
        columns=(
            Column("method", number=False),
            Column("mean rank"),
            Column("groups", number=False),
            Column("interquartile mean (%)"),
            Column("better than joint (%)"),
        ),
        rows=rows,
        notes=_notes(order),
    )


def _against(found: Across, name: str) -> Cell:
    if found.reference is None or name == found.reference:
        return Cell()
    cell = _share(improvement(found.scores[name], found.scores[found.reference]))
    half = cell.values["low"] <= 0.5 <= cell.values["high"]
    return Cell(cell.text, f"{cell.small} {EQUAL}", values=cell.values) if half else cell


def _share(bound: Bound) -> Cell:
    small = f"[{100 * bound.low:.1f}, {100 * bound.high:.1f}]"
    values = {"mean": bound.value, "low": bound.low, "high": bound.high}
    return Cell(f"{100 * bound.value:.1f}", small, values=values)


def _letters(order: Ranking, index: int) -> str:
    """The groups that an arm is in: arms that share a letter are not distinguishable."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    held = [i for i, (first, last) in enumerate(order.cliques) if first <= index <= last]
    return "".join(letters[i % len(letters)] for i in held)


def _notes(order: Ranking) -> tuple[str, ...]:
    said = [
        f"Arms that share a letter are {EQUAL} by Nemenyi’s test: their mean ranks differ by less "
        f"than the critical difference, {order.critical:.2f} for {len(order.arms)} arms on "
        f"{order.data} data sets at .05."
    ]
    if order.p is not None:
        words = p_value(order.p)
        shown = words if words.startswith("<") else f"= {words}"
        said.append(f"Friedman’s test for any difference at all: p {shown}.")
    if order.critical >= len(order.arms) - 1:
        said.append(
            "With so few data sets no difference in ranks could reach the critical difference: "
            "these ranks can show nothing."
        )
    return tuple(said)


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]])
