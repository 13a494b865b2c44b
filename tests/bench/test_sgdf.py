"""SGDF: the numbers of its specification, and a momentum that varies."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from vcmm import MomentumController, Policy
from vcmm.bench.sgdf import SGDF, gain, noise_scale, update


def scalar(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


def test_two_steps_of_the_specification() -> None:
    state = {"step": 0, "product": 1.0, "first": scalar(0), "spread": scalar(0)}
    assert update(scalar(1), state, (0.9, 0.999), 0.5, 1e-8).item() == pytest.approx(1.0)
    moved = update(scalar(-0.5), state, (0.9, 0.999), 0.5, 1e-8).item()
    assert state["first"].item() == pytest.approx(0.04)
    assert state["spread"].item() == pytest.approx(0.00110079, rel=1e-12)
    mean = 0.04 / (1 - 0.81)
    rest = -0.5 - mean
    assert (mean, rest) == pytest.approx((0.2105263158, -0.7105263158), abs=1e-10)
    scale = noise_scale((0.9, 0.999), state["step"], state["product"])
    assert scale == pytest.approx(0.1104419890, abs=1e-10)
    ratio, k = (gain(state["spread"], scalar(rest), scale, g, 1e-8).item() for g in (1.0, 0.5))
    assert ratio == pytest.approx(0.0193606161, abs=1e-10)
    assert k == pytest.approx(0.1391424312, abs=1e-10)
    assert moved == pytest.approx(mean + k * rest, rel=1e-12)
    assert moved == pytest.approx(0.1116619618, abs=1e-8)  # its last digits do not follow from K


class Wander(Policy):
    """Another momentum each step."""

    def __init__(self) -> None:
        self.step = 0
        self.told: list[float] = []

    def update(self, probes, base):
        self.step += 1
        self.told.append(0.8 + 0.15 * math.sin(self.step))
        return {"only": self.told[-1]}

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


@pytest.mark.parametrize("decoupled", [False, True])
def test_a_momentum_that_varies_is_corrected_exactly(decoupled: bool) -> None:
    weight = nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    group = {"params": [weight], "name": "only", "modality": "only"}
    optimizer = SGDF([group], lr=0.1, weight_decay=0.01, decoupled=decoupled)
    policy = Wander()
    MomentumController(optimizer, policy)
    chance = torch.Generator().manual_seed(0)
    theta = weight.detach().clone()
    m, s, product = torch.zeros(2).double(), torch.zeros(2).double(), 1.0
    for t in range(1, 20):
        gradient = torch.randn(2, generator=chance, dtype=torch.float64)
        weight.grad = gradient.clone()
        optimizer.step()
        b = policy.told[-1]
        if decoupled:
            theta = theta * (1 - 0.1 * 0.01)
        else:
            gradient = gradient + 0.01 * theta
        product *= b
        m = b * m + (1 - b) * gradient
        s = 0.999 * s + 0.001 * (gradient - m) ** 2
        mean = m / (1 - product)
        c = (1 + b) * (1 - 0.999**t) / ((1 - b) * (1 - product**2))
        r = gradient - mean
        theta = theta - 0.1 * (mean + (s / (s + c * r**2 + 1e-8)) ** 0.5 * r)
        assert torch.allclose(weight, theta, rtol=1e-11)
        assert optimizer.param_groups[0]["betas"] == (0.9, 0.999)
        assert optimizer.param_groups[0]["lr"] == 0.1


def test_a_constant_gradient_passes_unchanged_under_any_momentum() -> None:
    state = {"step": 0, "product": 1.0, "first": scalar(0), "spread": scalar(0)}
    for beta in (0.9, 0.7, 0.95, 0.0):
        moved = update(scalar(3), state, (beta, 0.999), 0.5, 1e-8).item()
        assert moved == pytest.approx(3.0, rel=1e-9)


def test_it_resumes_bitwise() -> None:
    def trained(stop: int | None) -> torch.Tensor:
        weight = nn.Parameter(torch.ones(3))
        optimizer = SGDF([weight], lr=0.1)
        for step in range(6):
            if step == stop:
                saved = optimizer.state_dict()
                optimizer = SGDF([weight], lr=0.5)
                optimizer.load_state_dict(saved)
            weight.grad = torch.sin(weight.detach() * (step + 1))
            optimizer.step()
        return weight.detach()

    assert torch.equal(trained(None), trained(3))


@pytest.mark.parametrize(
    "bad", [{"betas": (1.0, 0.9)}, {"lr": -1.0}, {"eps": -1.0}, {"weight_decay": -0.1}]
)
def test_bad_settings_are_refused(bad: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        SGDF([nn.Parameter(torch.ones(1))], **bad)


def test_a_closure_is_called_and_its_loss_returned() -> None:
    weight = nn.Parameter(torch.ones(1))
    optimizer = SGDF([weight], lr=0.1)

    def closure() -> torch.Tensor:
        loss = weight.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 1.0
    assert weight.item() < 1
