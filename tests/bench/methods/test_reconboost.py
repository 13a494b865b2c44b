"""ReconBoost: a learner for what the ensemble of the others lacks, then all together."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.bench import toys
from tests.bench.methods import kit
from vcmm.bench.methods.reconboost import ReconBoost, others, residual


def double(*values: float) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


def boosted(modalities: int = 2, **options: object) -> ReconBoost:
    return ReconBoost(*kit.small(modalities, "boosted"), **options)


def begin(method: ReconBoost, epoch: int) -> None:
    method.begin_epoch(epoch, toys.data_of(kit.spec("reconboost")))


def test_the_loss_of_the_specification() -> None:
    q = double(0.5, 0.5, 0).softmax(dim=1)
    loss = residual(double(1, 0, -1), q, torch.tensor([0]), (5.0, 1.0), full=False)
    assert loss.item() == pytest.approx(0.6272170294, abs=1e-10)


def test_as_published_all_of_q_counts() -> None:
    z, q = double(1, 0, -1), double(0.5, 0.5, 0).softmax(dim=1)
    lse = math.log(math.e + 1 + 1 / math.e)
    surprise = [lse - 1, lse, lse + 1]  # -log p_c
    by_hand = (
        5 * surprise[0] - sum(a * b for a, b in zip(q[0].tolist(), surprise, strict=True))
    ) / 3
    loss = residual(z, q, torch.tensor([0]), (5.0, 1.0), full=True)
    assert loss.item() == pytest.approx(by_hand, rel=1e-12)


def test_at_stage_0_the_weight_is_w1_minus_w2_in_both_forms() -> None:
    for as_released in (False, True):
        method = boosted(as_released=as_released)
        begin(method, 0)
        batch = kit.some(method.model)
        output = method(batch.inputs)
        terms = method.loss(output, batch)
        own = F.cross_entropy(output.logits[method.learner], batch.target)
        assert terms.keys() == {"residual"}
        assert terms["residual"].item() == pytest.approx(4 * own.item() / 3, rel=1e-12)


def test_the_ensemble_is_of_the_others_scaled_and_held_fixed() -> None:
    logits = {m: torch.randn(4, 3, requires_grad=True) for m in "abc"}
    scale = torch.tensor(1.5, requires_grad=True)
    q = others(logits, "b", scale)
    assert torch.allclose(q, (1.5 * (logits["a"] + logits["c"])).softmax(dim=1))
    assert not q.requires_grad


@pytest.mark.parametrize("modalities", [2, 3])
def test_modalities_take_turns_and_each_phase_trains_what_it_should(modalities: int) -> None:
    method = boosted(modalities, stage_epochs=2, joint_epochs=1)
    names = method.model.modalities
    batch = kit.some(method.model)
    for epoch in range(3 * modalities):
        begin(method, epoch)
        found = kit.gradients(method, batch)
        trained = {name.split(".")[1] for name in found if name.startswith("encoders.")}
        stage, within = divmod(epoch, 3)
        assert trained == ({names[stage]} if within < 2 else set(names))
        assert ("fusion.scale" in found) == (within == 2)
        assert "fusion.head.0.weight" in found


def test_the_gradient_of_a_stage_is_worked_out_by_hand() -> None:
    """dL/dz = (w1 - w2 q_y) (p - Y) / (C n) as released, where agreement has no gradient."""
    method = boosted(as_released=True, stage_epochs=1, joint_epochs=0)
    begin(method, 1)
    batch = kit.some(method.model)
    output = method.model(batch.inputs)
    first, second = output.logits.values()
    q = (method.scale * first).softmax(dim=1).detach()
    truth = F.one_hot(batch.target, kit.CLASSES).double()
    weight = 5 - (q * truth).sum(dim=1, keepdim=True)
    pulled = weight * (second.softmax(dim=1) - truth).detach() / kit.CLASSES / len(truth)
    (second * pulled).sum().backward()
    expected = {n: p.grad.clone() for n, p in method.model.named_parameters() if p.grad is not None}
    method.model.zero_grad()
    found = kit.gradients(method, batch)
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        assert torch.allclose(gradient, expected[name], rtol=1e-10), name


def test_agreement_pulls_as_published_and_does_not_as_released() -> None:
    for as_released in (False, True):
        method = boosted(as_released=as_released, stage_epochs=1, joint_epochs=0)
        begin(method, 1)
        batch = kit.some(method.model)
        terms = method.loss(method(batch.inputs), batch)
        assert terms["agreement"].item() > 0
        assert terms["agreement"].requires_grad == (not as_released)


def test_a_phase_starts_the_optimizer_anew() -> None:
    spec = kit.spec("reconboost", stage_epochs=1, joint_epochs=1, axes={"epochs": 4})
    training = toys.built(spec)
    steps: list[int] = []
    for _ in toys.events(training, spec):
        ages = [int(s["step"]) for s in training.method.optimizer.state.values() if "step" in s]
        steps.append(max(ages))
    assert max(steps) == toys.STEPS


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ValueError, match='fusion "boosted"'):
        ReconBoost(*kit.small(2, "shared"))
    with pytest.raises(ValueError, match="stage_epochs is 0"):
        boosted(stage_epochs=0)
    with pytest.raises(ValueError, match=r"alpha is -0\.5"):
        boosted(alpha=-0.5)
    for weights in ((1.0, 1.0), (1.0, -1.0)):
        with pytest.raises(ValueError, match=r"weights is 1,-?1; the first must be larger"):
            boosted(weights=weights)
    with pytest.raises(ValueError, match="no other criterion"):
        ReconBoost(*kit.small(2, "boosted"), torch.nn.CrossEntropyLoss(label_smoothing=0.1))
    with pytest.raises(ValueError, match="several labels"):
        ReconBoost(*kit.small(2, "boosted"), F.binary_cross_entropy_with_logits)


def test_one_forward_and_one_backward_a_step() -> None:
    method = boosted()
    method.step(kit.some(method.model))
    assert dict(method.counts) == {"forwards": 1, "backwards": 1, "updates": 1}


@pytest.mark.parametrize("controller", ["none", "vcmm"])
@pytest.mark.parametrize("steps", [3, 4, 6])
def test_a_stopped_training_goes_on_bitwise(controller: str, steps: int) -> None:
    axes = {"controller": controller, "optimizer": "sgd", "epochs": 3}
    spec = kit.spec("reconboost", 3, stage_epochs=1, joint_epochs=1, axes=axes)
    assert kit.differences_of_resume(spec, steps) == []


def test_it_learns() -> None:
    options = {"stage_epochs": 2, "joint_epochs": 2}
    spec = kit.spec("reconboost", **options, axes={"epochs": 40})
    training, losses = toys.trained(spec)
    assert losses[-1]["loss"] < 0.5 * math.log(kit.CLASSES)
    assert training.method._joint
