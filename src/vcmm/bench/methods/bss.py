"""BSS: balance by scheduling samples (IJCAI 2025).

Every modality is trained by a loss of its own, and the order of samples is chosen: those on which
the modalities agree and the loss is low come first. Either train grows from the easy samples on
(curriculum), or every epoch visits all of them in an order in which easy ones tend to be early
(self-paced).

| paper                                                   | here                               |
|---------------------------------------------------------|------------------------------------|
| L = w_mm CE(z) + w_u sum_m CE(z_m)                      | `loss`, `joint`, `own`             |
| cos(p_a, p_v), mean over pairs                          | `agreement`                        |
| d = (1 - minmax(cos)) + minmax(L)                       | `difficulty`                       |
| share min(1, sqrt((1 - lambda^2) (e + 1) / T + lambda^2)) | `pace`                           |
| weights 1 - (minmax(L) - minmax(cos)) + .01             | `preference`                       |
| all N drawn by these weights, without replacement       | `biased_order`                     |
| z_a + z_v predicts                                      | `predict`                          |

The curriculum's difficulty is that of the untrained network and stays; self-paced scores are made
anew before every epoch. Published and released agree on these formulas; the defaults are those of
CREMA-D (.1 and .9, lambda .1, T 40, the joint head is not asked for the prediction). For
Kinetics-Sounds both weights are 1 and `with_joint` is true. Which schedule a row of the paper's
tables belongs to differs; self-paced is the default here.

Deviations: scores are computed in eval mode; `as_released=True` does it in training mode, where
dropout disturbs them and batch norm learns from them. NVGesture's release compares raw logits and
not probabilities, which is left out. Rows are drawn by the exponential race, which gives the same
distribution of orders as drawing one by one.

For any number of modalities (ours beyond two, but for NVGesture): the mean over pairs; a single one
agrees with itself. With several labels per sample p_m are their sigmoids and L is per sample too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import combinations
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn import functional as F
from torch.optim import Optimizer

from ..method import Criterion, Method, Terms, require_at_least
from ..model import Multimodal
from ..types import Batch, Data, Output


def minmax(values: Tensor) -> Tensor:
    """Shifted and scaled to [0, 1]; 0 if they are all the same."""
    span = values.max() - values.min()
    return (values - values.min()) / span.clamp_min(torch.finfo(values.dtype).tiny)


def agreement(probabilities: Iterable[Tensor]) -> Tensor:
    """The cosine between what modalities say of each sample [n], a mean over all pairs."""
    each = list(probabilities)
    pairs = [F.cosine_similarity(p, q, dim=1) for p, q in combinations(each, 2)]
    return torch.stack(pairs).mean(dim=0) if pairs else torch.ones_like(each[0][:, 0])


def losses(criterion: Criterion, logits: Tensor, target: Tensor) -> Tensor:
    """A criterion that is a mean over samples, of every sample [n]."""

    def of_one(z: Tensor, y: Tensor) -> Tensor:
        return criterion(z.unsqueeze(0), y.unsqueeze(0))

    return vmap(of_one)(logits, target)


def difficulty(loss: Tensor, cosine: Tensor) -> Tensor:
    """d [n]: high where the loss is, and where modalities disagree."""
    return (1 - minmax(cosine)) + minmax(loss)


def preference(loss: Tensor, cosine: Tensor) -> Tensor:
    """Weights [n] in [.01, 2.01] of the self-paced order."""
    return 1 - (minmax(loss) - minmax(cosine)) + 0.01


def pace(epoch: int, *, start: float = 0.1, epochs: int = 40) -> float:
    """The share of train that the curriculum has come to."""
    return min(1.0, math.sqrt((1 - start**2) * (epoch + 1) / epochs + start**2))


def biased_order(weights: Tensor, generator: torch.Generator) -> Tensor:
    """All rows, drawn one after the other by these weights, without replacement.

    Row i arrives after an exponential time of rate w_i; the order of arrival is that of the draws.
    """
    wait = torch.empty(len(weights), dtype=torch.float64).exponential_(generator=generator)
    return (wait / weights.double()).argsort(stable=True)


class BSS(Method):
    """The loss of every modality, on samples that are ordered by how easy they are.

    Args:
        model: what is trained.
        optimizer: over its parameters.
        criterion: the loss of logits and target, a mean over samples.
        schedule: the samples of an epoch: more and more of them, or all with the easy ones early.
        joint: the weight of the fused logits' loss.
        own: the weight of every modality's own.
        start: lambda, about the share of train that the curriculum begins with.
        growth: T, after how many epochs the curriculum has all of it.
        with_joint: predict by z + sum_m z_m in place of sum_m z_m.
        as_released: score samples in training mode.
    """

    fusion: ClassVar[str] = "branches"

    def __init__(
        self,
        model: Multimodal,
        optimizer: Optimizer,
        criterion: Criterion = F.cross_entropy,
        *,
        schedule: Literal["self_paced", "curriculum"] = "self_paced",
        joint: float = 0.1,
        own: float = 0.9,
        start: float = 0.1,
        growth: int = 40,
        with_joint: bool = False,
        as_released: bool = False,
    ) -> None:
        super().__init__(model, optimizer, criterion)
        if schedule not in ("self_paced", "curriculum"):
            raise ValueError(f'bss: schedule is {schedule!r}; it is "self_paced" or "curriculum"')
        if joint < 0 or own <= 0:
            raise ValueError(
                f"bss: joint is {joint} and own is {own}; joint must not be negative, and own must "
                "be positive, for the modalities' own logits make the prediction"
            )
        if not 0 < start <= 1:
            raise ValueError(f"bss: start is {start}; it must lie in (0, 1], .1 for instance")
        require_at_least("bss", 1, growth=growth)
        self.schedule = schedule
        self.joint = joint
        self.own = own
        self.start = start
        self.growth = growth
        self.with_joint = with_joint
        self.as_released = as_released
        self.weights: Tensor | None = None  # of the self-paced order, until it is drawn
        self.ranking: Tensor | None = None  # the curriculum: rows of train, easy ones first

    def begin_epoch(self, epoch: int, data: Data) -> None:
        if self.schedule == "self_paced":
            self.weights = preference(*self.scores(data))
        elif self.ranking is None:
            self.ranking = difficulty(*self.scores(data)).argsort(stable=True)

    def sampler(self, epoch: int) -> Tensor | None:
        if self.weights is not None:
            return biased_order(self.weights, self.generator("order"))
        if self.ranking is None:
            return None
        share = pace(epoch, start=self.start, epochs=self.growth)
        return self.shuffled(self.ranking[: max(2, int(share * len(self.ranking)))])

    def scores(self, data: Data) -> tuple[Tensor, Tensor]:
        """Loss and agreement of every row of train, on the CPU, where orders are made."""
        found: list[tuple[Tensor, Tensor]] = []
        rows = torch.arange(len(data.splits["train"]))
        for output, batch in self.survey(data, rows, training=self.as_released):
            own = [losses(self.criterion, z, batch.target) for z in output.logits.values()]
            fused = losses(self.criterion, output.fused, batch.target)
            loss = self.joint * fused + self.own * torch.stack(own).sum(dim=0)
            several = batch.target.ndim > 1
            said = [z.sigmoid() if several else z.softmax(1) for z in output.logits.values()]
            found.append((loss, agreement(said)))
        loss, cosine = (torch.cat(parts).cpu() for parts in zip(*found, strict=True))
        return loss, cosine

    def loss(self, output: Output, batch: Batch) -> Terms:
        own = {m: self.own * self.criterion(z, batch.target) for m, z in output.logits.items()}
        return {"fused": self.joint * self.criterion(output.fused, batch.target), **own}

    def predict(self, output: Output) -> Tensor:
        own = torch.stack(list(output.logits.values())).sum(dim=0)
        return own + output.fused if self.with_joint else own

    def get_extra_state(self) -> dict[str, Any]:
        return {**super().get_extra_state(), "ranking": self.ranking}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        super().set_extra_state(state)
        ranking: Tensor | None = state["ranking"]
        self.ranking = None if ranking is None else ranking.cpu()
