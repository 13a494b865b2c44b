"""AGM: the gradient into every modality's share of the logits is scaled."""

from __future__ import annotations

import math
from itertools import permutations
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.bench import toys
from tests.bench.methods import kit
from vcmm.bench.fusions import FUSIONS
from vcmm.bench.method import groups
from vcmm.bench.methods.agm import (
    AGM,
    Coalition,
    clip_if_steep_,
    coefficients,
    contributions,
    deficiency,
    pace,
    partial_coalitions,
    steered,
)
from vcmm.bench.model import Multimodal


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def game(*names: str, seed: int = 0) -> dict[Coalition, Tensor]:
    """F of everyone and of the partial coalitions, drawn at random."""
    chance = torch.Generator().manual_seed(seed)
    asked = [*partial_coalitions(names), Coalition(names)]
    return {s: torch.randn(4, 3, generator=chance, dtype=torch.float64) for s in asked}


def test_coefficients_of_the_paper() -> None:
    kappa = coefficients(tensor(0.5, 1.2), tensor(0.8, 1.0), 1.5)
    assert kappa.tolist() == pytest.approx([0.3046703447, 1.6212835882], abs=1e-9)


def test_gradients_into_the_three_passes() -> None:
    """With g = dCE/dF(a, v): (k_a + k_v) / 2 g, (k_a - k_v) / 2 g, (k_v - k_a) / 2 g."""
    both = tensor(0.3, 0.2, -0.1).unsqueeze(0).requires_grad_()
    alone = [torch.randn(1, 3, dtype=torch.float64).requires_grad_() for _ in range(2)]
    passes = {Coalition("av"): both, Coalition("a"): alone[0], Coalition("v"): alone[1]}
    fused = steered(both, contributions(passes), tensor(1.5, 0.5))
    assert torch.equal(fused, both)
    F.cross_entropy(fused, torch.tensor([0])).backward()
    g = [-0.611674232, 0.351371685, 0.260302547]
    for share, part in ((1.0, both), (0.5, alone[0]), (-0.5, alone[1])):
        assert part.grad[0].tolist() == pytest.approx([share * x for x in g], abs=1e-9)


def test_contributions_of_two() -> None:
    f = game("a", "v")
    both, a, v = f[Coalition("av")], f[Coalition("a")], f[Coalition("v")]
    found = contributions(f)
    assert torch.allclose(found["a"], 0.5 * (both - v + a), rtol=1e-12)
    assert torch.allclose(found["v"], 0.5 * (both - a + v), rtol=1e-12)


def test_contributions_of_three_are_averages_over_orders() -> None:
    names = ("a", "t", "v")
    f = {Coalition(): torch.zeros(4, 3, dtype=torch.float64), **game(*names)}
    slow = {m: torch.zeros(4, 3, dtype=torch.float64) for m in names}
    for order in permutations(names):
        for place, m in enumerate(order):
            before = Coalition(order[:place])
            slow[m] += (f[before | {m}] - f[before]) / 6
    found = contributions({s: value for s, value in f.items() if s})
    for m in names:
        assert torch.allclose(found[m], slow[m], rtol=1e-10), m


@pytest.mark.parametrize("count", range(1, 7))
def test_contributions_add_up_and_follow_their_names(count: int) -> None:
    names = kit.NAMES[:count]
    f = game(*names)
    found = contributions(f)
    assert torch.allclose(torch.stack(list(found.values())).sum(dim=0), f[Coalition(names)])
    new = dict(zip(names, [*names[1:], names[0]], strict=True))
    moved = contributions({Coalition(new[m] for m in s): value for s, value in f.items()})
    for m in names:
        assert torch.allclose(moved[new[m]], found[m], rtol=1e-10)


def test_how_many_coalitions_are_asked() -> None:
    assert [len(partial_coalitions(kit.NAMES[:m])) for m in range(1, 7)] == [0, 2, 6, 4, 5, 6]


def test_pace_and_its_bounds() -> None:
    assert pace(tensor(0.5, 1.2)).tolist() == pytest.approx([math.exp(0.7), math.exp(-0.7)])
    three = pace(tensor(1.0, 2.0, 6.0)).tolist()
    assert three == pytest.approx([math.exp(1.5 * x) for x in (2.0, 1.0, -3.0)])
    assert pace(tensor(3.0)).tolist() == [1.0]
    largest = coefficients(tensor(9.0, 0.0), tensor(0.0, 9.0), 1.0)
    assert largest[0].item() == pytest.approx(math.exp(10))
    assert largest[1].item() == 0.0


