"""OGM-GE: the encoder that is ahead is held back."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.bench import toys
from tests.bench.methods import kit
from vcmm.bench.fusions import FUSIONS
from vcmm.bench.method import confidence, groups
from vcmm.bench.methods.ogm import OGM, coefficients, modulate_, ratios
from vcmm.bench.model import Multimodal


def scales(*scores: float, alpha: float, settle_ties: bool = False) -> list[float]:
    rho = ratios(torch.tensor(scores, dtype=torch.float64))
    return coefficients(rho, alpha, settle_ties=settle_ties).tolist()


def test_numbers_of_the_paper() -> None:
    assert scales(20, 10, alpha=0.8) == pytest.approx([0.0783314456, 1.0], abs=1e-9)
    assert scales(8, 16, alpha=0.1) == pytest.approx([1.0, 0.8026246798], abs=1e-9)


def test_with_three_the_ratios_are_averaged() -> None:
    found = scales(6, 3, 2, alpha=0.5)
    rho = [(6 / 3 + 6 / 2) / 2, (3 / 6 + 3 / 2) / 2, (2 / 6 + 2 / 3) / 2]  # 2.5, 1, .5
    assert rho == [2.5, 1.0, 0.5]
    assert found == pytest.approx([1 - math.tanh(0.5 * 2.5), 1.0, 1.0], rel=1e-12)


def test_ties_and_extremes() -> None:
    assert scales(5, 5, alpha=0.8) == [1.0, 1.0]
    tie = [1 - math.tanh(0.8), 1.0]
    assert scales(5, 5, alpha=0.8, settle_ties=True) == pytest.approx(tie, rel=1e-12)
    assert scales(5, 4, alpha=0.8, settle_ties=True) == scales(5, 4, alpha=0.8)
    assert scales(4, 5, alpha=0.8, settle_ties=True) == scales(4, 5, alpha=0.8)
    assert scales(5, 0, alpha=0.8) == [0.0, 1.0]
    assert scales(0, 0, alpha=0.8) == [1.0, 1.0]
    assert scales(7, alpha=0.8) == scales(7, alpha=0.8, settle_ties=True) == [1.0]
    assert scales(9, 1, alpha=0.0) == [1.0, 1.0]


def test_permuting_the_scores_permutes_the_coefficients() -> None:
    scores = torch.rand(5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    order = torch.tensor([3, 0, 4, 1, 2])
    found = coefficients(ratios(scores), 0.8)
    assert (found < 1).any()
    assert torch.allclose(coefficients(ratios(scores[order]), 0.8), found[order], rtol=1e-12)


def test_confidence_is_a_sum_over_samples() -> None:
    logits = torch.tensor([[1.0, 0.0], [0.0, 3.0]], dtype=torch.float64)
    expected = 1 / (1 + math.exp(1)) + 1 / (1 + math.exp(-3))
    found = confidence(logits, torch.tensor([1, 1])).item()
    assert found == pytest.approx(expected, rel=1e-12)


def test_noise_has_the_deviation_of_the_gradient_before_it_is_scaled() -> None:
    source = torch.Generator().manual_seed(0)
    before = 3 + 2 * torch.randn(200, 300, generator=source, dtype=torch.float64)
    after = before.clone()
    modulate_([after], torch.tensor(0.1), source)
    noise = after - 0.1 * before
    assert noise.std().item() == pytest.approx(before.std().item(), rel=0.02)
    assert abs(noise.mean().item()) < 0.05
    single = torch.tensor([[2.0]])
    modulate_([single], torch.tensor(0.5), source)
    assert single.item() == 1.0


def test_by_hand_on_one_weight_per_module() -> None:
    """h_m = a_m x_m and z = (w_1 h_1 + w_2 h_2, 0, 0), for one sample of class 0."""
    model, optimizer = kit.small(2, "concat", inputs=1, width=1)
    with torch.no_grad():
        model.encoders["audio"].weight.fill_(0.5)
        model.encoders["flow"].weight.fill_(-1.0)
        model.fusion.head.weight.copy_(torch.tensor([[2.0, 1.0], [0.0, 0.0], [0.0, 0.0]]))
        model.fusion.head.bias.zero_()
    batch = kit.some(model, 1, inputs=1)
    batch.inputs["audio"].fill_(3.0)
    batch.inputs["flow"].fill_(2.0)
    found = kit.gradients(OGM(model, optimizer, alpha=0.3, noise=False), batch)

    def right(score: float) -> float:
        return math.exp(score) / (math.exp(score) + 2)

    # Features are 1.5 and -2, so z_0 is 3 for audio, -2 for flow and 1 together.
    pull = right(1.0) - 1
    k = 1 - math.tanh(0.3 * right(3.0) / right(-2.0))
    audio, flow = (found[f"encoders.{m}.weight"].item() for m in ("audio", "flow"))
    assert audio == pytest.approx(k * pull * 2.0 * 3.0, rel=1e-12)
    assert flow == pytest.approx(pull * 1.0 * 2.0, rel=1e-12)
    assert found["fusion.head.weight"][0].tolist() == pytest.approx([pull * 1.5, pull * -2.0])


class Image(nn.Module):
    """A convolution and a linear layer, with biases and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 2, 3)
        self.norm = nn.BatchNorm2d(2)
        self.linear = nn.Linear(2, 4)

    def forward(self, images: Tensor) -> Tensor:
        return self.linear(self.norm(self.convolution(images)).mean(dim=(2, 3)))


