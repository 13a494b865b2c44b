from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from vcmm.bench.optimizers import OPTIMIZERS
from vcmm.bench.sgd import SGD
from vcmm.bench.signature import parameters
from vcmm.bench.spec import Choice
from vcmm.bench.train import Stepped

from . import toys
from .toys import tiny

NAMES = sorted(OPTIMIZERS)

# An option's value that is not its default, and where it is seen in the groups.
OTHERS: dict[str, Any] = {
    "lr": 0.123,
    "betas": (0.85, 0.98),
    "eps": 1e-5,
    "weight_decay": 0.05,
    "amsgrad": True,
    "momentum": 0.85,
    "gamma": 0.4,
    "decoupled": True,
}
SPELLED = {"decoupled": "decoupled_weight_decay"}


def groups() -> list[dict[str, Any]]:
    """Two groups of two parameters, always the same."""
    chance = torch.Generator().manual_seed(0)
    drawn = [nn.Parameter(torch.randn(3, generator=chance)) for _ in range(4)]
    return [{"params": drawn[:2], "name": "a"}, {"params": drawn[2:], "name": "b"}]


@pytest.mark.parametrize("name", NAMES)
def test_every_option_reaches_every_group(name: str) -> None:
    options = parameters(OPTIMIZERS[name])
    default = OPTIMIZERS[name](groups())
    for option, declared in options.items():
        made = OPTIMIZERS[name](groups(), **{option: OTHERS[option]})
        for was, now in zip(default.param_groups, made.param_groups, strict=True):
            assert was[SPELLED.get(option, option)] == declared.default
            assert now[SPELLED.get(option, option)] == OTHERS[option]
    assert [group["name"] for group in default.param_groups] == ["a", "b"]
    assert OPTIMIZERS[name](iter(groups())).param_groups


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_the_fused_kernel_is_used_where_there_is_one(name: str) -> None:
    assert all(group["fused"] for group in OPTIMIZERS[name](groups()).param_groups)


def settings(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """The groups without their parameters, and without what only loggers read."""
    hidden = {"params", "vcmm_beta"}
    return [
        {key: value for key, value in group.items() if key not in hidden}
        for group in optimizer.param_groups
    ]


@pytest.mark.parametrize("name", NAMES)
def test_the_library_binds_it_and_leaves_the_groups_as_they_were(name: str) -> None:
    spec = tiny(2, optimizer=name, controller="vcmm", schedule="constant", fusion="concat")
    training = toys.built(spec)
    optimizer = training.method.optimizer
    before = settings(optimizer)
    moved = False
    for event in toys.events(training, spec):
        if isinstance(event, Stepped):
            assert settings(optimizer) == before
            moved = moved or any(
                group.get("vcmm_beta", 0.9) != 0.9 for group in optimizer.param_groups
            )
    assert moved
    assert all(p.isfinite().all() for p in training.method.parameters())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("controller", ["none", "vcmm"])
def test_it_learns(name: str, controller: str) -> None:
    lr = {"sgd": 0.1, "sgdf": 1.0, "radam": 0.2}.get(name, 0.02)
    spec = tiny(
        2,
        data=toys.source(noise=0.1),
        optimizer=Choice(name, lr=lr),
        controller=controller,
        epochs=12,
    )
    _, losses = toys.trained(spec)
    first, last = (sum(row["loss"] for row in losses[part]) for part in (slice(4), slice(-4, None)))
    assert last < 0.6 * first


@pytest.mark.parametrize("name", NAMES)
def test_a_parameter_may_get_its_first_gradient_late(name: str) -> None:
    """As parts that were frozen do, and modules that join. It starts like one that is alone."""
    options = {"lr": 0.1, "weight_decay": 0.01}
    both = OPTIMIZERS[name](groups(), **options)
    alone = OPTIMIZERS[name]([{"params": [groups()[0]["params"][1]]}], **options)
    early, late = both.param_groups[0]["params"]
    (twin,) = alone.param_groups[0]["params"]
    for step in range(5):
        early.grad = torch.full_like(early, 0.5 + step)
        if step >= 2:
            late.grad = torch.tensor([1.0, -0.0, step])
            twin.grad = late.grad.clone()
            alone.step()
        both.step()
    assert torch.equal(late, twin)


def test_sgd_is_torchs_sgd() -> None:
    options: dict[str, Any] = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "fused": True}
    ours, theirs = SGD(groups(), **options), torch.optim.SGD(groups(), **options)
    for step in range(4):
        for optimizer in (ours, theirs):
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = torch.sin(torch.arange(3.0) + step)
            optimizer.step()
    assert not toys.differences(ours.state_dict()["state"], theirs.state_dict()["state"])
    for a, b in zip(ours.param_groups, theirs.param_groups, strict=True):
        assert all(torch.equal(p, q) for p, q in zip(a["params"], b["params"], strict=True))
