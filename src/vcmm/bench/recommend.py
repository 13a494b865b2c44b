"""The recommendation: what the runs of a setting mean for whoever made them, in plain sentences.

It says no more than the tests behind it. A difference that seeds alone could explain is "not
distinguishable", however large it looks. One seed is never enough to say anything. An arm that
beats joint training, but not the best single modality, is told apart from one that beats both.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from . import selection as select
from .analysis import (
    BETTER,
    EQUAL,
    UNDER_TRAINED,
    UNTESTED,
    WORSE,
    Imbalance,
    Row,
    Table,
    imbalance,
    metric_name,
    table,
)
from .arms import Setting
from .statistics import Paired, paired
from .wording import p_value

JOINT = "joint training"
FEW = 5  # below this many seeds an interval is several times as wide as the spread


def recommend(setting: Setting, selection: str = "valid") -> list[str]:
    """A few sentences: are the modalities imbalanced, what helps, how sure is it, what it costs."""
    made = table(setting, selection)
    warned = select.warning(selection)
    sentences = [warned] if warned else []
    reference = made.row(setting.reference)
    if reference is None or made.metric not in reference.metrics:
        return [
            *sentences,
            "There is no run of joint training without a controller to compare with. Add one: "
            "`vcmm run --method joint`, with the other options as they are.",
        ]
    sentences.append(_imbalance(imbalance(setting, selection)))
    sentences += _against_the_best_single(made, reference)
    sentences += _what_helps(made, selection)
    sentences += _what_hurts(made)
    sentences.append(_how_sure(made))
    return [sentence for sentence in sentences if sentence]


# The parts


def _imbalance(found: Sequence[Imbalance]) -> str:
    if not found:
        return "No modality was trained alone or probed, so nothing is known of their balance."
    behind = [one for one in found if one.verdict == UNDER_TRAINED]
    if behind:
        verb = "is" if len(behind) == 1 else "are"
        names = _listed([one.modality for one in behind])
        said = [f"The modalities are imbalanced: {names} {verb} under-trained in joint training."]
        said += [
            f"The encoder of {one.modality} reaches {_percent(one.unimodal.mean)} alone and "
            f"{_percent(one.probe.mean)} in joint training, a gap of {_points(one.gap)}."
            for one in behind
            if one.unimodal and one.probe
        ]
        return " ".join(said)
    unknown = [one.modality for one in found if one.gap is None or one.gap.n == 1]
    if unknown:
        return (
            f"Whether the modalities are imbalanced cannot be told: {_listed(unknown)} must be "
            "both trained alone and probed in joint training, with two seeds or more."
        )
    untested = [one.modality for one in found if one.verdict == UNTESTED]
    if untested:
        return (
            f"Whether the modalities are imbalanced cannot be told: for {_listed(untested)} the "
            "difference is the same with every seed, so it has no spread to test it by."
        )
    return (
        "No modality was found to be under-trained: no encoder does worse after joint training "
        "than alone by more than the seeds explain."
    )


def _against_the_best_single(made: Table, reference: Row) -> list[str]:
    single = _best([row for row in made.rows if row.arm.alone], made.metric)
    if single is None or single.difference is None:
        return []
    name, ours = single.arm.alone, reference.metrics[made.metric].mean
    theirs = single.metrics[made.metric].mean
    shares = f"joint training {_percent(ours)}, {name} alone {_percent(theirs)}"
    numbers = f"in {metric_name(made.metric)}, {shares}"
    if single.verdict == BETTER:
        return [
            f"Joint training is below the best single modality: {numbers}, a difference of "
            f"{_points(single.difference, single.p_holm)}."
        ]
    if single.verdict == WORSE:
        return [
            f"Joint training is above the best single modality: {numbers}, a difference of "
            f"{_points(_turned(single.difference), single.p_holm)}."
        ]
    return [f"Joint training and the best single modality are {_unsure(single)}: {numbers}."]


def _what_helps(made: Table, selection: str) -> list[str]:
    """The best arm, how far it is ahead, what it costs, and what it does not show."""
    others = [row for row in made.rows if not row.arm.alone and row.difference is not None]
    if not others:
        return ["No method was compared with joint training."]
    helping = [row for row in others if row.verdict == BETTER]
    best = _best(helping, made.metric)
    if best is None:
        largest = max(others, key=lambda row: row.difference.mean if row.difference else 0.0)
        return [
            "Nothing that was compared is shown to be better than joint training. The largest "
            f"difference is that of {largest.arm.label}: "
            f"{_points(largest.difference, largest.p_holm)}, {_unsure(largest)}."
        ]
    said = [
        f"{best.arm.label} is better than {_compared_with(made, best)} by "
        f"{_points(best.difference, best.p_holm)}{_price(best)}."
    ]
    rivals = [row for row in helping if row is not best]
    if rivals:
        said.append(_rivals(made, best, rivals, selection))
    return said + _still_below(made, best, selection)


def _rivals(made: Table, best: Row, rivals: Sequence[Row], selection: str) -> str:
    """Whether the best arm is ahead of the others that help, or only looks so."""
    apart = [row for row in rivals if _apart(_between(made, best, row, selection))]
    close = [row.arm.label for row in rivals if row not in apart]
    names = _listed([row.arm.label for row in rivals])
    verb = "is" if len(rivals) == 1 else "are"
    said = f"{names} {verb} better than joint training too"
    if close:
        return f"{said}; {best.arm.label} and {_listed(close)} are {EQUAL} from one another."
    return f"{said}, and {best.arm.label} is ahead of {'it' if len(rivals) == 1 else 'them'}."


def _still_below(made: Table, best: Row, selection: str) -> list[str]:
    """A method may beat joint training and still lose to a single modality."""
    single = _best([row for row in made.rows if row.arm.alone], made.metric)
    if single is None:
        return []
    found = _between(made, best, single, selection)
    if found is None or (found.mean > 0 and _apart(found)):
        return []
    if _apart(found):
        return [f"It is still below {single.arm.alone} alone, by {_points(_turned(found))}."]
    return [f"It is {EQUAL} from {single.arm.alone} alone ({_points(found)})."]


def _what_hurts(made: Table) -> list[str]:
    parts = [
        f"{row.arm.label} ({_behind(made, row, row.difference)})"
        for row in made.rows
        if row.verdict == WORSE and not row.arm.alone and row.difference
    ]
    return [f"Worse than {JOINT}: {_listed(parts)}."] if parts else []


def _how_sure(made: Table) -> str:
    """How many seeds there are, and how small a difference they could show."""
    counts = [len(row.arm.runs) for row in made.rows]
    least = min(counts)
    if max(counts) == 1:
        return (
            "There is one seed. It says nothing of the spread between seeds, so no difference "
            f"could be tested. Run {FEW} seeds or more."
        )
    widths = [
        (row.difference.high - row.difference.low) / 2
        for row in made.rows
        if row.difference and row.difference.low is not None and row.difference.high is not None
    ]
    seeds = f"{least} seed{'s' * (least > 1)}"
    if least != max(counts):
        seeds = f"between {least} and {max(counts)} seeds"
    if not widths:
        return f"All of this rests on {seeds}, and no difference had a spread to test it by."
    said = (
        f"All of this rests on {seeds}; half of the intervals around a difference are wider than "
        f"±{100 * median(widths):.1f} points, and a smaller difference would go unseen"
    )
    return f"{said}. {FEW} seeds or more would tell more." if least < FEW else f"{said}."


# Words


def _compared_with(made: Table, row: Row) -> str:
    """Joint training, by its name where it is not the reference of all."""
    own = made.setting.reference_of(row.arm)
    return JOINT if own is None or own is made.setting.reference else own.label


def _behind(made: Table, row: Row, difference: Paired) -> str:
    """ "by 5.1 points", and what that is behind where it is not the reference of all."""
    points, own = f"{-100 * difference.mean:.1f} points", _compared_with(made, row)
    return f"by {points}" if own == JOINT else f"{points} below {own}"


def _best(rows: Sequence[Row], metric: str) -> Row | None:
    known = [row for row in rows if metric in row.metrics]
    return max(known, key=lambda row: row.metrics[metric].mean, default=None)


def _between(made: Table, ours: Row, theirs: Row, selection: str) -> Paired | None:
    ours_by_seed, theirs_by_seed = (
        {
            seed: values[made.metric]
            for seed, run in row.arm.runs.items()
            if made.metric in (values := select.counted(run, selection))
        }
        for row in (ours, theirs)
    )
    return paired(ours_by_seed, theirs_by_seed)


def _apart(found: Paired | None) -> bool:
    return found is not None and found.p is not None and found.p < 0.05


def _turned(found: Paired) -> Paired:
    low, high = found.low, found.high
    swapped = (None, None) if low is None or high is None else (-high, -low)
    return found._replace(mean=-found.mean, low=swapped[0], high=swapped[1])


def _price(row: Row) -> str:
    """What it costs, as far as that was measured."""
    expense = row.expense
    parts = [
        f"{ratio:.2f} times the {what}"
        for ratio, what in ((expense.seconds_ratio, "time"), (expense.peak_ratio, "memory"))
        if ratio is not None
    ]
    return f", at {' and '.join(parts)}" if parts else ""


def _unsure(row: Row) -> str:
    if row.p_holm is not None:
        return EQUAL
    if row.difference is not None and row.difference.n > 1:
        return "not tested, because it is the same with every seed"
    return "not tested, for want of common seeds"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _points(found: Paired | None, p: float | None = None) -> str:
    """ "3.1 points (95 % interval 1.2 to 5.0, Holm p = 0.012)", as far as it is known."""
    if found is None:
        return "an unknown amount"
    known: list[str] = []
    if found.low is not None and found.high is not None:
        known.append(f"95 % interval {100 * found.low:.1f} to {100 * found.high:.1f}")
    if p is not None:
        words = p_value(p)
        known.append(f"Holm p {words}" if words.startswith("<") else f"Holm p = {words}")
    return f"{100 * found.mean:.1f} points" + (f" ({', '.join(known)})" if known else "")


def _listed(words: Sequence[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else list(words))
