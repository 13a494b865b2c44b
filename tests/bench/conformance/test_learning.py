"""Every method learns what can be learned, and learns the same thing again."""

from __future__ import annotations

import pytest
import torch

from vcmm.bench import judge
from vcmm.bench.spec import Choice

from ..toys import built, differences, events, source, tiny, trained
from .cases import every_controller, every_method, every_number, every_shape

# Of 24 samples in three classes, guessing gets .33, and with a deviation of .10 rarely .6.
CLEARLY = 0.75


@every_method
@every_shape
def test_it_learns(name: str, modalities: int, kind: str) -> None:
    spec = tiny(
        modalities,
        kind,
        data=source(modalities, kind, samples=96, noise=0.3),
        method=name,
        optimizer=Choice("adam", lr=0.02),
        schedule="constant",
        epochs=12,
    )
    training, steps = trained(spec)
    assert judge.evaluate(training.method, training.data, "test")["accuracy"] >= CLEARLY
    assert all(torch.isfinite(torch.tensor(list(step.values()))).all() for step in steps)


@every_method
@every_number
def test_the_same_seed_gives_the_same_bits(name: str, modalities: int) -> None:
    spec = tiny(modalities, method=name, controller="vcmm")
    one, first = trained(spec)
    torch.rand(7)  # what happens in between is not part of it
    other, second = trained(spec)
    assert first == second
    assert differences(one.method.state_dict(), other.method.state_dict()) == []
    states = (training.method.optimizer.state_dict() for training in (one, other))
    assert differences(*states) == []


@every_method
def test_another_seed_gives_another_training(name: str) -> None:
    _, first = trained(tiny(method=name, seed=0))
    _, second = trained(tiny(method=name, seed=1))
    assert first != second


@every_method
@every_controller
@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
def test_it_goes_with_every_controller_and_optimizer(
    name: str, controller: str, optimizer: str
) -> None:
    """One epoch, after which the optimizer's groups are as they were found."""
    spec = tiny(
        3, method=name, controller=controller, optimizer=optimizer, schedule="constant", epochs=1
    )
    training = built(spec)
    found = settings(training.method.optimizer)
    for event in events(training, spec):
        assert settings(training.method.optimizer) == found, event
    assert all(p.isfinite().all() for p in training.method.parameters())


def settings(optimizer: torch.optim.Optimizer) -> list[dict[str, object]]:
    """All of each group but its parameters, and the momentum that is shown to loggers."""
    shown = ("params", "vcmm_beta")
    groups = optimizer.param_groups
    return [{key: v for key, v in group.items() if key not in shown} for group in groups]
