"""A step worked out when its batch is observed, so that little is left to do when it is taken.

An optimizer's step streams every parameter through the caches, and what the hooks run has left them
by then: there a line of Python costs ten times what it costs elsewhere. So all that can be known at
the observation is worked out there. The step compares what it finds with what it was worked out
from, and is worked out anew if anything has changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat
from operator import attrgetter, is_
from typing import NamedTuple

from torch import Tensor

from .ages import Age, Ages, Cohort
from .momentum import Group, Writer, Written, advanced, correction
from .number import Number
from .probe import Probe

_gradient = attrgetter("grad")


class Part(NamedTuple):
    """What a step is going to do with one group, and what that was worked out from."""

    group: Group
    held: Group  # all that the group held then
    cohort: Cohort  # all parameters of the group
    before: Age
    after: Age
    own: Number
    beta: Number
    written: Written | None  # nothing is, as long as every momentum was the group's own

    def stands(self, group: Group) -> bool:
        """Whether this is the group, and nothing that counts has changed."""
        held, cohort, parameters = self.held, self.cohort, group["params"]
        return (
            group is self.group
            and group.keys() == held.keys()
            and all(map(is_, group.values(), held.values()))
            and cohort.age is self.before
            and cohort.consists_of(parameters)
            and not any(map(is_, map(_gradient, parameters), repeat(None)))
        )


class Plan(NamedTuple):
    """A whole step."""

    probes: Mapping[str, Probe]
    base: Mapping[str, Number]
    betas: dict[str, Number]  # what the policy is going to answer
    parts: list[Part]


def parts_of(
    groups: Sequence[Group],
    writer: Writer,
    ages: Ages,
    betas: Mapping[str, Number],
    base: Mapping[str, Number],
    *,
    exact: bool,
) -> list[Part] | None:
    """The parts of a step in which the parameters of every group step together, as they did last.

    None if they did not, or if anything is a tensor, whose value may change in place.
    """
    parts: list[Part] = []
    binding = writer.binding
    for group in groups:
        modality, cohort = group["modality"], ages.together(group["params"])
        if cohort is None or any(isinstance(value, Tensor) for value in _numbers(group)):
            return None
        held, own = {**group}, base[modality]
        beta = betas.get(modality, own)
        before = cohort.age
        after = advanced(binding, before, beta, own)
        written = None
        if after.moved:
            scale = correction(binding, after, beta, binding.counted(group)) if exact else 1.0
            written = writer.write(group, cohort.members, "", beta=beta, base=own, scale=scale)
            written.undo()  # until the step is taken
        parts.append(Part(group, held, cohort, before, after, own, beta, written))
    return parts


def _numbers(group: Group) -> list[object]:
    return [*group.get("betas", ()), *(x for key, x in group.items() if key != "params")]
