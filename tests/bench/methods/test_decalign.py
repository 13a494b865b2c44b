"""DecAlign: parts that are decoupled, and aligned by transport and by moments."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import combinations, permutations
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributions import Independent, Normal
from torch.nn import functional as F
from torch.testing import assert_close

from tests.bench import toys
from tests.bench.methods import kit
from vcmm.bench.fusions.aligned import Aligned
from vcmm.bench.method import groups
from vcmm.bench.methods import decalign as published
from vcmm.bench.methods.decalign import DecAlign, Mixture
from vcmm.bench.model import Multimodal
from vcmm.bench.types import Batch

few = settings(max_examples=12, deadline=None)
seeds = st.integers(0, 2**32 - 1)


def drawn(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    chance = torch.Generator().manual_seed(seed)
    return scale * torch.randn(*shape, generator=chance, dtype=torch.float64)


def small(modalities: int = 2, criterion: Any = F.cross_entropy, **options: Any) -> DecAlign:
    """A method on a model of a few weights, without dropout unless it is asked for."""
    torch.manual_seed(modalities)
    names = kit.NAMES[:modalities]
    encoders = {m: nn.Linear(2, 3, bias=False) for m in names}
    fusion = Aligned(dict.fromkeys(names, 3), kit.CLASSES, width=4, heads=2, layers=1)
    model = Multimodal(encoders, fusion).double()
    optimizer = torch.optim.SGD(groups(model), lr=0.1)
    return DecAlign(model, optimizer, criterion, **{"dropout": 0.0, "clip": None, **options})


# Everything once more, as slowly as one would say it


def slow_mixture(x: Tensor, prototypes: int, rounds: int) -> tuple[Tensor, Tensor, Tensor]:
    """mu, v and gamma of one modality [n, d], with densities in place of their logarithms."""
    rows = torch.linspace(0, len(x) - 1, prototypes).long().tolist()
    weight = [torch.tensor(1 / prototypes)] * prototypes
    mean = [x[row] for row in rows]
    variance = [((x - x.mean(0)) ** 2).mean(0).clamp_min(1e-4)] * prototypes
    for done in range(rounds + 1):
        density = [
            Independent(Normal(mu, v.sqrt()), 1) for mu, v in zip(mean, variance, strict=True)
        ]
        likely = torch.stack(
            [w * g.log_prob(x).exp() for w, g in zip(weight, density, strict=True)], 1
        )
        gamma = likely / likely.sum(1, keepdim=True)
        if done < rounds:
            counts = gamma.sum(0)
            weight = list(counts / len(x))
            mean = [(gamma[:, k, None] * x).sum(0) / counts[k] for k in range(prototypes)]
            variance = [
                ((gamma[:, k, None] * (x - mean[k]) ** 2).sum(0) / counts[k]).clamp_min(1e-4)
                for k in range(prototypes)
            ]
    return torch.stack(mean), torch.stack(variance), gamma


def slow_cost(a: tuple[Tensor, ...], b: tuple[Tensor, ...], k: int, q: int) -> Tensor:
    (mu, v, _), (nu, w, _) = a, b
    apart = (mu[k] - nu[q]).square().mean()
    return apart + (v[k] + w[q] - 2 * (v[k] * w[q]).sqrt()).mean()


def slow_transport(found: list[tuple[Tensor, ...]], eps: float, rounds: int) -> Tensor:
    """L_OT of two or three modalities in one plan, with scalings of the kernel."""
    letters = "abc"[: len(found)]
    size = range(len(found[0][0]))
    cost = torch.zeros([len(size)] * len(found), dtype=torch.float64)
    for (i, one), (j, two) in combinations(enumerate(found), 2):
        pair = torch.stack([torch.stack([slow_cost(one, two, k, q) for q in size]) for k in size])
        shape = [len(size) if axis in (i, j) else 1 for axis in range(len(found))]
        cost = cost + pair.reshape(shape)
    kernel = (-cost / eps).exp()
    scale = [torch.ones(len(size), dtype=torch.float64) for _ in found]
    for _ in range(rounds):
        for i, (_, _, gamma) in enumerate(found):
            rest = [s for j, s in enumerate(scale) if j != i]
            inputs = ",".join([letters, *(x for j, x in enumerate(letters) if j != i)])
            scale[i] = gamma.mean(0) / torch.einsum(f"{inputs}->{letters[i]}", kernel, *rest)
    plan = torch.einsum(f"{letters},{','.join(letters)}->{letters}", kernel, *scale)
    return (plan * cost).sum() + eps * (plan * (plan.log() - 1)).sum()


def slow_near(s: list[Tensor], found: list[tuple[Tensor, ...]]) -> Tensor:
    pairs: list[Tensor] = []
    for m, j in permutations(range(len(s)), 2):
        of_samples = [
            sum(
                found[m][2][i, k] * (x - found[j][0][k]).square().mean()
                for k in range(len(found[j][0]))
            )
            for i, x in enumerate(s[m])
        ]
        pairs.append(sum(of_samples) / len(of_samples))
    return sum(pairs) / len(pairs)


def slow_moments(z: list[Tensor]) -> Tensor:
    def moments(x: Tensor) -> tuple[Tensor, ...]:
        third = (x - x.mean(0)).pow(3).mean(0)
        return x.mean(0), torch.cov(x.T), third / x.var(0, correction=0).clamp_min(1e-6) ** 1.5

    pairs = [
        sum(F.mse_loss(a, b) for a, b in zip(moments(x), moments(y), strict=True))
        for x, y in combinations(z, 2)
    ]
    return sum(pairs) / len(pairs)


def slow_kernels(z: list[Tensor]) -> Tensor:
    def similar(x: Tensor, y: Tensor) -> Tensor:
        each = [torch.exp(-(a - b).square().sum() / 2) for a in x for b in y]
        return sum(each) / len(each)

    pairs = [similar(x, x) + similar(y, y) - 2 * similar(x, y) for x, y in combinations(z, 2)]
    return sum(pairs) / len(pairs)


def normed(norm: nn.LayerNorm, row: Tensor) -> Tensor:
    unit = (row - row.mean()) / (row.var(correction=0) + norm.eps).sqrt()
    return unit * norm.weight + norm.bias


def slow_fusion(fusion: Aligned, h: Mapping[str, Tensor]) -> tuple[Any, Any, Tensor]:
    """s, c and the fused logits of features [n, D]: attention sample by sample, head by head."""
    x = {m: h[m] @ fusion.inward[m].weight.T for m in h}
    s = {m: x[m] @ fusion.specific[m].weight.T + fusion.specific[m].bias for m in x}
    c = {m: x[m] @ fusion.common.weight.T + fusion.common.bias for m in x}
    root = math.sqrt(4)
    parts: list[Tensor] = []
    for m in sorted(h):
        rows: list[Tensor] = []
        for i in range(len(h[m])):
            row = s[m][i] * root
            (layer,) = fusion.crossing[m]
            look = layer.attention
            asked = [s[j][i] * root for j in sorted(h) if j != m] or [row]
            heads: list[Tensor] = []
            for part in (slice(0, 2), slice(2, 4)):
                values = [look.values(a)[part] for a in asked]
                scores = torch.zeros(1, dtype=torch.float64)
                if look.queries is not None:
                    query = look.queries(row)[part]
                    scores = torch.stack([query @ look.keys(a)[part] for a in asked])
                p = (scores / math.sqrt(2)).softmax(0)
                heads.append(sum(p[k] * value for k, value in enumerate(values)))
            row = normed(layer.first, row + look.outward(torch.cat(heads)))
            inner = layer.inner[2](layer.inner[0](row).relu())
            rows.append(normed(layer.second, row + inner))
        parts += [torch.stack(rows), c[m]]
    return s, c, fusion.head(torch.cat(parts, dim=1))


def slow_terms(method: DecAlign, batch: Batch) -> dict[str, Tensor]:
    h = {m: method.model.encoders[m](batch.inputs[m]) for m in method.model.modalities}
    s, c, fused = slow_fusion(method.aligned, h)
    cosines = [F.cosine_similarity(s[m], c[m]).square().mean() for m in s]
    terms = {
        "fused": F.cross_entropy(fused, batch.target),
        "decoupling": method.decoupling * sum(cosines) / len(cosines),
    }
    if len(s) > 1:
        found = {m: slow_mixture(x, method.prototypes, method.em_rounds) for m, x in s.items()}
        together = [tuple(s)] if len(s) <= 3 else list(combinations(s, 2))
        moved = [
            slow_transport([found[m] for m in g], method.entropy, method.sinkhorn_rounds)
            for g in together
        ]
        z = [method.outer[m](method.inner[m](c[m]).relu()) for m in c]
        terms |= {
            "transport": method.alpha * sum(moved),
            "prototypes": method.alpha * slow_near(list(s.values()), list(found.values())),
            "moments": method.beta * slow_moments(z),
            "kernels": method.beta * slow_kernels(z),
        }
    return terms


@pytest.mark.parametrize("modalities", [1, 2, 3, 4])
def test_losses_and_gradients_are_those_of_slow_loops(modalities: int) -> None:
    options = {"prototypes": 3, "em_rounds": 2, "sinkhorn_rounds": 4}
    method = small(modalities, alpha=0.5, beta=0.7, decoupling=0.9, **options)
    batch = kit.some(method.model, 7)
    expected = slow_terms(method, batch)
    named = dict(method.named_parameters())
    slow = torch.autograd.grad(sum(expected.values()), list(named.values()))

    before = {name: value.detach().clone() for name, value in named.items()}
    report = method.step(batch)
    assert_close(report["loss"], sum(expected.values()).detach(), rtol=1e-9, atol=0)
    for name, value in expected.items():
        assert_close(report[f"loss/{name}"], value.detach(), rtol=1e-9, atol=1e-12)
    for (name, value), gradient in zip(named.items(), slow, strict=True):
        # 1e-8: variances near the floor make the gradient of EM steep.
        assert_close(before[name] - value.detach(), 0.1 * gradient, rtol=1e-8, atol=1e-10)


# The decoupling loss


def test_parts_that_are_equal_overlap_by_1_and_orthogonal_ones_by_0() -> None:
    s = drawn(5, 3, 4)
    assert published.overlap(s, s).item() == pytest.approx(1, abs=1e-12)
    assert published.overlap(s, -3 * s).item() == pytest.approx(1, abs=1e-12)
    one, other = torch.eye(4, dtype=torch.float64)[:2].expand(5, 2, 4).unbind(1)
    assert published.overlap(one[:, None], other[:, None]).item() == 0
    c = drawn(5, 3, 4, seed=1)
    expected = F.cosine_similarity(s.flatten(1), c.flatten(1)).square().mean()
    assert_close(published.overlap(s, c), expected)  # time is part of the vector


# The mixture


@pytest.mark.parametrize(("samples", "prototypes"), [(12, 4), (30, 7), (9, 1), (3, 5)])
@pytest.mark.parametrize("rounds", [0, 1, 5])
def test_em_is_that_of_a_slow_loop(samples: int, prototypes: int, rounds: int) -> None:
    x = drawn(3, samples, 2)
    found = published.mixture(x, prototypes, rounds)
    for m in range(3):
        mean, variance, gamma = slow_mixture(x[m], prototypes, rounds)
        assert_close(found.mean[m], mean, rtol=1e-8, atol=1e-10)
        assert_close(found.variance[m], variance, rtol=1e-7, atol=1e-10)
        assert_close(found.log_posterior[m].exp(), gamma, rtol=1e-7, atol=1e-10)
        assert_close(found.log_marginals[m].exp(), gamma.mean(0), rtol=1e-7, atol=1e-10)


def test_em_starts_from_evenly_spaced_rows_which_repeat_where_there_are_too_few() -> None:
    x = torch.arange(7.0)[None, :, None]
    start = published.mixture(x, 4, 0)
    assert start.mean.flatten().tolist() == [0, 2, 4, 6]
    assert start.variance.flatten().tolist() == [4.0] * 4  # of 0..6, divided by 7
    assert published.mixture(x[:, :2], 5, 0).mean.flatten().tolist() == [0, 0, 0, 0, 1]
    assert published.mixture(x[:, :1], 3, 5).mean.flatten().tolist() == [0] * 3


def test_em_finds_clusters_and_variances_have_a_floor() -> None:
    x = torch.cat([drawn(20, 2, scale=0.1), drawn(20, 2, seed=1, scale=0.1) + 5])
    found = published.mixture(x[None], 2, 5)
    assert_close(found.mean[0], torch.stack([x[:20].mean(0), x[20:].mean(0)]), rtol=1e-9, atol=0)
    assert_close(found.log_marginals.exp(), torch.full((1, 2), 0.5, dtype=torch.float64))
    assert published.mixture(x[None, :1].expand(1, 6, 2), 2, 5).variance.unique() == 1e-4


# The transport


def test_costs_of_prototypes_by_hand() -> None:
    mean = torch.tensor([[[0.0, 0.0], [1.0, 3.0]], [[2.0, 0.0], [1.0, 1.0]]])
    variance = torch.tensor([[[1.0, 4.0], [1.0, 1.0]], [[1.0, 1.0], [9.0, 4.0]]])
    costs = published.prototype_costs(mean, variance)
    # (0, 0) and (2, 0): (4 + 0) / 2, and deviations (1, 2) and (1, 1): (0 + 1) / 2.
    assert costs[0, :, 1].tolist() == [[2.5, 1 + 2], [(1 + 9) / 2, (0 + 4) / 2 + (4 + 1) / 2]]
    assert_close(costs, costs.permute(2, 3, 0, 1))


def test_the_cost_of_three_is_the_sum_over_pairs() -> None:
    costs = published.prototype_costs(drawn(3, 4, 5), drawn(3, 4, 5, seed=1).square())
    cost = published.joint_cost(costs, (0, 1, 2))
    for a, b, c in ((0, 0, 0), (1, 2, 3), (3, 0, 2)):
        expected = costs[0, a, 1, b] + costs[0, a, 2, c] + costs[1, b, 2, c]
        assert_close(cost[a, b, c], expected)
    assert torch.equal(published.joint_cost(costs, (0, 2)), costs[0, :, 2])


def test_up_to_three_are_in_one_transport_and_more_in_pairs() -> None:
    assert published.groups_of(2) == [(0, 1)]
    assert published.groups_of(3) == [(0, 1, 2)]
    assert published.groups_of(4) == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    found = published.mixture(drawn(4, 20, 3), 3, 5)
    pairs = [
        published.alignment(Mixture(*(part[list(pair)] for part in found)), 0.1, 50)
        for pair in combinations(range(4), 2)
    ]
    assert_close(published.alignment(found, 0.1, 50), torch.stack(pairs).sum())


def unit_scale(modalities: int) -> tuple[Tensor, Tensor]:
    """Cost and log marginals of prototypes of features of unit scale, in single precision."""
    found = published.mixture(drawn(modalities, 32, 64).float(), 7, 5)
    costs = published.prototype_costs(found.mean, found.variance)
    cost = published.joint_cost(costs, tuple(range(modalities)))
    return cost[None], found.log_marginals[None]


def marginals_of(plan: Tensor) -> Tensor:
    axes = plan.ndim - 1
    return torch.stack([plan.sum(dim=published.others(a, axes)) for a in range(axes)], dim=1)


@pytest.mark.parametrize("modalities", [2, 3])
def test_the_plan_has_its_marginals_at_unit_scale(modalities: int) -> None:
    cost, log_marginals = unit_scale(modalities)
    plan = published.log_plan(cost, log_marginals, 0.1, 50).exp()
    assert_close(marginals_of(plan), log_marginals.exp(), rtol=0, atol=1e-4)
    assert plan.sum().item() == pytest.approx(1, abs=1e-5)


def test_the_released_plan_loses_mass_where_the_logarithmic_one_does_not() -> None:
    cost, log_marginals = unit_scale(3)
    lossy = published.released_plan(cost, log_marginals.exp(), 0.1, 50)
    assert lossy.sum() < 0.995
    far = published.released_plan(30 * cost, log_marginals.exp(), 0.1, 50)
    assert far.sum() < 1e-3
    kept = published.log_plan(30 * cost, log_marginals, 0.1, 50)
    assert kept.exp().sum().item() == pytest.approx(1, abs=1e-4)
    # Where nothing is lost they are the same.
    near = published.released_plan(cost.double() / 50, log_marginals.double().exp(), 0.1, 50)
    exact = published.log_plan(cost.double() / 50, log_marginals.double(), 0.1, 50).exp()
    assert_close(near, exact, rtol=1e-4, atol=1e-8)


@few
@given(seeds, st.integers(1, 3), st.integers(2, 4), st.integers(1, 4))
def test_any_plan_has_its_marginals(seed: int, problems: int, axes: int, size: int) -> None:
    cost = drawn(problems, *[size] * axes, seed=seed).abs()
    log_marginals = drawn(problems, axes, size, seed=seed + 1).log_softmax(-1)
    plan = published.log_plan(cost, log_marginals, 0.5, 200).exp()
    assert (plan >= 0).all()
    assert_close(marginals_of(plan), log_marginals.exp(), rtol=0, atol=1e-4)
    assert_close(marginals_of(plan)[:, -1], log_marginals[:, -1].exp(), rtol=1e-9, atol=0)


@few
@given(seeds, st.integers(2, 3), st.integers(1, 4))
def test_a_plan_costs_no_more_than_independence(seed: int, axes: int, size: int) -> None:
    """It is the best of all plans with its marginals, and their product is one of them."""
    cost = drawn(1, *[size] * axes, seed=seed).abs()
    log_marginals = drawn(1, axes, size, seed=seed + 1).log_softmax(-1)
    best = published.log_plan(cost, log_marginals, 0.5, 400)
    product = sum(published.along(log_marginals[:, a], a, axes) for a in range(axes))
    values = [published.transport(p.exp(), p, cost, 0.5) for p in (best, product)]
    assert values[0] <= values[1] + 1e-6


@few
@given(seeds, st.permutations(range(3)))
def test_the_order_of_modalities_changes_no_loss(seed: int, order: list[int]) -> None:
    x = drawn(3, 8, 4, seed=seed)
    one, other = published.mixture(x, 3, 5), published.mixture(x[order], 3, 5)
    near, again = published.sample_costs(x, one), published.sample_costs(x[order], other)
    assert_close(again, near[order][:, order], rtol=1e-7, atol=1e-9)
    # Axes are scaled in turn, so the plans agree as far as they have converged.
    transports = [published.alignment(found, 1.0, 300) for found in (one, other)]
    assert_close(*transports, rtol=1e-6, atol=1e-6)
    for of in (published.moment_gaps, published.discrepancies):
        assert_close(of(x[order]), of(x)[order][:, order], rtol=1e-9, atol=1e-12)


def test_samples_and_prototypes_are_matched_by_number() -> None:
    x = torch.tensor([[[0.0], [4.0]], [[1.0], [3.0]]], dtype=torch.float64)
    mean = torch.tensor([[[0.0], [4.0]], [[10.0], [20.0]]], dtype=torch.float64)
    gamma = torch.tensor([[[1.0, 0.0], [0.25, 0.75]], [[0.5, 0.5], [0.0, 1.0]]]).double()
    costs = published.sample_costs(x, Mixture(mean, torch.ones_like(mean), gamma.log()))
    assert costs[0, 1].item() == pytest.approx((100 + (0.25 * 36 + 0.75 * 256)) / 2)
    assert costs[1, 0].item() == pytest.approx(((0.5 * 1 + 0.5 * 9) + 1) / 2)
    assert published.mean_of_pairs(costs).item() == pytest.approx((150.5 + 3) / 2)


# Moments and kernels


def test_moments_by_hand() -> None:
    x = torch.tensor([[0.0], [0.0], [3.0]], dtype=torch.float64)
    y = torch.zeros(3, 1, dtype=torch.float64)
    gap = published.moment_gaps(torch.stack([x, y]))
    # Means 1 and 0. Covariances 6 / 2 and 0. The third moment is (-1 - 1 + 8) / 3 = 2, var is 2.
    assert gap[0, 1].item() == pytest.approx(1 + 9 + (2 / 2**1.5) ** 2)
    assert gap[0, 0] == gap[1, 1] == 0
    tiny = torch.tensor([[0.0], [0.0], [3e-4]], dtype=torch.float64)
    gap = published.moment_gaps(torch.stack([tiny, y]))
    third = 2e-12 / 1e-6**1.5  # its variance, 2e-8, is below the floor
    assert gap[0, 1].item() == pytest.approx(third**2 + (1e-4) ** 2 + (3e-8) ** 2)


@few
@given(seeds, st.integers(1, 4), st.integers(2, 6), st.integers(1, 5))
def test_discrepancies(seed: int, modalities: int, samples: int, width: int) -> None:
    z = drawn(modalities, samples, width, seed=seed)
    found = published.discrepancies(torch.cat([z, z[:1]]))
    assert found[0, -1].abs() < 1e-12  # MMD(x, x)
    assert found.diagonal().abs().max() < 1e-12
    assert_close(found, found.T, rtol=1e-9, atol=1e-12)
    assert (found > -1e-12).all()
    shuffled = z[:, torch.randperm(samples, generator=torch.Generator().manual_seed(seed))]
    assert published.discrepancies(torch.cat([z, shuffled]))[0, modalities].abs() < 1e-12
    for m, j in combinations(range(modalities), 2):
        assert_close(found[m, j], slow_kernels([z[m], z[j]]), rtol=1e-7, atol=1e-10)


# Supervised contrast


def test_contrast_is_that_of_a_slow_loop() -> None:
    h, target = drawn(6, 4), torch.tensor([0, 1, 0, 2, 1, 0])
    unit = h / h.norm(dim=1, keepdim=True)
    each: list[Tensor] = []
    for i in range(6):
        rest = [j for j in range(6) if j != i]
        all_of_them = torch.stack([unit[i] @ unit[j] / 0.1 for j in rest]).logsumexp(0)
        same = [unit[i] @ unit[j] / 0.1 - all_of_them for j in rest if target[i] == target[j]]
        if same:
            each.append(-sum(same) / len(same))
    assert len(each) == 5  # nobody is like the only sample of class 2
    found = published.contrastive(h, target, 0.1)
    assert_close(found, sum(each) / len(each))
    assert published.contrastive(h[:2], target[:2], 0.1) == 0


def test_contrast_is_a_term_with_a_weight() -> None:
    method = small(contrast=0.003)
    batch = kit.some(method.model)
    report = method.step(batch)
    method = small(contrast=0.003)
    joined = method.aligned.joined(method.model(batch.inputs).features)
    expected = 0.003 * published.contrastive(joined, batch.target, 0.1)
    assert_close(report["loss/contrast"], expected.detach())
    assert "loss/contrast" not in small().step(batch)


# The method


TERMS = {"fused", "decoupling", "transport", "prototypes", "moments", "kernels"}


@pytest.mark.parametrize("modalities", [1, 2, 3, 6])
@pytest.mark.parametrize("as_released", [False, True])
def test_as_released_only_three_modalities_are_aligned(modalities: int, as_released: bool) -> None:
    method = small(modalities, as_released=as_released)
    report = method.step(kit.some(method.model))
    aligned = modalities == 3 if as_released else modalities > 1
    told = {f"loss/{name}" for name in (TERMS if aligned else {"fused", "decoupling"})}
    assert set(report) == {"loss", *told}
    assert len(list(method.inner.parameters())) == (2 * modalities if aligned else 0)


def test_as_released_the_transport_has_exponentials() -> None:
    s = drawn(3, 12, 4, scale=3)
    found = published.mixture(s, 7, 5)
    expected = published.alignment(found, 0.1, 50, as_released=True)
    costs = published.prototype_costs(found.mean, found.variance)
    cost = published.joint_cost(costs, (0, 1, 2))
    plan = published.released_plan(cost[None], found.log_marginals.exp()[None], 0.1, 50)[0]
    by_hand = (plan * cost).sum() + 0.1 * (torch.xlogy(plan, plan) - plan).sum()
    assert_close(expected, by_hand)
    for as_released in (False, True):
        term = small(3, as_released=as_released).heterogeneous(s)["transport"]
        assert torch.allclose(term, 0.05 * expected) == as_released


def test_published_settings_are_the_defaults() -> None:
    method = DecAlign(*kit.small(2, "aligned"))
    assert (method.decoupling, method.alpha, method.beta) == (1.0, 0.05, 0.07)
    assert (method.prototypes, method.em_rounds, method.sinkhorn_rounds) == (7, 5, 50)
    assert (method.entropy, method.clip, method.contrast) == (0.1, 0.6, 0.0)
    fusion = method.aligned
    assert (fusion.width, len(fusion.crossing["audio"])) == (64, 5)
    assert fusion.crossing["audio"][0].attention.heads == 8


def test_every_modality_has_a_network_of_its_own_which_the_optimizer_trains_with_it() -> None:
    method = small(3)
    of_group = {group["modality"]: set(group["params"]) for group in method.optimizer.param_groups}
    for m in method.model.modalities:
        own = {*method.inner[m].parameters(), *method.outer[m].parameters()}
        assert len(own) == 4
        assert own <= of_group[m]
    c = drawn(5, 4)
    expected = method.outer["flow"](method.inner["flow"](c).relu())
    assert torch.equal(method.meaning("flow", c), expected)


def test_dropout_lies_between_the_two_layers_and_keeps_the_mean() -> None:
    x = torch.ones(200, 50, dtype=torch.float64)
    thinned = published.dropped(x, 0.2, torch.Generator().manual_seed(0))
    assert set(thinned.unique().tolist()) == {0.0, 1.25}
    assert thinned.mean().item() == pytest.approx(1, abs=0.02)  # 4 deviations of .005
    method = small(2, dropout=0.5)
    c = drawn(5, 4)
    first, second = (method.meaning("flow", c) for _ in range(2))
    assert not torch.equal(first, second)
    assert "dropout/flow" in method.get_extra_state()["generators"]


def test_all_gradients_together_are_clipped() -> None:
    def norm(clip: float | None) -> float:
        method = small(2, clip=clip)
        start = {name: value.detach().clone() for name, value in method.named_parameters()}
        method.step(kit.some(method.model))
        moved = [value.detach() - start[name] for name, value in method.named_parameters()]
        return torch.stack([x.square().sum() for x in moved]).sum().sqrt().item() / 0.1

    whole = norm(None)
    assert norm(whole / 3) == pytest.approx(whole / 3, rel=1e-4)
    assert norm(whole * 3) == pytest.approx(whole, rel=1e-12)


DEGENERATE = {
    "two samples": lambda m, n: drawn(2, 2),
    "one sample": lambda m, n: drawn(1, 2),
    "fewer samples than prototypes": lambda m, n: drawn(4, 2),
    "all equal": lambda m, n: drawn(1, 2).expand(n, 2),
    "all zero": lambda m, n: torch.zeros(n, 2),
    "two values": lambda m, n: drawn(2, 2).repeat(n // 2, 1),
    "large": lambda m, n: 1e3 * drawn(n, 2),
    "small": lambda m, n: 1e-6 * drawn(n, 2),
}


@pytest.mark.parametrize("case", DEGENERATE)
@pytest.mark.parametrize("as_released", [False, True])
@pytest.mark.parametrize("modalities", [2, 3, 6])
def test_degenerate_batches_have_finite_losses_and_gradients(
    case: str, modalities: int, as_released: bool
) -> None:
    method = small(modalities, as_released=as_released, contrast=0.003, dropout=0.1).float()
    inputs = {m: DEGENERATE[case](m, 8).float() for m in method.model.modalities}
    samples = len(next(iter(inputs.values())))
    batch = Batch(inputs, torch.arange(samples) % kit.CLASSES, torch.arange(samples))
    terms = method.loss(method(batch.inputs), batch)
    assert all(term.isfinite() for term in terms.values())
    method.backward(terms)
    found = [parameter.grad for parameter in method.parameters() if parameter.grad is not None]
    assert len(found) > 10
    assert all(gradient.isfinite().all() for gradient in found)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ValueError, match='fusion "aligned"'):
        DecAlign(*kit.small())
    wrong: list[dict[str, Any]] = [
        *({name: -0.1} for name in ("decoupling", "alpha", "beta", "contrast")),
        *({name: 0.0} for name in ("temperature", "entropy", "clip")),
        *({name: 0} for name in ("prototypes", "em_rounds", "sinkhorn_rounds")),
        {"dropout": 1.0},
        {"dropout": -0.1},
    ]
    for options in wrong:
        ((name, value),) = options.items()
        with pytest.raises(ValueError, match=f"decalign: {name} is {value}"):
            small(**options)
    with pytest.raises(ValueError, match="several labels; use contrast=0"):
        small(criterion=F.binary_cross_entropy_with_logits, contrast=0.1)


def test_several_labels() -> None:
    method = small(3, F.binary_cross_entropy_with_logits)
    batch = kit.some(method.model)
    labels = F.one_hot(batch.target, kit.CLASSES).double()
    assert method.step(Batch(batch.inputs, labels, batch.index))["loss"].isfinite()


def test_one_forward_and_one_backward_a_step() -> None:
    method = small(3)
    method.step(kit.some(method.model))
    assert dict(method.counts) == {"forwards": 1, "backwards": 1, "updates": 1}


@pytest.mark.parametrize(("controller", "optimizer"), [("none", "adam"), ("vcmm", "sgd")])
@pytest.mark.parametrize("steps", [2, 4])
def test_a_stopped_training_goes_on_bitwise(controller: str, optimizer: str, steps: int) -> None:
    """Its dropout too."""
    axes = {"controller": controller, "optimizer": optimizer}
    assert kit.differences_of_resume(kit.spec("decalign", 2, axes=tiny(axes)), steps) == []


def test_renaming_modalities_changes_no_loss() -> None:
    names = {"m1": "m2", "m2": "m3", "m3": "m1"}
    # Without beta, because the networks of the method itself are not carried over here; they are
    # in the conformance tests.
    of = kit.spec("decalign", 3, dropout=0.0, beta=0.0, axes=tiny({}))
    plain, other = kit.losses_under(of, names)
    for a, b in zip(plain, other, strict=True):
        # Axes of the plan are scaled in turn, which after 50 rounds makes no difference to 1e-6.
        assert a == pytest.approx(b, rel=1e-6, abs=1e-6)


def test_it_learns() -> None:
    of = kit.spec("decalign", axes=tiny({"epochs": 12}))
    _, losses = toys.trained(of)
    for term in ("fused", "moments", "kernels"):
        assert losses[-1][f"loss/{term}"] < 0.5 * losses[0][f"loss/{term}"]


def tiny(axes: dict[str, Any]) -> dict[str, Any]:
    """With a transformer as small as the encoders."""
    return {"fusion": toys.FUSIONS["decalign"], **axes}
