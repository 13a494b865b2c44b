"""DecAlign: hierarchical cross-modal alignment for decoupled multimodal representation learning
(ICLR 2026).

Every modality's features are split into what it has alone (s_m) and what all have in common (c_m).
The specific parts are aligned by optimal transport between prototypes, the common ones by their
moments. `fusions.aligned` is the network, this file the losses. d is the width, n the samples, M
the modalities, K the prototypes; s_m and c_m are means over time but in L_dec.

| equation                                                                | where                  |
|-------------------------------------------------------------------------|------------------------|
| L = CE + w L_dec + alpha (L_OT + L_proto) + beta (L_sem + L_MMD)        | `DecAlign.loss`        |
| L_dec = mean_m mean_i cos^2(s_m(i), c_m(i)), all of time as one vector  | `overlap`              |
| gamma, mu, v: a diagonal Gaussian mixture of s_m, 5 rounds of EM        | `mixture`              |
| C(k, l) = mean_d (mu_k - mu_l)^2 + mean_d (v_k + v_l - 2 sqrt(v_k v_l)) | `prototype_costs`      |
| C of a tuple is the sum over its pairs                                  | `joint_cost`           |
| T: entropic transport, 50 rounds, marginals mean_i gamma(i)             | `log_plan`             |
| L_OT = <T, C> + eps sum T (log T - 1)                                   | `transport`            |
| mean_i sum_k gamma_m(i, k) mean_d (s_m(i) - mu_jk)^2 for ordered m, j   | `sample_costs`         |
| z_m = MLP_m(c_m), pairs: MSE of means, of covariances, of skewnesses    | `moment_gaps`          |
| MMD^2 of pairs with kernel exp(-|z - z'|^2 / 2)                         | `discrepancies`        |
| + contrast SupCon(what the head takes, y)                               | `contrastive`          |

EM starts from pi = 1/K, evenly spaced rows and the variance of the batch, variances are at least
1e-4, it is differentiated through, and a last E-step follows. The covariance divides by n - 1;
skewness is the third central moment over var^1.5, var biased and at least 1e-6. L_proto, L_sem and
L_MMD are means over pairs; in L_proto prototypes of two modalities are matched by their number. T
depends on what it is made of, so it is differentiated through as well.

Defaults are the published ones for MOSI: alpha .05, beta .07, 7 prototypes, gradients clipped to a
norm of .6. For IEMOCAP they are .05, .05 and 6, and the general ones are .1 and .1. `contrast` is
.003 for MOSI, which is a regression, and 0 for IEMOCAP, which is not: 0 here. The dropout rate of
MLP_m, .1, and the features that SupCon is given, those of the head, are ours.

The transport is computed with logarithms. The released code has exponentials, which lose mass as
soon as features are of unit scale, and has alignment only if there are exactly three modalities:
`as_released=True` is this, with 1e-8 in the denominators. Published is one transport of all three
modalities together; so it is here up to three, and beyond, where it takes K^M numbers, the sum over
pairs (ours). With one modality only L_dec is left. Code for vectors was never released; theirs is
for sequences, and encoders with one vector per sample are sequences of length 1. Class ids are only
needed by `contrast`; several labels are natural.
"""

from __future__ import annotations

import math
from itertools import combinations
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from ..by_modality import ByModality
from ..fusions.aligned import Aligned
from ..method import (
    Criterion,
    Method,
    Terms,
    require_at_least,
    require_positive,
)
from ..model import Multimodal
from ..types import Batch, Output

TOGETHER = 3  # up to so many modalities are in one transport; its plan has K^M entries
LEAST_VARIANCE = 1e-4  # of a prototype
LEAST_SPREAD = 1e-6  # the variance below which skewness is no longer scaled up


class Mixture(NamedTuple):
    """A mixture of diagonal Gaussians for each of M modalities."""

    mean: Tensor  # mu [M, K, d]
    variance: Tensor  # v [M, K, d]
    log_posterior: Tensor  # log gamma [M, n, K]

    @property
    def log_marginals(self) -> Tensor:
        """log mean_i gamma(i) [M, K]; finite also for a prototype that nobody is near."""
        return self.log_posterior.logsumexp(dim=1) - math.log(self.log_posterior.shape[1])


def overlap(specific: Tensor, common: Tensor) -> Tensor:
    """mean_i cos^2 of what a modality has alone and what it has in common, both [n, t, d]."""
    s, c = specific.flatten(1), common.flatten(1)
    lengths = s.square().sum(dim=1) * c.square().sum(dim=1)
    return ((s * c).sum(dim=1).square() / lengths.clamp_min(1e-12)).mean()


