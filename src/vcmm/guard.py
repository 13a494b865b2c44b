"""Notices what a guest in the optimizer cannot prevent: steps without it, and steps not taken."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from .momentum import Group


def tagged(optimizer: Optimizer) -> Iterable[Group]:
    """The groups that belong to a modality, read anew each time: loading replaces them."""
    return (group for group in optimizer.param_groups if group.get("modality") is not None)


class Guard:
    """Looks at versions and identities of tensors alone, so it never waits for a device."""

    def __init__(self) -> None:
        self._footprint: tuple[Tensor, int] | None = None
        self._gradient: tuple[Tensor, Tensor] | None = None
        self._spent: Tensor | None = None

    def require_hook(self, handle: Any) -> None:
        """A copied or detached controller would observe in vain."""
        if handle is None or handle.id not in (handle.hooks_dict_ref() or ()):
            raise RuntimeError(
                "the controller has no hook on its optimizer, so nothing would come of this; call "
                "attach() after detach(), or after the optimizer was replaced"
            )

    def watch(self, optimizer: Optimizer) -> None:
        """Remember the state that the optimizer is in after a step that was seen."""
        self._footprint = _footprint(optimizer)
        first = _first_gradient(optimizer)
        self._spent = first[1] if first else None

    def require_seen(self, optimizer: Optimizer) -> None:
        """Raise if the optimizer's state has moved since `watch`."""
        before, now = self._footprint, _footprint(optimizer)
        if now is None or (before is not None and (now[0] is not before[0] or now[1] == before[1])):
            return
        self._footprint = now
        raise RuntimeError(
            "the optimizer took a step that the controller's hooks did not see, as a compiled "
            "or captured step may; write: with controller.applied(): compiled_step()"
        )

    def step_was_skipped(self, optimizer: Optimizer) -> bool:
        """Whether the gradients that were there at the last observation have been dropped.

        Between micro-batches a gradient accumulates in place. If it is another tensor now, or gone,
        then zero_grad() came instead of step(): after an overflow, or by the user's own decision.
        """
        skipped = False
        if self._gradient is not None:
            parameter, gradient = self._gradient
            skipped = parameter.grad is not gradient
        if self._gradient is None or skipped:
            self._gradient = _first_gradient(optimizer)
            if self._gradient is not None and self._gradient[1] is self._spent:
                self._gradient = None  # of the last step: zero_grad() is still to come
        return skipped

    def forget_gradient(self) -> None:
        self._gradient = None


def _first_gradient(optimizer: Optimizer) -> tuple[Tensor, Tensor] | None:
    parameters = (p for group in tagged(optimizer) for p in group["params"])
    return next(((p, p.grad) for p in parameters if p.grad is not None), None)


def _footprint(optimizer: Optimizer) -> tuple[Tensor, int] | None:
    """A tensor of the optimizer's state, and how often it was written to."""
    for group in tagged(optimizer):
        for parameter in group["params"]:
            for value in optimizer.state.get(parameter, {}).values():
                if isinstance(value, Tensor):
                    return value, value._version
    return None
