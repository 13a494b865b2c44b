"""What `Method` gives to those that look at train, or train a copy on the side."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn import functional as F

from tests.bench import toys
from tests.bench.methods import kit
from vcmm.bench.method import SURVEYED, Method
from vcmm.bench.methods.joint import Joint


def surveyor(kind: str = "sequence", rows: int = 2 * SURVEYED + 1) -> tuple[Method, toys.Data]:
    spec = kit.spec("joint", kind=kind, axes={"data": toys.source(2, kind, samples=rows)})
    training = toys.built(spec)
    return training.method, training.data.only("train")


@pytest.mark.parametrize("rows", [1, 2, SURVEYED, SURVEYED + 1, 2 * SURVEYED + 1])
def test_every_row_is_seen_once_in_order_and_none_alone(rows: int) -> None:
    method, train = surveyor()
    order = torch.randperm(2 * SURVEYED + 1, generator=torch.Generator().manual_seed(0))[:rows]
    seen = list(method.survey(train, order))
    assert torch.cat([batch.index for _, batch in seen]).tolist() == order.tolist()
    sizes = [len(batch.index) for _, batch in seen]
    assert max(sizes) <= SURVEYED
    assert min(sizes) > 1 or rows == 1
    assert method.counts["forwards"] == len(seen)
    assert not any(output.fused.requires_grad for output, _ in seen)
    assert method.training


@pytest.mark.parametrize("training", [False, True])
def test_batch_norm_learns_from_a_survey_in_training_mode_alone(training: bool) -> None:
    method, train = surveyor()
    before = {k: v.clone() for k, v in method.model.state_dict().items()}
    list(method.survey(train, torch.arange(20), training=training))
    assert bool(toys.differences(before, dict(method.model.state_dict()))) is training


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd", "adamax", "nadam", "radam"])
@pytest.mark.parametrize("controller", ["none", "vcmm"])
def test_a_twin_starts_alike_fresh_and_is_nobodys_business(optimizer: str, controller: str) -> None:
    """It trains as a new optimizer would, with no controller, and leaves the method as it was."""
    spec = kit.spec("joint", axes={"optimizer": optimizer, "controller": controller})
    training = toys.built(spec)
    method, train = training.method, training.data.only("train")
    batch = train.batch("train", torch.arange(16))
    for _ in range(3):
        method.step(batch)
        training.schedule.step()
    state = copy.deepcopy(kit.state(training))
    twins = [method.twin(), method.twin()]
    fresh = type(method.optimizer)(twins[1][1].param_groups)
    for group, ours in zip(fresh.param_groups, method.optimizer.param_groups, strict=True):
        assert group["lr"] == ours["lr"]  # the present one, after three steps of the schedule
    for model, twin in (twins[0], (twins[1][0], fresh)):
        for _ in range(2):
            F.cross_entropy(model(batch.inputs).fused, batch.target).backward()
            twin.step()
            twin.zero_grad()
    one, other = (dict(model.state_dict()) for model, _ in twins)
    assert toys.differences(one, other) == []
    assert toys.differences(one, dict(method.model.state_dict()))
    assert toys.differences(state, kit.state(training)) == []


def test_a_twin_has_no_gradients() -> None:
    model, optimizer = kit.small()
    batch = kit.some(model)
    F.cross_entropy(model(batch.inputs).fused, batch.target).backward()
    copied, _ = Joint(model, optimizer).twin()
    assert all(parameter.grad is None for parameter in copied.parameters())
    assert all(parameter.grad is not None for parameter in model.parameters())
