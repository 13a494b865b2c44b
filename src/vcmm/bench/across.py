"""Arms over several data sets: which ones all of them have, and how they rank.

An arm is known here by its method, its fusion and what was changed in its controller. Learning
rates may differ, and so may options of a method that follow the length of a training: each arm is
as it was set up for its data. Scores are shares, taken as they are; nothing is rescaled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .arms import Arm, Setting
from .roles import changed, published
from .selection import counted
from .statistics import Ranking, ranking

LEAST = 2  # data sets and arms


@dataclass(frozen=True, slots=True)
class Across:
    """The runs of every arm on every data set, in the metric that each is judged by."""

    settings: tuple[Setting, ...]
    arms: Mapping[str, tuple[Arm, ...]]  # by name, one for each setting
    scores: Mapping[str, tuple[tuple[float, ...], ...]]  # by name, runs for each setting
    reference: str | None

    @property
    def data(self) -> tuple[str, ...]:
        return tuple(setting.title for setting in self.settings)

    @property
    def ranking(self) -> Ranking:
        """By the mean over seeds on each data set."""
        return ranking(
            {name: [sum(runs) / len(runs) for runs in each] for name, each in self.scores.items()}
        )


def across(settings: Iterable[Setting], selection: str = "valid") -> Across | None:
    """The published arms that all data sets have; None for one data set, or one arm."""
    chosen = _one_of_each(settings)
    named = [{name(arm): arm for arm in setting.arms if _stands(arm)} for setting in chosen]
    common = [one for one in named[0] if all(one in other for other in named)] if named else []
    if len(chosen) < LEAST or len(common) < LEAST:
        return None
    arms = {one: tuple(other[one] for other in named) for one in common}
    scores = {one: tuple(_scores(arm, selection) for arm in each) for one, each in arms.items()}
    known = [one for one in common if all(scores[one])]
    if len(known) < LEAST:
        return None
    references = {name(s.reference) for s in chosen if s.reference is not None}
    reference = references.pop() if len(references) == 1 else None
    return Across(
        tuple(chosen),
        {one: arms[one] for one in known},
        {one: scores[one] for one in known},
        reference if reference in known else None,
    )


def name(arm: Arm) -> str:
    """What an arm is called on every data set: the mean of logits goes without saying."""
    spec = arm.spec
    fusion = spec["fusion"]["name"]
    parts = [spec["method"]["name"], *([f"by {fusion}"] if fusion != "mean" else [])]
    if arm.controller != "none":
        parts += ["+", arm.controller, *(f"({option})" for option in changed(spec))]
    return " ".join(parts)


def _stands(arm: Arm) -> bool:
    return not arm.alone and published(arm.spec) and arm.spec["modalities"] is None


def _one_of_each(settings: Iterable[Setting]) -> list[Setting]:
    """The setting with the most arms for each data set, then with the most runs."""
    found: dict[str, Setting] = {}
    for setting in settings:
        data = setting.arms[0].spec["data"]["name"]
        other = found.get(data)
        if other is None or _size(setting) > _size(other):
            found[data] = setting
    return [found[data] for data in sorted(found)]


def _size(setting: Setting) -> tuple[int, int]:
    return len(setting.arms), len(setting.runs)


def _scores(arm: Arm, selection: str) -> tuple[float, ...]:
    each: Sequence[Mapping[str, float]] = [counted(run, selection) for run in arm.runs.values()]
    metric = next(iter(arm.runs.values())).metric
    return tuple(values[metric] for values in each if metric in values)