def test_probabilities_have_a_floor() -> None:
    logits = torch.tensor([[0.0, 100.0], [0.0, 0.0]], dtype=torch.float64)
    expected = (-math.log(1e-8) + math.log(2)) / 2
    found = deficiency(logits, torch.tensor([0, 0])).item()
    assert found == pytest.approx(expected, rel=1e-12)


def by_hooks(model: Multimodal, batch: kit.Batch, kappa: dict[str, float]) -> dict[str, Tensor]:
    """The gradients as a whole pass for every coalition gives them, with hooks on the shares."""

    def fused(names: tuple[str, ...]) -> Tensor:
        inputs = {m: x if m in names else torch.zeros_like(x) for m, x in batch.inputs.items()}
        return model(inputs).fused

    names = model.modalities
    values = {Coalition(names): fused(names)}
    model.eval()
    values |= {s: fused(tuple(s)) for s in partial_coalitions(names)}
    model.train()
    shares = {m: o * 1 for m, o in contributions(values).items()}
    for m, o in shares.items():
        o.register_hook(lambda g, k=kappa[m]: g * k)
    F.cross_entropy(torch.stack(list(shares.values())).sum(dim=0), batch.target).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def with_norms(modalities: int) -> Any:
    """A model whose training mode differs from its eval mode."""
    torch.manual_seed(0)
    names = kit.NAMES[:modalities]
    encoders = {m: nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.ReLU()) for m in names}
    model = Multimodal(encoders, FUSIONS["concat"](dict.fromkeys(names, 3), kit.CLASSES)).double()
    return model, torch.optim.SGD(groups(model), lr=0.1)


@pytest.mark.parametrize("modalities", [2, 3, 4])
def test_gradients_are_those_of_hooks_and_of_a_pass_for_every_coalition(modalities: int) -> None:
    model, optimizer = with_norms(modalities)
    twin, _ = with_norms(modalities)
    batch = kit.some(model, 6)
    method = AGM(model, optimizer, alpha=1.3, clip=None)
    kept: dict[str, float] = {}
    plain = method.kappa

    def keep(shares: dict[str, Tensor], target: Tensor) -> Tensor:
        found = plain(shares, target)
        kept.update(zip(shares, found.tolist(), strict=True))
        return found

    method.kappa = keep
    found = kit.gradients(method, batch)
    assert len(set(kept.values())) == modalities
    expected = by_hooks(twin, batch, kept)
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        assert torch.allclose(gradient, expected[name], rtol=1e-9, atol=1e-14), name
    norms = [(m.running_mean, m.training) for m in model.modules() if hasattr(m, "running_mean")]
    others = [m.running_mean for m in twin.modules() if hasattr(m, "running_mean")]
    assert all(torch.equal(a, b) and on for (a, on), b in zip(norms, others, strict=True))


def test_by_hand_on_one_weight_per_module() -> None:
    """Without biases F adds up, so the shares are z_a and z_v, and each learns at its own rate."""
    model, optimizer = kit.small(2, "concat", inputs=1, width=1)
    with torch.no_grad():
        model.encoders["audio"].weight.fill_(0.5)
        model.encoders["flow"].weight.fill_(-1.0)
        model.fusion.head.weight.copy_(torch.tensor([[2.0, 1.0], [0.0, 0.0], [0.0, 0.0]]))
        model.fusion.head.bias.zero_()
    batch = kit.some(model, 1, inputs=1)
    batch.inputs["audio"].fill_(3.0)
    batch.inputs["flow"].fill_(2.0)
    method = AGM(model, optimizer, alpha=0.2, clip=None)
    found = kit.gradients(method, batch)

    def loss(score: float) -> float:
        return math.log(math.exp(score) + 2) - score

    s = [loss(3.0), loss(-2.0)]
    kappa = [math.exp(0.2 * (1 - math.exp(b - a))) for a, b in (s, s[::-1])]
    assert kappa[0] < 1 < kappa[1]
    pull = math.exp(-loss(1.0)) - 1
    audio, flow = (found[f"encoders.{m}.weight"].item() for m in ("audio", "flow"))
    assert audio == pytest.approx(kappa[0] * pull * 2.0 * 3.0, rel=1e-12)
    assert flow == pytest.approx(kappa[1] * pull * 1.0 * 2.0, rel=1e-12)
    assert method.running.tolist() == pytest.approx(s, rel=1e-12)