def changed(**options: Any) -> set[str]:
    """The parameters whose gradient is not that of joint training."""
    torch.manual_seed(0)
    names = ("audio", "flow")
    model = Multimodal({m: Image() for m in names}, FUSIONS["concat"](dict.fromkeys(names, 4), 3))
    inputs = {m: torch.randn(6, 1, 5, 5) for m in names}
    batch = kit.Batch(inputs, torch.arange(6) % 3, torch.arange(6))
    F.cross_entropy(model(batch.inputs).fused, batch.target).backward()
    plain = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    method = OGM(model, torch.optim.SGD(groups(model), lr=0.1), **options)
    found = kit.gradients(method, batch)
    return {name for name, g in found.items() if not torch.allclose(g, plain[name], rtol=1e-3)}


def test_what_is_modulated() -> None:
    weights = {f"encoders.{m}.{p}.weight" for m in ("audio", "flow") for p in ("convolution",)}
    assert changed(as_released=True) == weights  # the noise comes to both
    linear = {"encoders.audio.linear.weight", "encoders.flow.linear.weight"}
    assert changed() == weights | linear
    held = changed(noise=False)
    assert held in ({n for n in weights | linear if m in n} for m in ("audio", "flow"))
    assert changed(alpha=0.0, noise=False) == set()
    assert changed(starts=1) == set()


def test_modulation_has_a_first_and_a_last_epoch() -> None:
    model, optimizer = kit.small(2, "concat")
    method = OGM(model, optimizer, alpha=2.0, noise=False, starts=1, ends=2)
    batch = kit.some(model)
    F.cross_entropy(model(batch.inputs).fused, batch.target).backward()
    plain = [p.grad.clone() for p in model.encoders.parameters()]
    data = toys.data_of(kit.spec("ogm")).only("train")
    different: list[bool] = []
    for epoch in range(4):
        model.zero_grad()
        method.begin_epoch(epoch, data)
        output = method(batch.inputs)
        method.backward(method.loss(output, batch))
        method.modulate(output, batch)
        pairs = zip(model.encoders.parameters(), plain, strict=True)
        different.append(any(not torch.equal(p.grad, g) for p, g in pairs))
    assert different == [False, True, True, False]


@pytest.mark.parametrize("modalities", [1, 3, 6])
def test_any_number_of_modalities_in_a_loop_of_ones_own(modalities: int) -> None:
    method = OGM(*kit.small(modalities), alpha=0.3)
    batch = kit.some(method.model, 12)
    losses = [method.step(batch)["loss"].item() for _ in range(60)]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("bad", [{"alpha": -0.1}, {"starts": -1}, {"starts": 5, "ends": 4}])
def test_bad_settings_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"ogm: \w+ is"):
        OGM(*kit.small(), **bad)


def test_several_labels_are_refused() -> None:
    with pytest.raises(ValueError, match='use method "joint"'):
        OGM(*kit.small(), F.binary_cross_entropy_with_logits)


def test_one_forward_and_one_backward_a_step() -> None:
    method = OGM(*kit.small())
    method.step(kit.some(method.model))
    assert dict(method.counts) == {"forwards": 1, "backwards": 1, "updates": 1}


@pytest.mark.parametrize("controller", ["none", "vcmm"])
@pytest.mark.parametrize(("optimizer", "steps"), [("adam", 2), ("sgd", 5)])
def test_a_stopped_training_goes_on_bitwise(controller: str, optimizer: str, steps: int) -> None:
    axes = {"controller": controller, "optimizer": optimizer}
    assert kit.differences_of_resume(kit.spec("ogm", 3, starts=1, axes=axes), steps) == []


def test_the_noise_survives_a_restart_and_depends_on_the_seed() -> None:
    def end(seed: int) -> list[dict[str, float]]:
        training, losses = toys.trained(kit.spec("ogm", alpha=0.0, axes={"seed": seed}))
        noise = training.method.state_dict()["_extra_state"]["generators"]
        assert noise.keys() == {"noise/m1", "noise/m2"}
        return losses

    assert end(0) == end(0) != end(1)


def test_renaming_modalities_renames_the_losses() -> None:
    names = {"m1": "m2", "m2": "m3", "m3": "m1"}
    plain, other = kit.losses_under(kit.spec("ogm", 3, noise=False), names)
    for a, b in zip(plain, other, strict=True):
        assert a == pytest.approx(b, rel=1e-9)


def test_it_learns() -> None:
    _, losses = toys.trained(kit.spec("ogm", axes={"epochs": 40}))
    assert losses[-1]["loss"] < 0.5 * losses[0]["loss"]
