"""CGGM: encoders are scaled by what their classifiers have lately gained."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.bench import toys
from tests.bench.methods import kit
from vcmm.bench.methods.cggm import (
    CGGM,
    accuracy,
    balances,
    disagreement,
    head_gradient,
    residual,
)


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_numbers_of_the_paper() -> None:
    found = balances(tensor(0.5, 0.55, 0.75), tensor(0.4, 0.5, 0.6))
    assert found.tolist() == pytest.approx([0.6666667, 0.8333333, 0.5], abs=1e-6)
    scaled = [0.8666667, 1.0833333, 0.65]
    assert (1.3 * found).tolist() == pytest.approx(scaled, abs=1e-6)


def test_balances_are_limited() -> None:
    now, before = tensor(0.5, 0.7), tensor(0.6, 0.5)  # gains -.1 and .2
    assert balances(now, before).tolist() == pytest.approx([2.0, -1.0], abs=1e-6)
    assert balances(now, before, 1.5).tolist() == [1.5, 0.0]
    still = tensor(0.5, 0.5)
    assert balances(still, still, 1.0).tolist() == [0.0, 0.0]
    assert balances(tensor(0.6, 0.4), still).abs().max() > 1e6
    order = torch.tensor([2, 0, 1])
    now, before = tensor(0.5, 0.55, 0.75), tensor(0.4, 0.5, 0.6)
    assert torch.allclose(balances(now[order], before[order]), balances(now, before)[order])


def test_accuracy_of_classes_and_of_labels() -> None:
    logits = torch.tensor([[1.0, 2.0], [3.0, -1.0], [0.5, 0.1]])
    assert accuracy(logits, torch.tensor([1, 1, 0])).item() == pytest.approx(2 / 3)
    labels = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    assert accuracy(logits, labels, multilabel=True).item() == pytest.approx(4 / 6)


@pytest.mark.parametrize("multilabel", [False, True])
def test_the_gradient_of_a_head_in_closed_form(multilabel: bool) -> None:
    chance = torch.Generator().manual_seed(0)
    features = torch.randn(5, 4, generator=chance, dtype=torch.float64)
    rest = torch.randn(5, 3, generator=chance, dtype=torch.float64)
    weight = torch.randn(3, 4, generator=chance, dtype=torch.float64, requires_grad=True)
    target = torch.arange(5) % 3
    logits = features @ weight.T + rest
    if multilabel:
        target = F.one_hot(target, 3).double()
        F.binary_cross_entropy_with_logits(logits, target).mul(3).backward()
    else:
        F.cross_entropy(logits, target).backward()
    found = head_gradient(residual(logits, target, multilabel=multilabel), features)
    assert torch.allclose(found, weight.grad, rtol=1e-12)


def test_disagreement_by_hand() -> None:
    joint = {"a": tensor(1, 0).reshape(1, 2), "v": tensor(0, 2).reshape(1, 2)}
    own = {"a": tensor(3, 4).reshape(1, 2), "v": tensor(0, -1).reshape(1, 2)}  # .6 and -1
    found = disagreement(tensor(0.5, -2.0), joint, own).item()
    assert found == pytest.approx((2.5 - (0.5 * 0.6 + -2.0 * -1.0)) / 2)


def warm(method: CGGM, batch: kit.Batch, steps: int = 3) -> None:
    """Until classifiers have weights, and accuracies a past."""
    for _ in range(steps):
        method.step(batch)


@pytest.mark.parametrize("modalities", [2, 3])
@pytest.mark.parametrize("as_released", [False, True])
def test_the_gradients_step_by_step(modalities: int, as_released: bool) -> None:
    """The whole step again, with autograd where the method has a closed form."""
    model, optimizer = kit.small(modalities, "concat")
    options: dict[str, Any] = {"rho": 1.1, "strength": 0.7, "clip": None, "classifier_lr": 0.05}
    method = CGGM(model, optimizer, limit=2.0, as_released=as_released, **options)
    warm(method, kit.some(model, 12, seed=1))
    batch = kit.some(model, 12)
    before, last = method.accuracies.clone(), method.balance.clone()

    output = model(batch.inputs)
    known = {m: c(output.features[m].detach()) for m, c in method.classifiers.items()}
    now = torch.stack([(z.argmax(dim=1) == batch.target).double().mean() for z in known.values()])
    gains = now - before
    balance = (gains.sum() - gains) / (gains.sum() + 1e-8)
    if not as_released:
        balance = balance.clamp(0, 2.0)
    loss = F.cross_entropy(output.fused, batch.target)
    head = model.fusion.head.weight
    (whole,) = torch.autograd.grad(loss, head, create_graph=True)  # the published double backward
    cosines: list[Tensor] = []
    for i, (m, z) in enumerate(known.items()):
        part = slice(2 * i, 2 * i + 2)
        weight = method.classifiers[m].weight
        (own,) = torch.autograd.grad(F.cross_entropy(z, batch.target), weight)
        pair = (head[:, part], weight.detach()) if as_released else (whole[:, part], own)
        cosines.append(F.cosine_similarity(*(x.flatten() for x in pair), dim=0))
    used = last if as_released else balance
    apart = (used.abs().sum() - (used * torch.stack(cosines)).sum()) / modalities
    (loss + 0.7 * apart).backward()
    expected = {n: p.grad.clone() for n, p in model.named_parameters()}
    for m, b in zip(model.modalities, balance, strict=True):
        expected[f"encoders.{m}.weight"] *= 1.1 * b
    model.zero_grad()

    found = kit.gradients(method, batch)
    assert found.keys() == expected.keys()
    assert used.abs().sum() > 0
    for name, gradient in found.items():
        assert torch.allclose(gradient, expected[name], rtol=1e-8, atol=1e-14), name
    assert torch.equal(method.accuracies, now)
    assert torch.allclose(method.balance, balance)


def test_the_direction_loss_turns_the_head_towards_the_classifiers() -> None:
    """Descending on it alone makes the angle smaller."""
    model, _ = kit.small(2, "concat")
    method = CGGM(model, torch.optim.SGD(model.parameters(), lr=0.0), strength=1.0)
    batch = kit.some(model, 12)
    warm(method, batch, 8)
    method.balance.fill_(1.0)
    method.watch = lambda *_: None  # keep the balances

    def apart() -> Tensor:
        return method.loss(model(batch.inputs), batch)["direction"]

    before = apart()
    gradients = torch.autograd.grad(before, list(model.parameters()), allow_unused=True)
    with torch.no_grad():
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            if gradient is not None:
                parameter.sub_(1e-3 * gradient)
    assert 0 < apart() < before


def test_classifiers_learn_by_themselves_and_reach_nothing_else() -> None:
    model, _ = kit.small(3, "concat")
    method = CGGM(model, torch.optim.SGD(model.parameters(), lr=0.0), classifier_lr=0.05)
    batch = kit.some(model, 12)
    loss = method.loss(method(batch.inputs), batch)["classifiers"]
    assert loss.item() == pytest.approx(3 * math.log(kit.CLASSES))  # they know nothing yet
    reached = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    assert all(gradient is None for gradient in reached)
    before = [c.weight.clone() for c in method.classifiers.values()]
    losses = [method.step(batch)["loss/classifiers"].item() for _ in range(50)]
    assert losses[-1] < losses[0]
    after = [c.weight for c in method.classifiers.values()]
    assert not any(torch.equal(a, b) for a, b in zip(after, before, strict=True))


def test_gradients_are_clipped_in_the_end() -> None:
    def norm(clip: float | None) -> float:
        model, optimizer = kit.small(2, "concat")
        method = CGGM(model, optimizer, clip=clip, classifier_lr=0.05)
        warm(method, kit.some(model, 12, seed=1))
        found = kit.gradients(method, kit.some(model, 12))
        return torch.stack([g.square().sum() for g in found.values()]).sum().sqrt().item()

    whole = norm(None)
    assert norm(100.0) == pytest.approx(whole, rel=1e-12)
    assert norm(0.8) == pytest.approx(min(whole, 0.8), rel=1e-4)
    assert norm(0.01) == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("fusion", ["concat", "branches", "mean", "gated", "shared"])
def test_any_fusion_and_any_number_in_a_loop_of_ones_own(fusion: str) -> None:
    for modalities in (1, 3, 6):
        method = CGGM(*kit.small(modalities, fusion), clip=None)
        batch = kit.some(method.model, 12)
        losses = [method.step(batch)["loss"].item() for _ in range(40)]
        assert losses[-1] < losses[0]


def test_one_modality_is_joint_training() -> None:
    model, optimizer = kit.small(1)
    batch = kit.some(model)
    F.cross_entropy(model(batch.inputs).fused, batch.target).backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    found = kit.gradients(CGGM(model, optimizer, clip=None), batch)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_several_labels() -> None:
    model, optimizer = kit.small(3, "concat")
    method = CGGM(model, optimizer, F.binary_cross_entropy_with_logits)
    batch = kit.some(model, 12)
    labels = F.one_hot(batch.target, kit.CLASSES).double()
    steps = [method.step(kit.Batch(batch.inputs, labels, batch.index)) for _ in range(30)]
    assert steps[-1]["loss"] < steps[0]["loss"]


@pytest.mark.parametrize(
    "bad",
    [{"rho": 0.0}, {"strength": -0.1}, {"limit": 0.0}, {"clip": -1.0}, {"classifier_lr": 0.0}],
)
def test_bad_settings_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"cggm: {next(iter(bad))} is"):
        CGGM(*kit.small(), **bad)


def test_as_released_needs_slices_of_one_head() -> None:
    with pytest.raises(ValueError, match='fusion "concat"'):
        CGGM(*kit.small(2, "mean"), as_released=True)


def test_one_forward_and_one_backward_a_step() -> None:
    method = CGGM(*kit.small(2, "concat"))
    method.step(kit.some(method.model))
    assert dict(method.counts) == {"forwards": 1, "backwards": 1, "updates": 2}


@pytest.mark.parametrize("as_released", [False, True])
@pytest.mark.parametrize("controller", ["none", "vcmm"])
@pytest.mark.parametrize(("optimizer", "steps"), [("adam", 2), ("sgd", 5)])
def test_a_stopped_training_goes_on_bitwise(
    as_released: bool, controller: str, optimizer: str, steps: int
) -> None:
    axes = {"controller": controller, "optimizer": optimizer}
    spec = kit.spec("cggm", 3, as_released=as_released, axes=axes)
    assert kit.differences_of_resume(spec, steps) == []


def test_renaming_modalities_renames_the_losses() -> None:
    names = {"m1": "m2", "m2": "m3", "m3": "m1"}
    plain, other = kit.losses_under(kit.spec("cggm", 3), names)
    for a, b in zip(plain, other, strict=True):
        assert a == pytest.approx(b, rel=1e-6)


def test_classifiers_draw_nothing() -> None:
    """So what else a run draws is what it draws with other methods."""
    pair = kit.small(2, "concat")
    before = torch.get_rng_state()
    method = CGGM(*pair)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(not p.any() for p in method.classifiers.parameters())


def test_it_learns() -> None:
    _, losses = toys.trained(kit.spec("cggm", axes={"epochs": 40}))
    assert losses[-1]["loss/fused"] < 0.5 * losses[0]["loss/fused"]
