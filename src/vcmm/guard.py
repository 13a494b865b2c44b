"""Notices what a guest in the optimizer cannot prevent: steps without it, and steps not taken.

It looks at versions and identities of tensors alone, so it never waits for a device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import ReferenceType, ref

from torch import Tensor
from torch.optim import Optimizer

from .momentum import Group

Trace = tuple[Tensor, int]  # a tensor of the optimizer's state, and how often it was written to


def tagged(optimizer: Optimizer) -> list[Group]:
    """The groups that belong to a modality, read anew each time: loading replaces them."""
    return [group for group in optimizer.param_groups if group.get("modality") is not None]


def trace_of(history: Mapping[str, Any] | None) -> Trace | None:
    """What shows whether an optimizer has stepped a parameter, given its entry of the state."""
    if history:
        for value in history.values():
            if isinstance(value, Tensor):
                return value, value._version
    return None


class Guard:
    """What the controller last saw of its optimizer."""

    def __init__(self) -> None:
        self._traces: list[Trace | None] = []  # one per group
        # Gradients are known by weak references: zero_grad() is to free them.
        self._gradient: tuple[Tensor, ReferenceType[Tensor]] | None = None  # last observed with
        self._spent: ReferenceType[Tensor] | None = None  # last stepped with

    def watch(self, optimizer: Optimizer) -> None:
        """Remember the state that the optimizer is in after a step that was seen."""
        groups = tagged(optimizer)
        self._traces = _traces(groups, optimizer.state)
        first = _first_gradient(groups)
        self._spent = ref(first[1]) if first else None

    def has_seen_all(self, optimizer: Optimizer) -> bool:
        """Whether the optimizer has not stepped since `watch`, or since this was last asked."""
        before, now = self._traces, _traces(tagged(optimizer), optimizer.state)
        self._traces = now
        for old, new in zip(before, now, strict=False):
            written = old is not None and new is not None and old[0] is new[0] and old[1] != new[1]
            if written or (old is None and new is not None):
                return False
        return True

    def step_was_skipped(self) -> bool:
        """Whether the gradients that were there at the last observation have been dropped.

        Between micro-batches a gradient accumulates in place. If it is gone or another tensor now,
        then zero_grad() came instead of step(): after an overflow, or by the user's own decision.
        A view is no evidence, for DistributedDataParallel moves gradients into its buckets, and a
        gradient with a graph is none, for with create_graph=True they accumulate out of place.
        """
        if self._gradient is None:
            return False
        parameter, gradient = self._gradient
        now = parameter.grad
        if now is None:
            return True
        return now is not gradient() and now.grad_fn is None and not _is_part(now)

    def note_gradient(self, optimizer: Optimizer) -> None:
        """Remember the gradients that an observation belongs to, if they are there already."""
        first = _first_gradient(tagged(optimizer))
        self._gradient = None
        # The gradient of the last step is still there if zero_grad() is still to come.
        if first is not None and not (self._spent is not None and first[1] is self._spent()):
            self._gradient = first[0], ref(first[1])

    def forget_gradient(self) -> None:
        self._gradient = None


def _is_part(tensor: Tensor) -> bool:
    whole = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor._is_view() or whole != tensor.numel()


def _first_gradient(groups: list[Group]) -> tuple[Tensor, Tensor] | None:
    for group in groups:
        for parameter in group["params"]:
            if (gradient := parameter.grad) is not None:
                return parameter, gradient
    return None


def _traces(groups: list[Group], state: Mapping[Tensor, Mapping[str, Any]]) -> list[Trace | None]:
    """Per group the trace of the first parameter that has one."""
    traces: list[Trace | None] = []
    for group in groups:
        trace = None
        for parameter in group["params"]:
            if trace := trace_of(state.get(parameter)):
                break
        traces.append(trace)
    return traces
