"""One optimizer step under way: what has been written into the groups, until it is put back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from .ages import NEWBORN, Age, Ages
from .guard import Trace, tagged, trace_of
from .momentum import Group, Writer, Written, advanced, correction
from .plan import Part
from .probe import Number


class Ageing(NamedTuple):
    """A cohort that the step is about to make older."""

    parameters: list[Tensor]
    before: Age
    after: Age
    own: Number | None  # with which it ages if the step is taken without us; None: as `after`
    trace: Trace | None  # of its first parameter, before the step


class Step:
    """Writes every cohort's momentum and learning rate, ages the parameters, and undoes it all.

    The parameters of a group that differ in age need different corrections, so for the duration of
    the step such a group is replaced by one group per cohort.
    """

    def __init__(self, optimizer: Optimizer, writer: Writer, ages: Ages) -> None:
        self.optimizer = optimizer
        self.ages = ages
        self._writer = writer
        self._written: list[Written] = []
        self._split: list[tuple[Group, list[Group]]] = []
        self._ageing: list[Ageing] = []
        self._abandoned: list[Ageing] = []

    @property
    def open(self) -> bool:
        """Whether a step was begun and neither finished nor abandoned."""
        return bool(self._ageing)

    def write(
        self, betas: Mapping[str, Number], base: Mapping[str, Number], *, exact: bool
    ) -> None:
        """Give every modality its momentum; one that `betas` leaves out keeps its base."""
        self._abandoned = []
        stands = self.ages.stands(self.optimizer.state)
        groups: list[Group] = []
        for index, group in enumerate(self.optimizer.param_groups):
            modality = group.get("modality")
            if modality is None:
                groups.append(group)
                continue
            own = base[modality]
            beta = betas.get(modality, own)
            cohorts = self._older(group, beta, own, stands)
            parts = [group]
            if len(cohorts) > 1 and any(cohort.after.moved for cohort in cohorts):
                parts = [{**group, "params": cohort.parameters} for cohort in cohorts]
                self._split.append((group, parts))
            for number, (part, cohort) in enumerate(zip(parts, cohorts, strict=False)):
                if cohort.after.moved:
                    binding, after = self._writer.binding, cohort.after
                    counted = binding.counted(part)
                    scale = correction(binding, after, beta, counted) if exact else 1.0
                    slot = f"{index}.{number}"
                    written = self._writer.write(
                        part, cohort.parameters, slot, beta=beta, base=own, scale=scale
                    )
                    self._written.append(written)
            groups += parts
        if self._split:
            self.optimizer.param_groups[:] = groups

    def follow(self, parts: list[Part]) -> None:
        """Do what was planned, and what still `holds`."""
        self._abandoned = []
        state = self.optimizer.state
        for _, _, cohort, before, after, own, _, written in parts:
            members = cohort.members
            trace = trace_of(state.get(members[0]))
            self._ageing.append(Ageing(members, before, after, own, trace))
            if written is not None:
                written.redo()
                self._written.append(written)

    def holds(self, parts: list[Part], groups: list[Group]) -> bool:
        """Whether nothing that a plan was made from has changed."""
        return (
            len(parts) == len(groups)
            and all(map(Part.stands, parts, groups))
            and self.ages.stands(self.optimizer.state)
        )

    def _older(self, group: Group, beta: Number, own: Number, stands: bool) -> list[Ageing]:
        """The cohorts of a group, each with the age that this step brings it to."""
        older: list[Ageing] = []
        state, binding = self.optimizer.state, self._writer.binding
        counted = binding.counted(group)
        cohorts = self.ages.cohorts(group["params"], state, own, stands, counted)
        for age, parameters in cohorts.items():
            after = advanced(binding, age, beta, own)
            if after.moved and binding.correction == "anchored":
                self._seed(parameters)
            older.append(Ageing(parameters, age, after, own, trace_of(state.get(parameters[0]))))
        self._ageing += older
        return older

    def seed(self) -> None:
        """Prepare for a step that the kernel is going to skip: see `_seed`."""
        if self._writer.binding.correction == "anchored":
            for group in tagged(self.optimizer):
                self._seed(p for p in group["params"] if p.grad is not None)

    def _seed(self, parameters: Iterable[Tensor]) -> None:
        """Start the buffers at zero that torch's SGD would start with the first gradient.

        It starts them uninitialized if the fused kernel skips the first step for an overflow.
        """
        for parameter in parameters:
            state = self.optimizer.state[parameter]
            if state.get("momentum_buffer") is None:
                state["momentum_buffer"] = torch.zeros_like(parameter)
                self.ages.set([parameter], NEWBORN)  # should the step raise, it has no history

    def finish(self) -> None:
        """The step was taken: its parameters are older now."""
        for cohort in self._abandoned:
            before, after, own = cohort.before, cohort.after, cohort.own
            at_base = after if own is None else advanced(self._writer.binding, before, own, own)
            self.ages.set(cohort.parameters, at_base)
        for cohort in self._ageing:
            self.ages.set(cohort.parameters, cohort.after)
        self._abandoned = []
        self.ages.remember(self.optimizer.state)
        self.undo()

    def abandon(self) -> bool:
        """The step raised. Whose optimizer state has moved has taken it; whether any has.

        If it did not raise, but is being looked at from within, it goes on at the base momentum.
        """
        moved = [cohort for cohort in self._ageing if self._has_moved(cohort)]
        for cohort in moved:
            self.ages.set(cohort.parameters, cohort.after)
        self._abandoned = [cohort for cohort in self._ageing if not self._has_moved(cohort)]
        taken = {id(parameter) for cohort in moved for parameter in cohort.parameters}
        for written in self._written:
            written.undo_decay(taken)
        self.undo()
        return bool(moved)

    def _has_moved(self, cohort: Ageing) -> bool:
        if not cohort.parameters:
            return False
        before, now = cohort.trace, trace_of(self.optimizer.state.get(cohort.parameters[0]))
        if before is None or now is None:
            # A fresh state is counted up in place, but SGD's buffer is made of the first gradient.
            anchored = self._writer.binding.correction == "anchored"
            return now is not None and (anchored or now[1] > 0)
        return now[0] is not before[0] or now[1] != before[1]

    def undo(self) -> None:
        """Put back what the groups held before."""
        for written in self._written:
            written.undo()
        for original, parts in self._split:
            for part in parts:  # carry over what was changed in it meanwhile
                original.update({key: v for key, v in part.items() if key != "params"})
        if self._split:
            self.optimizer.param_groups[:] = self._rejoined()
        self._written, self._split, self._ageing = [], [], []

    def _rejoined(self) -> list[Group]:
        whole = {id(part): group for group, parts in self._split for part in parts}
        groups = [whole.get(id(group), group) for group in self.optimizer.param_groups]
        return [g for i, g in enumerate(groups) if i == 0 or g is not groups[i - 1]]

    def rehearse(self) -> bool:
        """Whether this step is none, but the way in which DistributedCheckpoint makes a state.

        It steps an optimizer that has no state yet, with all gradients and learning rates zero. The
        optimizer may count that step, but no gradient entered a moment, so no beta entered P.
        """
        optimizer = self.optimizer
        if optimizer.state or any(_may_learn(group["lr"]) for group in optimizer.param_groups):
            return False
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        stepped = [p for p in parameters if p.grad is not None]
        if not stepped or any(bool(torch.count_nonzero(p.grad)) for p in stepped):
            return False
        counted = self._writer.binding.correction != "anchored"
        age = Age(1.0, 0.0, 0.0, rehearsed=True) if counted else Age(rehearsed=True)
        for group in tagged(optimizer):
            unknown = [p for p in group["params"] if p.grad is not None and not self.ages.knows(p)]
            self._ageing.append(Ageing(unknown, NEWBORN, age, None, None))
            if group.get("weight_decay"):  # it would enter the moments as a gradient
                self._written.append(Written(group, {"weight_decay": 0.0}))
        return True


def after_closure(
    closure: Callable[[], Any],
    begin: Callable[[], None],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same arguments of `Optimizer.step`, itself the first, with `begin` behind the closure.

    The optimizer calls the closure first, which makes the gradients, and reads its groups then.
    """

    def closure_then_begin() -> Any:
        loss = closure()
        begin()
        return loss

    if len(args) > 1:
        return (args[0], closure_then_begin, *args[2:]), dict(kwargs)
    return args, {**kwargs, "closure": closure_then_begin}


def _may_learn(lr: Number) -> bool:
    """Whether a learning rate is not zero; one on a device is not asked."""
    return lr != 0 if not isinstance(lr, Tensor) else lr.device.type != "cpu" or bool(lr != 0)
