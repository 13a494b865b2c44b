"""One optimizer step under way: what has been written into the groups, until it is put back."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.optim import Optimizer

from .ages import NEWBORN, Age, Ages
from .momentum import Group, Writer, Written, advanced, correction
from .probe import Number


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
        self._aged: list[tuple[list[Tensor], Age]] = []

    def write(
        self, betas: Mapping[str, Number], base: Mapping[str, Number], *, exact: bool
    ) -> None:
        """Give every modality its momentum; one that `betas` leaves out keeps its base."""
        groups: list[Group] = []
        for index, group in enumerate(self.optimizer.param_groups):
            modality = group.get("modality")
            if modality is None:
                groups.append(group)
                continue
            own = base[modality]
            beta = betas.get(modality, own)
            cohorts = self.ages.cohorts(group["params"], self.optimizer.state, own)
            older = [(ps, advanced(age, beta, own)) for age, ps in cohorts.items()]
            self._aged += older
            parts = [group]
            if len(older) > 1 and any(after.moved for _, after in older):
                parts = [{**group, "params": parameters} for parameters, _ in older]
                self._split.append((group, parts))
            for number, (part, (parameters, after)) in enumerate(zip(parts, older, strict=False)):
                if after.moved:
                    self._seed(parameters)
                    scale = correction(self._writer.binding, after, beta) if exact else 1.0
                    slot = f"{index}.{number}"
                    self._written.append(
                        self._writer.write(part, parameters, slot, beta=beta, base=own, scale=scale)
                    )
            groups += parts
        if self._split:
            self.optimizer.param_groups[:] = groups

    def _seed(self, parameters: list[Tensor]) -> None:
        """Start the buffers at zero that torch's SGD would start with the first gradient."""
        if self._writer.binding.correction != "anchored":
            return
        for parameter in parameters:
            state = self.optimizer.state[parameter]
            if state.get("momentum_buffer") is None:
                state["momentum_buffer"] = torch.zeros_like(parameter)
                self.ages.set([parameter], NEWBORN)  # should the step raise, it has no history

    def undo(self) -> None:
        """Put back what the groups held before, and forget the step: it raised, or it is over."""
        for written in self._written:
            written.undo()
        if self._split:
            whole = {id(part): group for group, parts in self._split for part in parts}
            restored: list[Group] = []
            for group in self.optimizer.param_groups:
                original = whole.get(id(group), group)
                if original is not group:  # carry over what was changed in the part meanwhile
                    original.update({key: v for key, v in group.items() if key != "params"})
                if not restored or restored[-1] is not original:
                    restored.append(original)
            self.optimizer.param_groups[:] = restored
        self._written, self._split, self._aged = [], [], []

    def finish(self) -> None:
        """The step was taken: its parameters are older now."""
        for parameters, after in self._aged:
            self.ages.set(parameters, after)
        self.undo()

    def rehearse(self) -> bool:
        """Whether this step is none, but the way in which DistributedCheckpoint makes a state.

        It steps an optimizer that has no state yet, with all gradients and learning rates zero. The
        optimizer may count that step, but no gradient entered a moment, so no beta entered P.
        """
        optimizer = self.optimizer
        if optimizer.state or any(group["lr"] != 0 for group in optimizer.param_groups):
            return False
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        stepped = [p for p in parameters if p.grad is not None]
        if not stepped or any(bool(torch.count_nonzero(p.grad)) for p in stepped):
            return False
        counted = self._writer.binding.correction == "bias"
        unknown = [p for p in stepped if not self.ages.knows(p)]
        self._aged = [(unknown, Age(1.0, 0.0, 0.0) if counted else NEWBORN)]
        return True
