"""How many steps each parameter has taken, and with which momenta.

A parameter ages only in steps in which it has a gradient, so the parameters of one group can be of
different ages: layers that were frozen, methods that train modalities in turn, parameters added
later. Those that share an `Age` object form a cohort, and a step treats a cohort as one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import is_
from typing import Any

from torch import Tensor

from .probe import Number


@dataclass(frozen=True, slots=True, eq=False)
class Age:
    """The momentum history of a parameter. Cohorts are told apart by identity, not by value."""

    steps: Number = 0  # t
    log_product: Number = 0.0  # log P_t, P_t the product of the betas so far
    log_base: Number = 0.0  # the same of the base momenta, for corrections relative to the base
    moved: bool = False  # whether any beta so far was another than the base
    rehearsed: bool = False  # not lived, but left by `Step.rehearse`


NEWBORN = Age()


@dataclass(slots=True)
class Cohort:
    """Parameters that stepped together last time, in that order, and their age."""

    members: list[Tensor]  # empty once any of them has left for another cohort
    age: Age

    def consists_of(self, parameters: list[Tensor]) -> bool:
        members = self.members
        return parameters is members or (
            len(parameters) == len(members) and all(map(is_, parameters, members))
        )


class Ages:
    """The age of every parameter that has taken a step."""

    def __init__(self) -> None:
        self._cohorts: dict[Tensor, Cohort] = {}
        self._known: list[Tensor] = []  # whose entries the optimizer had after the last step
        self._stood = False  # what `stands` found last

    def cohorts(
        self,
        parameters: Iterable[Tensor],
        state: Mapping[Tensor, Mapping[str, Any]],
        base: Number,
        stands: bool = False,
        counted: int | None = None,
    ) -> dict[Age, list[Tensor]]:
        """The parameters with a gradient, by age.

        `state` is the optimizer's. A parameter without an entry there has no history, whatever it
        had before: clearing the state is how a training phase restarts an optimizer. That it
        `stands` as it was after the last step is known by `stands`, asked once for all groups.
        `counted` is how many steps the group has counted, if it does so in the parameters' place.
        """
        stepping = [p for p in parameters if p.grad is not None]
        # Nearly always those that stepped together last time do so again.
        together = self._cohorts.get(stepping[0]) if stepping else None
        if stands and together and together.consists_of(stepping):
            return {together.age: together.members}
        cohorts: dict[Age, list[Tensor]] = {}
        found: dict[float, Age] = {}
        for parameter in stepping:
            history = state.get(parameter)
            if not history:
                age = NEWBORN
            elif parameter in self._cohorts:
                age = self._cohorts[parameter].age
            else:
                age = _age_of(history, base, counted)
                age = found.setdefault(float(age.steps), age)
            cohorts.setdefault(age, []).append(parameter)
        return cohorts

    def together(self, parameters: list[Tensor]) -> Cohort | None:
        """The cohort of exactly these parameters, if they are one."""
        cohort = self._cohorts.get(parameters[0]) if parameters else None
        return cohort if cohort and cohort.consists_of(parameters) else None

    def stands(self, state: Mapping[Tensor, Mapping[str, Any]]) -> bool:
        """Whether nobody has removed or cleared an entry since the last step, nor added one."""
        known = self._known  # nothing, after a checkpoint was loaded
        same = bool(known) and len(state) == len(known) and all(map(is_, state, known))
        self._stood = same and all(state.values())
        return self._stood

    def remember(self, state: Mapping[Tensor, Any]) -> None:
        """The optimizer's state after a step, in which all that took the step have an entry."""
        if not self._stood or len(state) != len(self._known):  # a step removes no entry
            self._known = list(state)

    def knows(self, parameter: Tensor) -> bool:
        return parameter in self._cohorts

    def set(self, parameters: list[Tensor], age: Age) -> None:
        if together := self.together(parameters):
            together.age = age
            return
        members = list(parameters)
        self._forget(members)
        self._cohorts.update(dict.fromkeys(members, Cohort(members, age)))

    def _forget(self, parameters: Iterable[Tensor]) -> None:
        for parameter in parameters:
            if parameter in self._cohorts:
                self._cohorts.pop(parameter).members = []

    def catch_up(
        self,
        groups: Iterable[Mapping[str, Any]],
        state: Mapping[Tensor, Mapping[str, Any]],
        base: Mapping[str, Number],
    ) -> None:
        """Take in the steps that the optimizer took without us, all of them at its own momentum."""
        late: dict[tuple[Age, float, str], list[Tensor]] = {}
        for group in groups:
            for parameter in group["params"]:
                cohort = self._cohorts.get(parameter)
                steps = state.get(parameter, {}).get("step")
                if cohort is not None and steps is not None:
                    missed = float(steps) - float(cohort.age.steps)
                    if missed:
                        key = (cohort.age, missed, str(group["modality"]))
                        late.setdefault(key, []).append(parameter)
        for (age, missed, modality), parameters in late.items():
            self._forget(parameters)
            if missed > 0:
                more = missed * math.log(float(base[modality]))
                products = age.log_product + more, age.log_base + more
                self.set(parameters, Age(age.steps + missed, *products, moved=age.moved))

    def reconcile(self, state: Mapping[Tensor, Mapping[str, Any]]) -> None:
        """Forget the ages that a newly loaded optimizer state contradicts."""
        for parameter, cohort in list(self._cohorts.items()):
            steps = state.get(parameter, {}).get("step")
            differs = steps is not None and float(steps) != float(cohort.age.steps)
            if differs or cohort.age.rehearsed:
                self._forget([parameter])

    def state_dict(self, groups: Iterable[Mapping[str, Any]]) -> list[list[Any]]:
        """Per group its cohorts, as [steps, log_product, log_base, moved, positions]."""
        state: list[list[Any]] = []
        for group in groups:
            cohorts: dict[Age, list[int]] = {}
            for position, parameter in enumerate(group["params"]):
                if parameter in self._cohorts:
                    cohorts.setdefault(self._cohorts[parameter].age, []).append(position)
            state.append(
                [
                    [float(a.steps), float(a.log_product), float(a.log_base), a.moved, positions]
                    for a, positions in cohorts.items()
                ]
            )
        return state

    def load_state_dict(
        self, state: Iterable[Iterable[Any]], groups: Iterable[Mapping[str, Any]]
    ) -> None:
        self._cohorts, self._known, self._stood = {}, [], False
        for group, cohorts in zip(groups, state, strict=True):
            for steps, log_product, log_base, moved, positions in cohorts:
                members = [group["params"][position] for position in positions]
                numbers = (float(number) for number in (steps, log_product, log_base))
                self.set(members, Age(*numbers, moved=bool(moved)))


def _age_of(history: Mapping[str, Any], base: Number, counted: int | None) -> Age:
    """Of a parameter that the optimizer has stepped without us: always at its base momentum.

    An optimizer that counts no steps has corrected nothing so far, so nothing is left to correct.
    """
    if "step" not in history and counted is None:
        return Age(math.inf, -math.inf, -math.inf)
    steps = float(history["step"] if counted is None else counted)
    log_product = steps * math.log(float(base)) if steps else 0.0
    return Age(steps, log_product, log_product)