def mixture(x: Tensor, prototypes: int, rounds: int) -> Mixture:
    """EM on samples x [M, n, d]. Everything is a logarithm, so no component can be divided by 0."""
    samples = x.shape[1]
    # Where there are fewer samples than prototypes, rows come more than once.
    last = max(prototypes - 1, 1)
    rows = torch.arange(prototypes, device=x.device) * (samples - 1) // last
    mean = x[:, rows]
    variance = x.var(dim=1, correction=0, keepdim=True).expand_as(mean).clamp_min(LEAST_VARIANCE)
    log_weight = torch.full_like(mean[..., 0], -math.log(prototypes))
    log_gamma = posterior(x, log_weight, mean, variance)
    for _ in range(rounds):
        shares = log_gamma.softmax(dim=1)  # gamma(i, k) / sum_i gamma(i, k)
        log_weight = log_gamma.logsumexp(dim=1) - math.log(samples)
        mean = shares.mT @ x
        gaps = (x[:, :, None] - mean[:, None]).square()
        variance = (shares[..., None] * gaps).sum(dim=1).clamp_min(LEAST_VARIANCE)
        log_gamma = posterior(x, log_weight, mean, variance)
    return Mixture(mean, variance, log_gamma)


def posterior(x: Tensor, log_weight: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """The E-step: log gamma [M, n, K]."""
    gaps = (x[:, :, None] - mean[:, None]).square() / variance[:, None]
    log_density = -(gaps + variance[:, None].log()).sum(dim=-1) / 2
    return (log_weight[:, None] + log_density).log_softmax(dim=-1)


def mean_squares(a: Tensor, b: Tensor) -> Tensor:
    """mean_d (a_k - b_l)^2 [..., K, L] of rows a [..., K, d] and b [..., L, d]."""
    return (a.unsqueeze(-2) - b.unsqueeze(-3)).square().mean(dim=-1)


def mean_of_pairs(values: Tensor) -> Tensor:
    """The mean over m != j of values [M, M]."""
    modalities = len(values)
    # Not trace(): its backward waits for the device.
    return (values.sum() - values.diagonal().sum()) / (modalities * (modalities - 1))


def prototype_costs(mean: Tensor, variance: Tensor) -> Tensor:
    """C(k, l) of all modalities' prototypes, [M, K, M, K]: v + v' - 2 sqrt(v v') is a square."""
    sizes = mean.shape[:2]
    means, deviations = mean.flatten(0, 1), variance.sqrt().flatten(0, 1)
    costs = mean_squares(means, means) + mean_squares(deviations, deviations)
    return costs.reshape(*sizes, *sizes)


def joint_cost(costs: Tensor, group: tuple[int, ...]) -> Tensor:
    """C of a prototype of each modality in the group, [K, .., K]: the sum over its pairs."""
    prototypes = costs.shape[1]
    total = costs.new_zeros([prototypes] * len(group))
    for (i, a), (j, b) in combinations(enumerate(group), 2):
        shape = [prototypes if axis in (i, j) else 1 for axis in range(len(group))]
        total = total + costs[a, :, b].reshape(shape)
    return total


def groups_of(modalities: int) -> list[tuple[int, ...]]:
    """Which modalities are in a transport together."""
    together = modalities if modalities <= TOGETHER else 2
    return list(combinations(range(modalities), together))


def along(values: Tensor, axis: int, axes: int) -> Tensor:
    """Values [P, K] along one of the axes of a plan [P, K, .., K]."""
    return values.reshape(len(values), *(-1 if a == axis else 1 for a in range(axes)))


def others(axis: int, axes: int) -> list[int]:
    """The dimensions of a plan [P, K, .., K] but for its first and this axis."""
    return [a + 1 for a in range(axes) if a != axis]


def log_shares(plan: Tensor, axis: int) -> Tensor:
    """A plan [P, K, .., K] of logarithms, scaled so that every slice of the axis adds up to 1."""
    front = plan.movedim(axis + 1, 1)
    return front.flatten(2).log_softmax(dim=2).reshape(front.shape).movedim(1, axis + 1)


def log_plan(cost: Tensor, log_marginals: Tensor, strength: float, rounds: int) -> Tensor:
    """log T of P problems at once, by rounds in which every axis is given its marginal once.

    `cost` is [P, K, .., K], with an axis for each of the R modalities that take part, whose
    marginals are [P, R, K]. `strength` is eps, of the entropy.
    """
    axes = log_marginals.shape[1]
    plan = -cost / strength
    given = [along(log_marginals[:, axis], axis, axes) for axis in range(axes)]
    for _ in range(rounds):
        for axis in range(axes):
            plan = log_shares(plan, axis) + given[axis]
    return plan


def released_plan(cost: Tensor, marginals: Tensor, strength: float, rounds: int) -> Tensor:
    """T as the released code has it: exponentials, and 1e-8 in every denominator."""
    axes = marginals.shape[1]
    kernel = torch.exp(-cost / strength)
    scales = [torch.ones_like(marginals[:, axis]) for axis in range(axes)]
    for _ in range(rounds):
        for axis in range(axes):
            plan = kernel
            for other, scale in enumerate(scales):
                plan = plan if other == axis else plan * along(scale, other, axes)
            scales[axis] = marginals[:, axis] / (plan.sum(dim=others(axis, axes)) + 1e-8)
    for axis, scale in enumerate(scales):
        kernel = kernel * along(scale, axis, axes)
    return kernel


def transport(plan: Tensor, log_of_plan: Tensor, cost: Tensor, strength: float) -> Tensor:
    """<T, C> + eps sum T (log T - 1), all problems added up."""
    return (plan * (cost + strength * (log_of_plan - 1))).sum()


def alignment(found: Mixture, strength: float, rounds: int, *, as_released: bool = False) -> Tensor:
    """L_OT of the prototypes of M modalities."""
    groups = groups_of(len(found.mean))
    costs = prototype_costs(found.mean, found.variance)
    cost = torch.stack([joint_cost(costs, group) for group in groups])
    log_marginals = found.log_marginals
    log_marginals = torch.stack([torch.stack([log_marginals[m] for m in g]) for g in groups])
    if as_released:
        plan = released_plan(cost, log_marginals.exp(), strength, rounds)
        log_of_plan = plan.clamp_min(torch.finfo(plan.dtype).tiny).log()
        return transport(plan, log_of_plan, cost, strength)
    log_of_plan = log_plan(cost, log_marginals, strength, rounds)
    return transport(log_of_plan.exp(), log_of_plan, cost, strength)


def sample_costs(x: Tensor, found: Mixture) -> Tensor:
    """[M, M]: how far samples of m are from j's prototypes of the numbers that they have in m."""
    distances = mean_squares(x[:, None], found.mean[None])  # [m, j, n, K]
    return (found.log_posterior.exp()[:, None] * distances).sum(dim=-1).mean(dim=-1)


def moment_gaps(z: Tensor) -> Tensor:
    """[M, M]: the MSE of means, covariances and skewnesses of z [M, n, d], added up."""
    samples = z.shape[1]
    mean = z.mean(dim=1)
    centred = z - mean[:, None]
    covariance = centred.mT @ centred / max(samples - 1, 1)
    spread = centred.square().mean(dim=1).clamp_min(LEAST_SPREAD)
    skewness = centred.pow(3).mean(dim=1) / spread.pow(1.5)
    moments = (mean, covariance.flatten(1), skewness)
    return torch.stack([mean_squares(moment, moment) for moment in moments]).sum(dim=0)


def discrepancies(z: Tensor) -> Tensor:
    """MMD^2 [M, M] of the samples z [M, n, d], each pair of rows compared once."""
    modalities, samples, _ = z.shape
    rows = z.flatten(0, 1)
    squares = rows.square().sum(dim=1)
    distances = (squares[:, None] + squares - 2 * rows @ rows.T).clamp_min(0)
    kernel = torch.exp(-distances / 2).reshape(modalities, samples, modalities, samples)
    similar = kernel.mean(dim=(1, 3))
    own = similar.diagonal()
    return own[:, None] + own - 2 * similar


def contrastive(h: Tensor, target: Tensor, temperature: float) -> Tensor:
    """SupCon of samples [n, D], a mean over those whose class is there more than once."""
    unit = F.normalize(h, dim=1, eps=1e-6)
    oneself = torch.eye(len(h), dtype=torch.bool, device=h.device)
    scores = unit @ unit.T / temperature
    log_p = scores.masked_fill(oneself, torch.finfo(h.dtype).min).log_softmax(dim=1)
    same = (target[:, None] == target) & ~oneself
    partners = same.sum(dim=1)
    each = torch.where(same, log_p, 0).sum(dim=1) / partners.clamp_min(1)
    return -each.sum() / (partners > 0).sum().clamp_min(1)


def dropped(x: Tensor, rate: float, generator: torch.Generator) -> Tensor:
    """Dropout."""
    kept = torch.rand(x.shape, generator=generator, device=x.device) >= rate
    return x * kept / (1 - rate)


class DecAlign(Method):
    """Decoupled features, aligned by transport and by moments; see the module.

    Args:
        model: what is trained.
        optimizer: over its parameters.
        criterion: the loss of logits and target.
        decoupling: the weight of L_dec.
        alpha: the weight of transport and prototypes.
        beta: the weight of moments and kernels.
        contrast: the weight of the supervised contrastive loss.
        temperature: of this loss.
        prototypes: K, per modality.
        em_rounds: of expectation and maximization, in each step.
        entropy: eps, of the transport.
        sinkhorn_rounds: of the transport.
        dropout: the rate in the small networks in front of the moments.
        clip: the largest norm of all gradients together; None leaves them as they are.
        as_released: exponentials in the transport, and no alignment but of three modalities.
    """

    fusion: ClassVar[str] = "aligned"

    def __init__(
        self,
        model: Multimodal,
        optimizer: Optimizer,
        criterion: Criterion = F.cross_entropy,
        *,
        decoupling: float = 1.0,
        alpha: float = 0.05,
        beta: float = 0.07,
        contrast: float = 0.0,
        temperature: float = 0.1,
        prototypes: int = 7,
        em_rounds: int = 5,
        entropy: float = 0.1,
        sinkhorn_rounds: int = 50,
        dropout: float = 0.1,
        clip: float | None = 0.6,
        as_released: bool = False,
    ) -> None:
        super().__init__(model, optimizer, criterion)
        if not isinstance(model.fusion, Aligned):
            raise ValueError(
                'decalign aligns specific and common parts of features; use fusion "aligned", '
                "Multimodal(encoders, Aligned(widths, classes))"
            )
        if contrast > 0 and criterion is F.binary_cross_entropy_with_logits:
            raise ValueError(
                f"decalign: contrast is {contrast}, which is for one class per sample, and this "
                "data has several labels; use contrast=0"
            )
        weights = {"decoupling": decoupling, "alpha": alpha, "beta": beta, "contrast": contrast}
        require_at_least("decalign", 0, **weights)
        require_positive("decalign", temperature=temperature, entropy=entropy, clip=clip)
        rounds = {"em_rounds": em_rounds, "sinkhorn_rounds": sinkhorn_rounds}
        require_at_least("decalign", 1, prototypes=prototypes, **rounds)
        if not 0 <= dropout < 1:
            raise ValueError(
                f"decalign: dropout is {dropout}; it must be in [0, 1), 0.1 for instance"
            )
        self.decoupling, self.alpha, self.beta = decoupling, alpha, beta
        self.contrast, self.temperature = contrast, temperature
        self.prototypes, self.em_rounds = prototypes, em_rounds
        self.entropy, self.sinkhorn_rounds = entropy, sinkhorn_rounds
        self.dropout, self.clip, self.as_released = dropout, clip, as_released
        names = model.modalities
        self.aligning = len(names) == TOGETHER if as_released else len(names) > 1
        self.inner, self.outer = ByModality(), ByModality()  # the two layers of every MLP_m
        for modality in names if self.aligning else ():
            self._add_network(modality, model.fusion.width)

    def _add_network(self, modality: str, width: int) -> None:
        for layers in (self.inner, self.outer):
            layers[modality] = nn.Linear(width, width).to(next(self.model.parameters()))
            self.adopt(layers[modality], modality)

    @property
    def aligned(self) -> Aligned:
        """The fusion."""
        assert isinstance(self.model.fusion, Aligned)
        return self.model.fusion

    def loss(self, output: Output, batch: Batch) -> Terms:
        terms = super().loss(output, batch)
        specific, common = self.aligned.decoupled(output.features)
        overlaps = torch.stack([overlap(specific[m], common[m]) for m in specific])
        terms["decoupling"] = self.decoupling * overlaps.mean()
        if self.aligning:
            s = torch.stack([part.mean(dim=1) for part in specific.values()])
            terms |= self.heterogeneous(s)
            z = torch.stack([self.meaning(m, part.mean(dim=1)) for m, part in common.items()])
            terms |= self.homogeneous(z)
        if self.contrast > 0:
            joined = self.aligned.joined(output.features)
            told = contrastive(joined, batch.target, self.temperature)
            terms["contrast"] = self.contrast * told
        return terms

    def heterogeneous(self, specific: Tensor) -> Terms:
        """The alignment of what every modality has alone, s [M, n, d]."""
        found = mixture(specific, self.prototypes, self.em_rounds)
        moved = alignment(found, self.entropy, self.sinkhorn_rounds, as_released=self.as_released)
        near = mean_of_pairs(sample_costs(specific, found))
        return {"transport": self.alpha * moved, "prototypes": self.alpha * near}

    def homogeneous(self, z: Tensor) -> Terms:
        """The alignment of what all modalities have in common, z [M, n, d]."""
        return {
            "moments": self.beta * mean_of_pairs(moment_gaps(z)),
            "kernels": self.beta * mean_of_pairs(discrepancies(z)),
        }

    def meaning(self, modality: str, common: Tensor) -> Tensor:
        """MLP_m of c_m [n, d]."""
        h = self.inner[modality](common).relu()
        if self.dropout > 0:
            h = dropped(h, self.dropout, self.generator(f"dropout/{modality}", h.device))
        return self.outer[modality](h)

    def modulate(self, output: Output, batch: Batch) -> None:
        if self.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters(), self.clip)
