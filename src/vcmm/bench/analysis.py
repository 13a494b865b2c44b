"""What the runs say: the results table, the imbalance of the modalities, and both as JSON.

Everything is computed within a setting (`arms.py`), on the test split, at the epochs that a rule
selects (`selection.py`), over seeds (`statistics.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from . import selection as select
from .arms import Arm, Setting, settings
from .records import Run
from .statistics import Interval, Paired, holm, interval, paired

SIGNIFICANCE = 0.05
BETTER, WORSE = "better", "worse"
EQUAL = "not distinguishable"
UNTESTED = "not tested"  # one seed, or differences without any spread
UNDER_TRAINED = "under-trained"
# In the order of the table; the rest follows by name.
METRICS = ("accuracy", "macro_f1", "map", "ece", "loss", "modality_gap")
NAMES = {
    "accuracy": "accuracy",
    "macro_f1": "macro F1",
    "map": "mAP",
    "ece": "calibration error",
    "loss": "loss",
    "modality_gap": "modality gap",
}
_NO_RUNS: Mapping[int, Run] = {}
PERCENT = ("accuracy", "macro_f1", "map", "ece")


@dataclass(frozen=True, slots=True)
class Expense:
    """What an arm took, over its seeds, and how often that is what the reference took."""

    seconds: Interval  # of training, whole runs
    seconds_ratio: float | None
    rate: Interval  # seconds per 1000 samples
    rate_ratio: float | None
    peak_bytes: Interval | None
    peak_ratio: float | None
    forwards: float  # per step, so of every sample in it
    backwards: float


@dataclass(frozen=True, slots=True)
class Row:
    """An arm in the results table."""

    arm: Arm
    metrics: Mapping[str, Interval]
    difference: Paired | None  # to its reference, in the primary metric, over common seeds
    p_holm: float | None
    verdict: str | None  # None for the reference itself, or where there is none
    expense: Expense


@dataclass(frozen=True, slots=True)
class Table:
    """The results of a setting under one selection rule."""

    setting: Setting
    selection: str
    metric: str  # the primary one
    rows: tuple[Row, ...]

    def row(self, arm: Arm | None) -> Row | None:
        return next((row for row in self.rows if row.arm is arm), None)


@dataclass(frozen=True, slots=True)
class Imbalance:
    """A modality alone, and what joint training made of it."""

    modality: str
    unimodal: Interval | None  # trained alone
    probe: Interval | None  # a linear classifier on the features of its encoder in joint training
    head: Interval | None  # its own head in joint training
    gap: Paired | None  # unimodal minus probe
    verdict: str


def table(setting: Setting, selection: str = "valid") -> Table:
    """Every arm of a setting, compared with joint training by the same fusion."""
    metric = setting.runs[0].metric
    values = {id(arm): _over_seeds(arm, selection) for arm in setting.arms}
    differences = [
        None
        if (reference := setting.reference_of(arm)) is None
        else paired(_of(values[id(arm)], metric), _of(values[id(reference)], metric))
        for arm in setting.arms
    ]
    adjusted = holm([None if found is None else found.p for found in differences])
    rows = [
        Row(
            arm=arm,
            metrics=_metrics(values[id(arm)]),
            difference=difference,
            p_holm=p,
            verdict=_verdict(difference, p),
            expense=_expense(arm, setting.reference),
        )
        for arm, difference, p in zip(setting.arms, differences, adjusted, strict=True)
    ]
    return Table(setting, selection, metric, tuple(rows))


def imbalance(setting: Setting, selection: str = "valid") -> list[Imbalance]:
    """Each modality that was trained alone or probed in joint training, by name."""
    alone = {arm.alone: arm for arm in setting.arms if arm.alone and arm.controller == "none"}
    joint = setting.reference
    runs = joint.runs if joint else _NO_RUNS
    finals = {seed: select.final(run) for seed, run in runs.items()}
    counted = {seed: select.counted(run, selection) for seed, run in runs.items()}
    probed = {
        name.removesuffix("/probe") for v in finals.values() for name in v if "/probe" in name
    }
    found: list[Imbalance] = []
    for modality in sorted(alone.keys() | probed, key=str):
        runs = alone[modality].runs if modality in alone else _NO_RUNS
        by_seed = {seed: select.counted(run, selection) for seed, run in runs.items()}
        unimodal, probe = _of(by_seed, "accuracy"), _of(finals, f"{modality}/probe")
        gap = paired(unimodal, probe)
        found.append(
            Imbalance(
                modality=str(modality),
                unimodal=_interval(unimodal),
                probe=_interval(probe),
                head=_interval(_of(counted, f"{modality}/accuracy")),
                gap=gap,
                verdict=_trained(gap),
            )
        )
    return found


def results(runs: Iterable[Run], selection: str = "valid") -> list[dict[str, Any]]:
    """Every arm of every setting as JSON has it, for terminals and scripts."""
    found: list[dict[str, Any]] = []
    for setting in settings(runs):
        made = table(setting, selection)
        found += [_as_json(made, row) for row in made.rows]
    return found


def metric_name(metric: str) -> str:
    """A metric in words: "mAP", "accuracy of audio's head"."""
    modality, _, own = metric.rpartition("/")
    return f"{NAMES.get(own, own)} of {modality}'s head" if modality else NAMES.get(own, own)


def is_percent(metric: str) -> bool:
    """Whether it is a share, to be shown in percent."""
    return metric.rpartition("/")[2] in (*PERCENT, "probe")


# One arm


def _over_seeds(arm: Arm, selection: str) -> dict[int, Mapping[str, float]]:
    return {seed: select.counted(run, selection) for seed, run in arm.runs.items()}


def _of(values: Mapping[int, Mapping[str, float]], metric: str) -> dict[int, float]:
    """One metric by seed, where it is defined."""
    return {seed: row[metric] for seed, row in values.items() if metric in row}


def _interval(values: Mapping[int, float]) -> Interval | None:
    return interval(list(values.values())) if values else None


def _metrics(values: Mapping[int, Mapping[str, float]]) -> dict[str, Interval]:
    names = {name for row in values.values() for name in row if not name.endswith("/probe")}
    order = [name for name in METRICS if name in names]
    order += sorted(names - set(order))
    return {name: interval(list(_of(values, name).values())) for name in order}


def _verdict(difference: Paired | None, p: float | None) -> str | None:
    if difference is None:
        return None
    if p is None:
        return UNTESTED
    if p >= SIGNIFICANCE:
        return EQUAL
    return BETTER if difference.mean > 0 else WORSE


def _trained(gap: Paired | None) -> str:
    if gap is None or gap.low is None or gap.high is None:
        return UNTESTED
    if gap.low > 0:
        return UNDER_TRAINED
    return "better trained than alone" if gap.high < 0 else EQUAL


def _expense(arm: Arm, reference: Arm | None) -> Expense:
    seconds = {seed: run.seconds for seed, run in arm.runs.items()}
    rate = {seed: _rate(run) for seed, run in arm.runs.items()}
    peaks = _peaks(arm)
    other = reference.runs if reference else _NO_RUNS
    rows = [row for run in arm.runs.values() for row in run.cost]
    steps = sum(row.steps for row in rows)
    return Expense(
        seconds=interval(list(seconds.values())),
        seconds_ratio=_ratio(seconds, {seed: run.seconds for seed, run in other.items()}),
        rate=interval(list(rate.values())),
        rate_ratio=_ratio(rate, {seed: _rate(run) for seed, run in other.items()}),
        peak_bytes=_interval(peaks),
        peak_ratio=_ratio(peaks, _peaks(reference) if reference else {}),
        forwards=sum(row.forwards for row in rows) / steps,
        backwards=sum(row.backwards for row in rows) / steps,
    )


def _rate(run: Run) -> float:
    return 1000 * run.seconds / sum(row.samples for row in run.cost)


def _peaks(arm: Arm) -> dict[int, float]:
    runs = arm.runs.items()
    return {seed: float(run.peak_bytes) for seed, run in runs if run.peak_bytes is not None}


def _ratio(ours: Mapping[int, float], theirs: Mapping[int, float]) -> float | None:
    """Of the sums over the seeds that both have."""
    seeds = ours.keys() & theirs.keys()
    below = sum(theirs[seed] for seed in seeds)
    return sum(ours[seed] for seed in seeds) / below if below else None


def _as_json(made: Table, row: Row) -> dict[str, Any]:
    expense = row.expense
    return {
        "setting": made.setting.title,
        "arm": row.arm.label,
        "method": row.arm.method,
        "controller": row.arm.controller,
        "reference": row.arm is made.setting.reference,
        "seeds": list(row.arm.runs),
        "runs": [run.hash for run in row.arm.runs.values()],
        "selection": made.selection,
        "warning": select.warning(made.selection),
        "metric": made.metric,
        "metrics": {name: value._asdict() for name, value in row.metrics.items()},
        "difference": None if row.difference is None else row.difference._asdict(),
        "p_holm": row.p_holm,
        "verdict": row.verdict,
        "seconds": expense.seconds._asdict(),
        "seconds_ratio": expense.seconds_ratio,
        "seconds_per_1000_samples": expense.rate._asdict(),
        "seconds_per_1000_samples_ratio": expense.rate_ratio,
        "peak_bytes": None if expense.peak_bytes is None else expense.peak_bytes._asdict(),
        "peak_bytes_ratio": expense.peak_ratio,
        "forwards_per_sample": expense.forwards,
        "backwards_per_sample": expense.backwards,
    }
