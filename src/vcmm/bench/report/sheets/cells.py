"""What the sheets have in common: the scores of an arm, and numbers as cells.

Shares stand in percent, differences in points. A difference that the seeds could explain is printed
as "not distinguishable", and one that could not be tested as "not tested".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ... import selection as select
from ...analysis import EQUAL, SIGNIFICANCE, UNTESTED, is_percent
from ...arms import Arm
from ...statistics import Interval, Paired, bootstrap, holm, interval, paired, wilcoxon
from ...wording import p_value
from ..sheet import Cell

Scores = Mapping[int, float]  # by seed


@dataclass(frozen=True, slots=True)
class Compared:
    """Two arms over their common seeds, and p-values after Holm over the column."""

    difference: Paired | None
    p: float | None  # of the paired t-test
    signed: float | None  # of Wilcoxon's signed-rank test
    drawn: tuple[float, float] | None  # bootstrap interval of the difference, BCa

    @property
    def verdict(self) -> str:
        """In words, where it is not plain that there is a difference."""
        if self.p is None:
            return UNTESTED
        return EQUAL if self.p >= SIGNIFICANCE else ""


def scores(arm: Arm | None, selection: str, metric: str) -> dict[int, float]:
    """One metric on test, by seed, where it is defined."""
    if arm is None:
        return {}
    counted = {seed: select.counted(run, selection) for seed, run in arm.runs.items()}
    return {seed: values[metric] for seed, values in counted.items() if metric in values}


def compared(pairs: Sequence[tuple[Scores, Scores] | None]) -> list[Compared | None]:
    """Ours against theirs, line by line. Holm's correction is over all of them."""
    found = [None if pair is None else paired(*pair) for pair in pairs]
    ranks = [None if pair is None else wilcoxon(*pair) for pair in pairs]
    adjusted = holm([None if one is None else one.p for one in found])
    signed = holm([None if one is None else one.p for one in ranks])
    return [
        None if pair is None else Compared(one, p, by_rank, _drawn(*pair))
        for pair, one, p, by_rank in zip(pairs, found, adjusted, signed, strict=True)
    ]


def _drawn(ours: Scores, theirs: Scores) -> tuple[float, float] | None:
    seeds = sorted(ours.keys() & theirs.keys())
    return bootstrap([ours[seed] - theirs[seed] for seed in seeds])


def spread(values: Scores, metric: str) -> Cell:
    """ "71.3 ± 1.2", small its interval; empty where there is nothing."""
    return Cell() if not values else _spread(interval(list(values.values())), metric)


def _spread(found: Interval, metric: str) -> Cell:
    scale, form = (100, ".1f") if is_percent(metric) else (1, ".3f")
    text, numbers = f"{scale * found.mean:{form}}", {"mean": found.mean, "n": float(found.n)}
    if found.sd is None or found.low is None or found.high is None:
        return Cell(text, values=numbers)
    small = f"[{scale * found.low:{form}}, {scale * found.high:{form}}]"
    numbers |= {"sd": found.sd, "low": found.low, "high": found.high}
    return Cell(f"{text} ± {scale * found.sd:{form}}", small, values=numbers)


def times(ratio: float | None) -> Cell:
    """ "1.14×", or nothing where it is not known."""
    return Cell() if ratio is None else Cell(f"{ratio:.2f}×", values={"mean": ratio})


def beside(cell: Cell, reported: float | None, form: str = "") -> Cell:
    """With what the paper reports in small print: a share, or a number in another form."""
    if reported is None:
        return cell
    number = form.format(reported) if form else f"{100 * reported:.1f}"
    small = f"{cell.small} paper {number}".strip()
    return replace(cell, small=small, values={**cell.values, "paper": reported})


def gained(found: Compared | None) -> Cell:
    """ "+3.1", small its interval; or "+0.4 not distinguishable"."""
    if found is None or found.difference is None:
        return Cell()
    one = found.difference
    numbers = {"mean": one.mean, "n": float(one.n)}
    parts: list[str] = []
    if one.low is not None and one.high is not None:
        numbers |= {"low": one.low, "high": one.high}
        parts.append(f"[{signed(one.low)}, {signed(one.high)}]")
    if found.drawn is not None:
        numbers |= {"bootstrap low": found.drawn[0], "bootstrap high": found.drawn[1]}
    parts += [found.verdict] * bool(found.verdict)
    return Cell(signed(one.mean), " ".join(parts), values=numbers)


def signed(share: float) -> str:
    """A difference in points."""
    return f"{100 * share:+.1f}".replace("-", "\N{MINUS SIGN}")


def known(cells: Sequence[Cell]) -> bool:
    """Whether a column holds anything."""
    return any(cell.values for cell in cells)


def probability(p: float | None) -> Cell:
    """A p-value, or nothing where there was no test."""
    return Cell() if p is None else Cell(p_value(p), values={"mean": p})


def count(number: int) -> Cell:
    """A whole number."""
    return Cell(str(number), values={"mean": float(number)})
