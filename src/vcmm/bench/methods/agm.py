"""AGM: boosting multi-modal model performance with adaptive gradient modulation (ICCV 2023).

The fused logits are divided among the modalities as a game divides its gain among the players, and
the gradient that flows into a modality's share is scaled by how well the share does.

| paper                                                              | here                       |
|--------------------------------------------------------------------|----------------------------|
| F(S): the fused logits if inputs outside of S are zero             | `AGM.coalitions`           |
| o_m: Shapley value of m, with F(nobody) = 0, so sum_m o_m = F(all) | `contributions`            |
| s_m = CE(o_m, y), p not below 1e-8; S_m its mean over all steps    | `deficiency`, `AGM.running`|
| r_m = exp(M / (M - 1) (mean_j s_j - s_m)), tau_m the same of S     | `pace`                     |
| kappa_m = exp(alpha min(tau_m - r_m, 10))                          | `coefficients`             |
| the gradient into o_m is multiplied by kappa_m                     | `steered`                  |

With two modalities o_a = (F(a, v) - F(v) + F(a)) / 2. S_m is that of the steps before, 0 at first.
What is trained is CE(F(all), y), and `steered` has its value: it only changes where the gradient
goes. The passes with a modality left out are in eval mode, but gradients flow through them. If an
entry of a gradient of the fusion's weights exceeds `clip`, the norm of all gradients is clipped to
it; the biases of the fusion are not looked at.

All of this is the released code, and the only formulas that are known for its details. There, hooks
scale the gradients; that is the same. alpha is 1 there by default, and 1.5 for CREMA-D.

Deviations. An eval pass treats every row alone, so an encoder is run once, on the batch and a row
of zeros, in place of once for every coalition: same numbers, fewer passes. Beyond three modalities
there would be 2^M - 1 coalitions; then only one modality at a time is left out, and what the
marginal gains F(all) - F(all but m) do not add up to is divided equally (ours), which for two is
the same as Shapley's. Several labels are natural: s_m is then the binary cross-entropy.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from itertools import combinations
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from .. import lists
from ..method import Criterion, Method, Terms, require_at_least, require_positive
from ..model import Multimodal
from ..types import Batch, Output

Coalition = frozenset[str]
EXACT = 3  # up to so many modalities every coalition is asked


def partial_coalitions(modalities: tuple[str, ...]) -> list[Coalition]:
    """Those that must be asked besides all and nobody."""
    most = len(modalities) - 1
    sizes = range(1 if len(modalities) <= EXACT else most, most + 1)
    return [Coalition(some) for size in sizes for some in combinations(modalities, size)]


def contributions(values: Mapping[Coalition, Tensor]) -> dict[str, Tensor]:
    """o_m of every modality, from F of all and of the partial coalitions."""
    everyone = max(values, key=len)
    share = shapley if len(everyone) <= EXACT else marginal
    return {m: share(values, everyone, m) for m in sorted(everyone)}


def shapley(values: Mapping[Coalition, Tensor], everyone: Coalition, modality: str) -> Tensor:
    """What a modality adds to the coalitions without it, averaged over the orders of joining."""
    count = len(everyone)
    found = torch.zeros_like(values[everyone])
    for coalition, value in values.items():
        if modality in coalition:
            size = len(coalition)
            orders = math.factorial(size - 1) * math.factorial(count - size)
            weight = orders / math.factorial(count)
            alone = size == 1
            added = value if alone else value - values[coalition - {modality}]
            found = found + weight * added
    return found


def marginal(values: Mapping[Coalition, Tensor], everyone: Coalition, modality: str) -> Tensor:
    """What is lost without a modality, and an equal share of what is nobody's loss."""
    whole = values[everyone]
    lost = {m: whole - values[everyone - {m}] for m in everyone}
    rest = whole - torch.stack([lost[m] for m in sorted(everyone)]).sum(dim=0)
    return lost[modality] + rest / len(everyone)


def deficiency(logits: Tensor, target: Tensor, *, multilabel: bool = False) -> Tensor:
    """s: the loss of a contribution, with probabilities not below 1e-8."""
    if multilabel:
        each = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    else:
        each = F.cross_entropy(logits, target, reduction="none")
    return each.clamp_max(-math.log(1e-8)).mean()


def pace(deficiencies: Tensor) -> Tensor:
    """r [M] from s [M], or tau from S: above 1 for those that do better than the mean."""
    modalities = len(deficiencies)
    behind = deficiencies.mean() - deficiencies
    return torch.exp(modalities / max(modalities - 1, 1) * behind)


