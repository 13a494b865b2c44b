"""How many steps each parameter has taken, and with which momenta.

A parameter ages only in steps in which it has a gradient, so the parameters of one group can be of
different ages: layers that were frozen, methods that train modalities in turn, parameters added
later. Those that share an `Age` object form a cohort, and a step treats a cohort as one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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


class Ages:
    """The age of every parameter that has taken a step."""

    def __init__(self) -> None:
        self._ages: dict[Tensor, Age] = {}

    def cohorts(
        self,
        parameters: Iterable[Tensor],
        state: Mapping[Tensor, Mapping[str, Any]],
        base: Number,
    ) -> dict[Age, list[Tensor]]:
        """The parameters with a gradient, by age.

        `state` is the optimizer's. A parameter without an entry there has no history, whatever it
        had before: clearing the state is how a training phase restarts an optimizer.
        """
        cohorts: dict[Age, list[Tensor]] = {}
        found: dict[float, Age] = {}
        for parameter in parameters:
            if parameter.grad is None:
                continue
            history = state.get(parameter)
            if not history:
                age = NEWBORN
            else:
                age = self._ages.get(parameter)
                if age is None:
                    age = _age_of(history, base)
                    age = found.setdefault(float(age.steps), age)
            cohorts.setdefault(age, []).append(parameter)
        return cohorts

    def knows(self, parameter: Tensor) -> bool:
        return parameter in self._ages

    def set(self, parameters: Iterable[Tensor], age: Age) -> None:
        self._ages.update(dict.fromkeys(parameters, age))

    def reconcile(self, state: Mapping[Tensor, Mapping[str, Any]]) -> None:
        """Forget the ages that a newly loaded optimizer state contradicts."""
        for parameter, age in list(self._ages.items()):
            steps = state.get(parameter, {}).get("step")
            differs = steps is not None and float(steps) != float(age.steps)
            if differs or age.rehearsed:
                del self._ages[parameter]

    def state_dict(self, groups: Iterable[Mapping[str, Any]]) -> list[list[Any]]:
        """Per group its cohorts, as [steps, log_product, log_base, moved, positions]."""
        state: list[list[Any]] = []
        for group in groups:
            cohorts: dict[Age, list[int]] = {}
            for position, parameter in enumerate(group["params"]):
                if parameter in self._ages:
                    cohorts.setdefault(self._ages[parameter], []).append(position)
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
        self._ages = {}
        for group, cohorts in zip(groups, state, strict=True):
            for steps, log_product, log_base, moved, positions in cohorts:
                members = [group["params"][position] for position in positions]
                numbers = (float(number) for number in (steps, log_product, log_base))
                self.set(members, Age(*numbers, moved=bool(moved)))


def _age_of(history: Mapping[str, Any], base: Number) -> Age:
    """Of a parameter that the optimizer has stepped without us: always at its base momentum.

    An optimizer that counts no steps has corrected nothing so far, so nothing is left to correct.
    """
    if "step" not in history:
        return Age(math.inf, -math.inf, -math.inf)
    steps = float(history["step"])
    log_product = steps * math.log(float(base)) if steps else 0.0
    return Age(steps, log_product, log_product)