def test_the_running_mean_is_of_all_steps() -> None:
    method = AGM(*kit.small(), alpha=0.0)
    chance = torch.Generator().manual_seed(1)
    target = torch.arange(6) % kit.CLASSES
    seen: list[Tensor] = []
    for _ in range(4):
        shares = {
            m: torch.randn(6, kit.CLASSES, generator=chance, dtype=torch.float64)
            for m in ("audio", "flow")
        }
        assert method.kappa(shares, target).tolist() == [1.0, 1.0]
        seen.append(torch.stack([F.cross_entropy(o, target) for o in shares.values()]))
    assert torch.allclose(method.running, torch.stack(seen).mean(dim=0), rtol=1e-12)


@pytest.mark.parametrize(
    ("watched", "other", "clipped"), [(1.5, 2.0, True), (0.9, 5.0, False), (-1.5, 0.1, True)]
)
def test_all_is_clipped_where_the_head_is_steep(
    watched: float, other: float, clipped: bool
) -> None:
    before = [tensor(watched, 0.1), tensor(other)]
    gradients = [g.clone() for g in before]
    clip_if_steep_(gradients, gradients[:1], 1.0)
    norm = math.sqrt(watched**2 + 0.01 + other**2)
    factor = 1 / (norm + 1e-6) if clipped else 1.0
    for g, b in zip(gradients, before, strict=True):
        assert torch.allclose(g, factor * b, rtol=1e-12)


def test_clipping_looks_at_the_weights_of_the_fusion() -> None:
    model, optimizer = kit.small(2, "concat")
    batch = kit.some(model)
    plain = kit.gradients(AGM(model, optimizer, clip=None), batch)
    steepest = plain["fusion.head.weight"].abs().max().item()
    for clip, changes in ((1.01 * steepest, False), (0.99 * steepest, True)):
        model, optimizer = kit.small(2, "concat")
        found = kit.gradients(AGM(model, optimizer, clip=clip), batch)
        same = all(torch.equal(found[name], plain[name]) for name in plain)
        assert same is not changes


@pytest.mark.parametrize("modalities", [1, 3, 6])
def test_any_number_of_modalities_in_a_loop_of_ones_own(modalities: int) -> None:
    method = AGM(*kit.small(modalities), alpha=0.3)
    batch = kit.some(method.model, 12)
    losses = [method.step(batch)["loss"].item() for _ in range(60)]
    assert losses[-1] < losses[0]


def test_one_modality_is_joint_training() -> None:
    model, optimizer = kit.small(1)
    batch = kit.some(model)
    F.cross_entropy(model(batch.inputs).fused, batch.target).backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    method = AGM(model, optimizer)
    found = kit.gradients(method, batch)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert dict(method.counts) == {"forwards": 1, "backwards": 1, "updates": 1}


def test_several_labels() -> None:
    model, optimizer = kit.small(3, "concat")
    method = AGM(model, optimizer, F.binary_cross_entropy_with_logits)
    batch = kit.some(model)
    labels = F.one_hot(batch.target, kit.CLASSES).double()
    steps = [method.step(kit.Batch(batch.inputs, labels, batch.index)) for _ in range(30)]
    assert steps[-1]["loss"] < steps[0]["loss"]


@pytest.mark.parametrize("bad", [{"alpha": -0.1}, {"clip": 0.0}, {"clip": -1.0}])
def test_bad_settings_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"agm: \w+ is"):
        AGM(*kit.small(), **bad)


@pytest.mark.parametrize("modalities", [2, 3, 6])
def test_two_forwards_and_two_backwards_a_step(modalities: int) -> None:
    method = AGM(*kit.small(modalities))
    method.step(kit.some(method.model))
    assert dict(method.counts) == {"forwards": 2, "backwards": 2, "updates": 1}


@pytest.mark.parametrize("controller", ["none", "vcmm"])
@pytest.mark.parametrize(("optimizer", "steps"), [("adam", 2), ("sgd", 5)])
def test_a_stopped_training_goes_on_bitwise(controller: str, optimizer: str, steps: int) -> None:
    axes = {"controller": controller, "optimizer": optimizer}
    assert kit.differences_of_resume(kit.spec("agm", 3, axes=axes), steps) == []


@pytest.mark.parametrize("modalities", [3, 4])
def test_renaming_modalities_renames_the_losses(modalities: int) -> None:
    names = [f"m{i + 1}" for i in range(modalities)]
    new = dict(zip(names, [*names[1:], names[0]], strict=True))
    plain, other = kit.losses_under(kit.spec("agm", modalities), new)
    for a, b in zip(plain, other, strict=True):
        assert a == pytest.approx(b, rel=1e-9)


def test_it_learns() -> None:
    _, losses = toys.trained(kit.spec("agm", axes={"epochs": 40}))
    assert losses[-1]["loss"] < 0.5 * losses[0]["loss"]