def coefficients(now: Tensor, before: Tensor, alpha: float) -> Tensor:
    """kappa [M]: below 1 for a modality that does better than it used to, among the others."""
    return torch.exp(alpha * (pace(before) - pace(now)).clamp_max(10))


def steered(fused: Tensor, shares: Mapping[str, Tensor], kappa: Tensor) -> Tensor:
    """The fused logits; their gradient flows into each share, times its kappa."""
    scaled = torch.stack([k * o for k, o in zip(kappa, shares.values(), strict=True)]).sum(dim=0)
    return fused.detach() + (scaled - scaled.detach())


def clip_if_steep_(gradients: list[Tensor], watched: list[Tensor], limit: float) -> None:
    """Clip the norm of all gradients if an entry of the watched ones is larger than the limit."""
    steepest = torch.stack([g.abs().max() for g in watched]).max()
    norm = lists.lengths(gradients).square().sum().sqrt()
    factor = torch.where(steepest > limit, (limit / (norm + 1e-6)).clamp_max(1.0), 1.0)
    lists.multiply_(gradients, factor)


@contextmanager
def evaluating(module: nn.Module) -> Generator[None]:
    """In eval mode, and afterwards every part in the mode that it had."""
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for part, training in modes.items():
            part.training = training


class AGM(Method):
    """The gradient into every modality's share of the logits is scaled.

    Args:
        model: what is trained.
        optimizer: over its parameters.
        criterion: the loss of logits and target.
        alpha: how strongly gradients are scaled.
        clip: see above; None never clips.
    """

    fusion: ClassVar[str] = "concat"

    def __init__(
        self,
        model: Multimodal,
        optimizer: Optimizer,
        criterion: Criterion = F.cross_entropy,
        *,
        alpha: float = 1.0,
        clip: float | None = 1.0,
    ) -> None:
        super().__init__(model, optimizer, criterion)
        require_at_least("agm", 0, alpha=alpha)
        require_positive("agm", clip=clip)
        self.alpha = alpha
        self.clip = clip
        self.multilabel = criterion is F.binary_cross_entropy_with_logits
        weight = next(model.parameters()).detach()
        self.register_buffer("running", weight.new_zeros(len(model.modalities)))  # S
        self.running: Tensor
        self.register_buffer("steps", weight.new_zeros(()))  # that S is the mean of
        self.steps: Tensor

    def loss(self, output: Output, batch: Batch) -> Terms:
        values = self.coalitions(batch)
        values[Coalition(self.model.modalities)] = output.fused
        shares = contributions(values)
        kappa = self.kappa(shares, batch.target)
        return {"fused": self.criterion(steered(output.fused, shares, kappa), batch.target)}

    def coalitions(self, batch: Batch) -> dict[Coalition, Tensor]:
        """F of every partial coalition."""
        encoders, fusion = self.model.encoders, self.model.fusion
        asked = partial_coalitions(self.model.modalities)
        if not asked:
            return {}
        self.counts["forwards"] += 1
        self.counts["backwards"] += 1
        with evaluating(self.model):
            present: dict[str, Tensor] = {}
            absent: dict[str, Tensor] = {}
            for m, encoder in encoders.items():
                x = batch.inputs[m]
                h = encoder(torch.cat([x, torch.zeros_like(x[:1])]))
                present[m], absent[m] = h[:-1], h[-1:].expand_as(h[:-1])
            given = [
                {m: h if m in coalition else absent[m] for m, h in present.items()}
                for coalition in asked
            ]
            return {s: fusion(h)[1] for s, h in zip(asked, given, strict=True)}

    @torch.no_grad()
    def kappa(self, shares: Mapping[str, Tensor], target: Tensor) -> Tensor:
        """The coefficients of this step; afterwards S knows of it."""
        found = [deficiency(o, target, multilabel=self.multilabel) for o in shares.values()]
        now = torch.stack(found)
        kappa = coefficients(now, self.running, self.alpha)
        self.steps += 1
        self.running += (now - self.running) / self.steps
        return kappa

    @torch.no_grad()
    def modulate(self, output: Output, batch: Batch) -> None:
        if self.clip is None:
            return
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        parameters = self.model.fusion.parameters()
        watched = [p.grad for p in parameters if p.ndim > 1 and p.grad is not None]
        if watched:
            clip_if_steep_(gradients, watched, self.clip)
