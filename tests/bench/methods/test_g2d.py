"""G2D: teachers of single modalities, what they pass on, and whose encoder waits."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.bench import toys
from tests.bench.methods import kit
from vcmm.bench.method import confidence
from vcmm.bench.methods.g2d import G2D, distillation, permitted
from vcmm.bench.types import Batch, Output


def taught(modalities: int = 2, **options: Any) -> tuple[G2D, Batch]:
    """A student whose teachers are other networks than it is."""
    model, optimizer = kit.small(modalities)
    method = G2D(model, optimizer, **options)
    torch.manual_seed(7)
    for parameter in method.teachers.parameters():
        nn.init.normal_(parameter)
    method.taught = True
    return method, kit.some(model)


def test_distillation_by_hand() -> None:
    teacher, student = torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 1.0]])

    def divergence(scale: float) -> float:
        p = 1 / (1 + math.exp(-2 / scale))
        q = 1 / (1 + math.exp(1 / scale))
        return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))

    assert distillation(student, teacher).item() == pytest.approx(divergence(1.0), rel=1e-5)
    assert distillation(student, teacher, 3.0).item() == pytest.approx(
        9 * divergence(3.0), rel=1e-5
    )
    twice = torch.cat([student, student]), torch.cat([teacher, teacher])
    assert distillation(*twice).item() == pytest.approx(divergence(1.0), rel=1e-5)
    assert distillation(student, student).item() == pytest.approx(0.0, abs=1e-7)


def test_the_surest_waits_unless_there_is_a_tie() -> None:
    def factors(**sure: float) -> dict[str, float]:
        found = permitted({m: torch.tensor(value) for m, value in sure.items()})
        return {m: factor.item() for m, factor in found.items()}

    assert factors(a=3.0, v=2.0) == {"a": 0.0, "v": 1.0}
    assert factors(a=1.0, t=0.5, v=2.0) == {"a": 1.0, "t": 1.0, "v": 0.0}
    assert factors(a=2.0, v=2.0) == {"a": 1.0, "v": 1.0}
    assert factors(a=2.0, t=1.0, v=2.0) == {"a": 1.0, "t": 1.0, "v": 1.0}
    assert factors(a=2.0) == {"a": 1.0}
    logits = torch.tensor([[1.0, 1.0], [0.0, 50.0]])
    assert confidence(logits, torch.tensor([0, 1])).item() == pytest.approx(1.5)


@torch.no_grad()
@pytest.mark.parametrize("modalities", [2, 3, 6])
def test_the_terms_are_the_published_ones(modalities: int) -> None:
    method, batch = taught(modalities, distill=0.7, features=0.3, temperature=2.0)
    output: Output = method.model(batch.inputs)
    teachers: Output = method.teachers(batch.inputs)
    said = sum(
        4 * F.kl_div((output.fused / 2).log_softmax(1), (z / 2).softmax(1), reduction="batchmean")
        for z in teachers.logits.values()
    )
    seen = sum((h - teachers.features[m]).square().mean() for m, h in output.features.items())
    terms = method.loss(output, batch)
    assert terms["fused"].item() == F.cross_entropy(output.fused, batch.target).item()
    assert terms["distill"].item() == pytest.approx(0.7 * float(said), rel=1e-9)
    assert terms["features"].item() == pytest.approx(0.3 * float(seen), rel=1e-9)


def test_the_gradient_by_hand() -> None:
    """One weight a module, one sample of class 0, logits (h, 0, 0), fused (h_1 + h_2) / 2."""
    model, optimizer = kit.small(2, inputs=1, width=1)
    method = G2D(model, optimizer)
    method.taught = True
    with torch.no_grad():
        for network, weights in ((model, (1.0, 2.0)), (method.teachers, (-1.0, 3.0))):
            for parameter in network.parameters():
                parameter.zero_()
            for modality, weight in zip(("audio", "flow"), weights, strict=True):
                network.encoders[modality].weight.fill_(weight)
                network.fusion.heads[modality].weight[0] = 1.0
    batch = kit.some(model, 1, inputs=1)
    for x in batch.inputs.values():
        x.fill_(1.0)
    found = kit.gradients(method, batch)

    def sure(score: float) -> float:
        return math.exp(score) / (math.exp(score) + 2)

    # z = 1.5. dCE/dz = p - 1, dKL/dz = p - t_m for either teacher; half of z is each feature.
    p = sure(1.5)
    pull = (p - 1) + (p - sure(-1.0)) + (p - sure(3.0))
    audio = found["encoders.audio.weight"].item()
    assert audio == pytest.approx(pull / 2 + 2 * (1.0 - -1.0), rel=1e-12)
    assert found["encoders.flow.weight"].item() == 0.0  # its teacher is the surer one
    head = found["fusion.heads.flow.weight"][0].item()
    assert head == pytest.approx(pull / 2 * 2.0, rel=1e-12)  # the head learns nevertheless


@pytest.mark.parametrize(("epoch", "waits"), [(2, False), (3, True), (5, True), (6, False)])
def test_the_window_is_inclusive(epoch: int, waits: bool) -> None:
    method, batch = taught(starts=3, ends=5)
    method.epoch = epoch
    found = kit.gradients(method, batch)
    zero = [m for m in method.model.modalities if not found[f"encoders.{m}.weight"].any()]
    assert len(zero) == waits


def test_as_released_holds_back_the_kernels_of_images_alone() -> None:
    held = {}
    for as_released in (False, True):
        for kind in ("sequence", "image"):
            spec = kit.spec("g2d", kind=kind, teacher_epochs=1, as_released=as_released)
            training = toys.built(spec)
            train = training.data.only("train")
            training.method.train()
            training.method.begin_epoch(0, train)
            found = kit.gradients(training.method, train.batch("train", torch.arange(16)))
            held[as_released, kind] = {
                gradient.ndim
                for name, gradient in found.items()
                if name.startswith("encoders") and gradient.ndim > 1 and not gradient.any()
            }
    assert held == {
        (False, "sequence"): {3},
        (False, "image"): {4},
        (True, "sequence"): set(),
        (True, "image"): {4},
    }


def test_teachers_are_unimodal_trainings() -> None:
    """The same as training each alone from the same weights, which a slow loop does here."""
    spec = kit.spec("g2d", 3, teacher_epochs=4, batch_size=16)
    training = toys.built(spec)
    method, train = training.method, training.data.only("train")
    assert isinstance(method, G2D)
    alone = {m: toys.built(kit.spec("joint", 3)).method.model for m in method.model.modalities}
    method.begin_epoch(0, train)
    assert method.taught
    for modality, model in alone.items():
        chance = toys.built(spec).method.generator("teachers")
        steps = 4 * 4
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        rates = [0.005 * (1 + math.cos(math.pi * i / steps)) for i in range(steps)]
        step = 0
        for _ in range(4):
            for rows in torch.randperm(toys.SAMPLES, generator=chance).split(16):
                optimizer.param_groups[0]["lr"] = rates[step]
                batch = train.batch("train", rows)
                z = model(batch.inputs).logits[modality]
                optimizer.zero_grad()
                F.cross_entropy(z, batch.target).backward()
                optimizer.step()
                step += 1
        for one, other in (
            (model.encoders[modality], method.teachers.encoders[modality]),
            (model.fusion.heads[modality], method.teachers.fusion.heads[modality]),
        ):
            for a, b in zip(one.parameters(), other.parameters(), strict=True):
                assert torch.allclose(a, b, rtol=1e-3, atol=1e-4)


def test_teachers_do_not_change_once_the_student_learns() -> None:
    spec = kit.spec("g2d", kind="sequence", teacher_epochs=1)
    training = toys.built(spec)
    method = training.method
    assert isinstance(method, G2D)
    events = toys.events(training, spec)
    next(events)
    before = {k: v.clone() for k, v in method.teachers.state_dict().items()}
    assert any("running_mean" in name for name in before)
    list(events)
    assert toys.differences(before, dict(method.teachers.state_dict())) == []
    assert not method.teachers.training
    assert not any(p.requires_grad for p in method.teachers.parameters())


def test_without_teachers_it_is_joint_training() -> None:
    model, optimizer = kit.small()
    method = G2D(model, optimizer)
    assert method.loss(model(kit.some(model).inputs), kit.some(model)).keys() == {"fused"}


def test_the_cost_of_teachers_and_of_asking_them_is_counted() -> None:
    """3 epochs of 3 batches for the teachers, 2 of 4 for the student, who asks in each step."""
    training, _ = toys.trained(kit.spec("g2d", teacher_epochs=3, batch_size=20))
    assert dict(training.method.counts) == {
        "forwards": 9 + 2 * 8,
        "backwards": 9 + 8,
        "updates": 9 + 8,
    }


@pytest.mark.parametrize(
    "bad",
    [
        {"distill": -1.0},
        {"features": -1.0},
        {"temperature": 0.0},
        {"starts": -1},
        {"starts": 3, "ends": 2},
        {"teacher_epochs": 0},
        {"batch_size": 1},
    ],
)
def test_bad_settings_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(reversed(bad))):
        G2D(*kit.small(), **bad)


def test_several_labels_are_refused_with_another_method_to_use() -> None:
    with pytest.raises(ValueError, match="multi_loss"):
        G2D(*kit.small(), F.binary_cross_entropy_with_logits)


@pytest.mark.parametrize("steps", [0, 2, 4, 6])
def test_a_stopped_training_goes_on_bitwise(steps: int) -> None:
    axes = {"controller": "vcmm", "optimizer": "sgd"}
    spec = kit.spec("g2d", 3, kind="sequence", teacher_epochs=1, axes=axes)
    assert kit.differences_of_resume(spec, steps) == []


def test_renaming_modalities_renames_nothing_else() -> None:
    names = {"m1": "m2", "m2": "m3", "m3": "m1"}
    plain, other = kit.losses_under(kit.spec("g2d", 3, teacher_epochs=2), names)
    for a, b in zip(plain, other, strict=True):
        assert a == pytest.approx(b, rel=1e-6)


def test_one_modality() -> None:
    _, losses = toys.trained(kit.spec("g2d", 1, teacher_epochs=1))
    assert all(math.isfinite(row["loss"]) for row in losses)
