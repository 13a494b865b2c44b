"""Where features and logits come from when the user does not pass them by hand.

`Capture` reads them off the model's own linear heads by forward hooks. `ProbeHeads` makes heads for
fusions that have no modality logits; nothing but the probe sees them.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .probe import Loss, batch_of, full_precision, half_sums

Observed = dict[str, tuple[Tensor, Tensor]]


class Capture:
    """Forward hooks that keep, detached, what the heads took and gave in the last training forward.

    A forward in eval mode is none of the optimizer's business, and one during the backward pass is
    activation checkpointing that computes again what was captured already. Both leave no trace.
    """

    def __init__(
        self, heads: Mapping[str, nn.Module] | nn.Linear, slices: Mapping[str, slice] | None
    ) -> None:
        self.heads = heads
        self.slices = slices
        if isinstance(heads, nn.Linear):
            if not slices:
                raise ValueError(
                    "one head for all modalities needs slices of its input, for instance "
                    'slices={"audio": slice(0, 512), "video": slice(512, 1024)}'
                )
            _check_slices(slices, heads.in_features)
        else:
            if slices:
                raise ValueError(
                    "slices go with a single nn.Linear head, not with a head per modality"
                )
            _check_heads(heads)
        self._captured: dict[str, tuple[Tensor, Tensor]] = {}
        self._handles: list[Any] = []
        self.attach()

    @property
    def modalities(self) -> tuple[str, ...]:
        return tuple(self.slices or cast(Mapping[str, nn.Module], self.heads))

    def attach(self) -> None:
        self.detach()
        if isinstance(self.heads, nn.Linear):
            self._handles = [
                self.heads.register_forward_hook(_Hook(self, "concat"), with_kwargs=True)
            ]
        else:
            self._handles = [
                head.register_forward_hook(_Hook(self, name), with_kwargs=True)
                for name, head in self.heads.items()
            ]

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._captured = {}

    def keep(self, name: str, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        # A compiled forward is not run anew by the backward pass, and must not ask.
        compiling = torch.compiler.is_compiling()
        if compiling or torch._C._current_graph_task_id() == -1:  # pyright: ignore[reportPrivateUsage]
            self._captured[name] = (inputs[0].detach(), output.detach())

    @torch.no_grad()
    def take(self) -> Observed:
        """What was captured since the last call, per modality."""
        captured, self._captured = self._captured, {}
        if not captured:
            raise RuntimeError(
                "observe(target) found that no head was called in training mode since the last "
                "observe; call it after each training forward, and call heads as modules: head(x)"
            )
        if not isinstance(self.heads, nn.Linear):
            return captured
        features, _ = captured["concat"]
        return self._sliced(self.heads, features)

    def _sliced(self, head: nn.Linear, features: Tensor) -> Observed:
        """z_m = W_m h_m + b / M; if the slices cover the input, their sum is the head's output."""
        slices = cast(Mapping[str, slice], self.slices)
        with full_precision(features.device):
            weight = _whole(head.weight)
            features = features.to(weight.dtype)
            bias = head.bias  # None in a head without one, whatever its type says
            share = 0 if bias is None else _whole(bias) / len(slices)  # pyright: ignore[reportUnnecessaryComparison]
            return {
                name: (features[..., part], features[..., part] @ weight[:, part].T + share)
                for name, part in slices.items()
            }

    def __getstate__(self) -> dict[str, Any]:
        """Hooks and handles are copied along with the heads that carry them, captures are not."""
        return {**self.__dict__, "_captured": {}}


def _whole(parameter: Tensor) -> Tensor:
    """All of a parameter of which this rank may hold a shard, as `fully_shard` leaves it."""
    sharded = hasattr(parameter, "full_tensor")  # a DTensor, whose class is slow to import
    return cast(Any, parameter).full_tensor() if sharded else parameter


@dataclass(frozen=True)
class _Hook:
    """A forward hook that copies and pickles: a copied head reports to the copied capture."""

    capture: Capture
    name: str

    def __call__(
        self,
        module: nn.Module,
        inputs: tuple[Tensor, ...],
        named: dict[str, Tensor],
        output: Tensor,
    ) -> None:
        if module.training:
            self.capture.keep(self.name, (*inputs, *named.values()), output)


