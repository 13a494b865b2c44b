"""Schedules of torch: what they see is never scaled by us, and what they set is what is used.

tests/test_restore.py compares the values alone over 200 steps. Here VCMM trains under them, and its
parameters are compared with the paper written slowly, with the learning rates of the plain run.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer, lr_scheduler

from vcmm import VCMM, modal_groups, reference

# Before torch 2.7 SequentialLR itself passes the argument that torch deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:The epoch parameter in")

STEPS, SAVED = 60, 23
OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "AdamW": ("AdamW", {"lr": 0.01, "weight_decay": 0.1}),
    "AdamW-fused": ("AdamW", {"lr": 0.01, "weight_decay": 0.1, "fused": True}),
    "SGD": ("SGD", {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.1}),
}
SCHEDULES: dict[str, Callable[[Optimizer], Any]] = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, step_size=7, gamma=0.7),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=STEPS),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(
        o, T_0=8, T_mult=2, eta_min=1e-4
    ),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.05, total_steps=STEPS + 1),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(
        o, base_lr=0.001, max_lr=0.03, step_size_up=9, base_momentum=0.8, max_momentum=0.95
    ),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, factor=0.7, patience=3),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o,
        [
            lr_scheduler.LinearLR(o, start_factor=0.1, total_iters=10),
            lr_scheduler.CosineAnnealingLR(o, T_max=STEPS - 10),
        ],
        milestones=[10],
    ),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda t: min(t / 10, 1.0)),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [
            lr_scheduler.ExponentialLR(o, gamma=0.97),
            lr_scheduler.ConstantLR(o, factor=0.3, total_iters=5),
        ]
    ),
}
CYCLES_MOMENTUM = {"OneCycleLR", "CyclicLR"}


class Run:
    """A loop with a schedule, with VCMM or without."""

    def __init__(self, name: str, schedule: str, *, controlled: bool) -> None:
        generator = torch.Generator().manual_seed(0)
        self.parameters = {
            m: nn.Parameter(torch.randn(4, 3, generator=generator, dtype=torch.float64))
            for m in ("audio", "video", "shared")
        }
        model = nn.ParameterDict(self.parameters)
        cls, settings = OPTIMIZERS[name]
        groups = modal_groups(model, audio="audio", video="video")
        self.optimizer: Optimizer = getattr(torch.optim, cls)(groups, **settings)
        self.vcmm = VCMM(self.optimizer) if controlled else None
        self.schedule = SCHEDULES[schedule](self.optimizer)
        self.seen: list[Any] = []  # by the schedule: before it steps, after it, and what it says
        self.betas: list[dict[str, float]] = []

    def settings(self) -> list[dict[str, Any]]:
        keys = ("lr", "weight_decay", "betas", "momentum", "dampening")
        return [{k: group[k] for k in keys if k in group} for group in self.optimizer.param_groups]

    def step(self, t: int) -> None:
        for name, gradient in gradients(t).items():
            self.parameters[name].grad = gradient
        if self.vcmm is not None:
            self.vcmm.observe(torch.tensor([0, 1, 2, 0, 1, 2, 0, 1]), **observation(t))
        self.optimizer.step()
        if self.vcmm is not None:
            self.betas.append(self.vcmm.betas)
        before = self.settings()
        if isinstance(self.schedule, lr_scheduler.ReduceLROnPlateau):
            self.schedule.step(1.0 if t % 11 else 1.0 / (t + 1))
        else:
            self.schedule.step()
        said = [float(lr) for lr in self.schedule.get_last_lr()]
        self.seen.append((before, self.settings(), said))

    def bits(self) -> dict[str, bytes]:
        return {name: p.detach().numpy().tobytes() for name, p in self.parameters.items()}


def gradients(t: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(t)
    return {
        name: torch.randn(4, 3, generator=generator, dtype=torch.float64)
        for name in ("audio", "video", "shared")
    }


def observation(t: int) -> dict[str, tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1000 + t)
    h = torch.randn(2, 8, 5, generator=generator, dtype=torch.float64)
    z = torch.randn(2, 8, 3, generator=generator, dtype=torch.float64)
    drift = torch.tensor([t / 4, 0.0, -t / 4], dtype=torch.float64)
    return {"audio": (h[0], z[0]), "video": (h[1], 3 * z[1] + drift)}


class SlowSGD(reference.SGD):
    """With a base momentum that a schedule moves: (1 - beta0)^t becomes a product too."""

    base_product = 1.0

    def _direction(self, g: Tensor, beta: float) -> Tensor:
        self.base_product *= self.momentum
        self.m = beta * self.m + (1 - beta) / (1 - self.momentum) * g
        return (1 - self.base_product) / (1 - self.product) * self.m


def slow_of(name: str, parameter: Tensor) -> reference.Optimizer:
    if name == "SGD":
        return SlowSGD(parameter, 0.01, weight_decay=0.1)
    return reference.Adam(parameter, 0.01, weight_decay=0.1, decoupled=True)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_schedule_sees_no_factor_and_its_values_are_used_to_the_letter(
    name: str, schedule: str
) -> None:
    plain, run = (Run(name, schedule, controlled=on) for on in (False, True))
    slow = {m: slow_of(name, run.parameters[m]) for m in ("audio", "video")}
    for t in range(STEPS):
        held = plain.settings()[0]
        plain.step(t)
        run.step(t)
        for modality, peer in slow.items():
            peer.lr = held["lr"]
            if isinstance(peer, SlowSGD):
                peer.momentum = held["momentum"]
            peer.step(gradients(t)[modality], run.betas[t][modality])
            found = run.parameters[modality].detach()
            torch.testing.assert_close(found, peer.parameter, rtol=1e-12, atol=1e-12)
    assert run.seen == plain.seen
    assert run.bits()["shared"] == plain.bits()["shared"]
    assert run.bits()["audio"] != plain.bits()["audio"]
    assert len({said[0] for _, _, said in plain.seen}) > 1  # there was a schedule
    momentum = "momentum" if name == "SGD" else "betas"
    cycled = len({str(settings[0][momentum]) for settings, _, _ in plain.seen}) > 10
    assert cycled == (schedule in CYCLES_MOMENTUM)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", ["AdamW", "SGD"])
def test_a_run_that_is_resumed_within_a_schedule_is_bitwise_the_same(
    name: str, schedule: str
) -> None:
    through, resumed = (Run(name, schedule, controlled=True) for _ in range(2))
    for t in range(SAVED):
        through.step(t)
    saved = copy.deepcopy([through.optimizer.state_dict(), through.schedule.state_dict()])
    for found, parameter in through.parameters.items():
        resumed.parameters[found].data.copy_(parameter.data)
    resumed.optimizer.load_state_dict(saved[0])
    resumed.schedule.load_state_dict(saved[1])
    for t in range(SAVED, STEPS):
        through.step(t)
        resumed.step(t)
    assert resumed.bits() == through.bits()
    assert resumed.seen == through.seen[SAVED:]
    assert resumed.betas == through.betas[SAVED:]