def _check_slices(slices: Mapping[str, slice], width: int) -> None:
    for modality, part in slices.items():
        if not range(width)[part] or max(part.start or 0, part.stop or 0) > width:
            raise ValueError(
                f"modality {modality!r}: {part} does not lie within the head's {width} inputs; "
                "give the range that its features have in the concatenation"
            )
        for other, taken in slices.items():
            if other != modality and set(range(width)[part]) & set(range(width)[taken]):
                raise ValueError(
                    f"modalities {other!r} and {modality!r}: {taken} and {part} overlap; an input "
                    "of the head belongs to one modality, or to none"
                )


def _check_heads(heads: Mapping[str, nn.Module]) -> None:
    owner: dict[nn.Module, str] = {}
    for modality, head in heads.items():
        if isinstance(head, nn.Sequential) and len(head) > 1:
            raise ValueError(
                f"modality {modality!r}: the probe is the gradient of a linear head, but this one "
                f"is a Sequential; give its last layer: heads={{{modality!r}: head[-1]}}"
            )
        if head in owner:
            raise ValueError(
                f"modalities {owner[head]!r} and {modality!r} have the same head, and a hook "
                "cannot tell whose call it sees; pass features and logits by hand: "
                "observe(target, audio=(h_a, z_a), ...)"
            )
        owner[head] = modality


class ProbeHeads(nn.Module):
    """A linear head per modality for fusions that have no modality logits of their own.

    The heads see detached features, learn by their own Adam from their own loss, and serve the
    probe alone: the model neither sees them nor is changed by them. Save them as any module;
    their optimizer travels along.

    Args:
        features: how many features each modality has.
        classes: outputs of each head.
        loss: as for `VCMM`.
        lr: of the heads' own Adam.
        process_group: ranks that train the same heads; None is the default group.

    Example:
        heads = ProbeHeads({"audio": 512, "video": 768}, classes=10)
        vcmm.observe(target, **heads(target, audio=h_a, video=h_v))
    """

    def __init__(
        self,
        features: Mapping[str, int],
        classes: int,
        *,
        loss: Loss = "cross_entropy",
        lr: float = 1e-3,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        self.loss: Loss = loss
        self.heads = nn.ModuleDict({name: nn.Linear(d, classes) for name, d in features.items()})
        for head in self.heads.values():  # so that every rank starts with the same heads
            nn.init.zeros_(cast(nn.Linear, head).weight)
            nn.init.zeros_(cast(nn.Linear, head).bias)
        self._optimizer = torch.optim.Adam(self.heads.parameters(), lr=lr)
        self._group = process_group

    @torch.no_grad()
    def forward(self, target: Tensor, /, **features: Tensor) -> Observed:
        """(features, logits) of every modality, for `observe`; then one step of the heads."""
        observed: Observed = {}
        for name, h in features.items():
            if name not in self.heads:
                raise ValueError(
                    f"modality {name!r} has no probe head; there are heads for "
                    f"{', '.join(self.heads)}"
                )
            head = cast(nn.Linear, self.heads[name])
            with full_precision(h.device):
                logits = head(h.detach().to(head.weight.dtype))
            observed[name] = (h.detach(), logits)
        if self.training:
            self._learn(target, observed)
        return observed

    def _learn(self, target: Tensor, observed: Observed) -> None:
        sums = {
            name: half_sums(batch_of(name, *pair, target, self.loss), 0)
            for name, pair in observed.items()
        }
        for name, module in self.heads.items():
            head = cast(nn.Linear, module)
            gradient = head.weight.new_zeros((head.out_features, head.in_features + 1))
            weight = gradient.new_zeros(1)
            if name in sums:
                gradient += sums[name].gradients.sum(0)
                weight += sums[name].weights.sum()
            head.weight.grad = head.bias.grad = None  # a head without samples keeps still
            if self._sum_over_ranks(gradient, weight) or name in sums:
                gradient /= weight.clamp(min=1)
                gradient = torch.where(gradient.isfinite().all(), gradient, 0.0)
                head.weight.grad = gradient[:, :-1].contiguous()
                head.bias.grad = gradient[:, -1].contiguous()
        self._optimizer.step()
        self._optimizer.zero_grad()  # nobody else is to step them, or clip by them

    def _sum_over_ranks(self, gradient: Tensor, weight: Tensor) -> bool:
        """Whether there are several ranks, and any of them has samples."""
        if not (dist.is_available() and dist.is_initialized()):
            return False
        if dist.get_world_size(self._group) == 1:
            return False
        dist.all_reduce(gradient, group=self._group)
        dist.all_reduce(weight, group=self._group)
        return weight.item() > 0

    def get_extra_state(self) -> dict[str, Any]:
        return self._optimizer.state_dict()

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self._optimizer.load_state_dict(copy.deepcopy(state))
