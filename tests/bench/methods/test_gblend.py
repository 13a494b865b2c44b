"""G-Blend: what a branch is worth, measured by training it alone."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.bench import toys
from tests.bench.methods import kit
from vcmm.bench.methods.gblend import FUSED, GBlend, blend, blend_of_ends, branch_logits
from vcmm.bench.types import Batch, Data, Output


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_the_published_example() -> None:
    """Audio, video, both: (T_n, T_N, V_n, V_N) of each."""
    found = blend(
        train_n=column(1.8, 1.8, 1.8),
        train_N=column(0.6, 1.2, 0.5),
        valid_n=column(1.8, 1.8, 1.8),
        valid_N=column(1.2, 1.4, 1.1),
    )
    assert found.tolist() == pytest.approx([0.12244898, 0.73469388, 0.14285714], abs=1e-8)


def test_what_does_not_generalize_gets_nothing_and_a_closed_gap_does_not_explode() -> None:
    start, ends = column(2.0, 2.0, 2.0), column(1.0, 1.0, 1.0)
    worse = blend(start, ends, start, column(1.5, 1.25, 2.5))
    assert worse.tolist() == pytest.approx([0.5 / 0.25 / 14, 0.75 / 0.0625 / 14, 0.0])
    closed = blend(column(2, 2), column(1, 1), column(2, 2), column(1.0, 1.0 + 1e-4))
    assert closed.tolist() == pytest.approx([0.5, 0.5], abs=1e-3)  # both |O| are 1e-4
    assert blend(start, ends, start, start + 1).tolist() == pytest.approx([1 / 3] * 3)
    assert blend(start, ends, start, start * math.nan).tolist() == pytest.approx([1 / 3] * 3)


def test_a_gap_that_shrinks_counts_as_one_that_grows() -> None:
    """O is squared."""
    start = column(2.0, 2.0)
    assert (
        blend(start, column(1.0, 1.4), start, column(1.2, 1.2)).tolist() == [pytest.approx(0.5)] * 2
    )


def test_as_released_takes_the_losses_at_the_end() -> None:
    found = blend_of_ends(column(0.6, 1.2, 1.3), column(1.2, 1.4, 1.1))
    raw = [1.2 / 0.36, 1.4 / 0.04, 1.1 / 1e-8]
    assert found.tolist() == pytest.approx([value / sum(raw) for value in raw])


@pytest.mark.parametrize("fusion", ["branches", "mean", "concat", "gated", "shared"])
def test_a_branch_alone_says_what_it_says_in_the_whole(fusion: str) -> None:
    model, _ = kit.small(3, fusion)
    batch = kit.some(model)
    output: Output = model(batch.inputs)
    for branch, expected in {**output.logits, FUSED: output.fused}.items():
        found = branch_logits(model, branch, batch.inputs)
        assert torch.allclose(found, expected, rtol=1e-12)


def test_the_gradient_by_hand() -> None:
    """One weight a module, one sample of class 0; every head gives (h, 0, 0)."""
    model, optimizer = kit.small(2, "branches", inputs=1, width=1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        for modality, weight in (("audio", 2.0), ("flow", -1.0)):
            model.encoders[modality].weight.fill_(weight)
            model.fusion.heads[modality].weight[0] = 1.0
        model.fusion.joint.weight[0] = torch.tensor([0.5, 1.5])
    batch = kit.some(model, 1, inputs=1)
    for x in batch.inputs.values():
        x.fill_(1.0)
    weights = {"audio": 0.125, "flow": 0.5, "fused": 0.375}
    found = kit.gradients(GBlend(model, optimizer, weights=weights), batch)

    def pull(score: float) -> float:
        return math.exp(score) / (math.exp(score) + 2) - 1

    together = 0.375 * pull(0.5 * 2.0 - 1.5)
    expected = [0.125 * pull(2.0) + 0.5 * together, 0.5 * pull(-1.0) + 1.5 * together]
    seen = [found[f"encoders.{m}.weight"].item() for m in ("audio", "flow")]
    assert seen == pytest.approx(expected, rel=1e-12)


def slow_estimate(method: GBlend, data: Data, rest: torch.Tensor, held: torch.Tensor) -> Any:
    """Every branch by itself, with the whole model and an optimizer made by hand."""
    losses: dict[str, list[float]] = {}
    for branch in method.branches:
        model = copy.deepcopy(method.model)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

        def loss(rows: torch.Tensor, model: Any = model, branch: str = branch) -> torch.Tensor:
            batch = data.batch("train", rows)
            output = model(batch.inputs)
            return F.cross_entropy({**output.logits, FUSED: output.fused}[branch], batch.target)

        ends = [loss(rest).item(), loss(held).item()]
        chance = copy.deepcopy(method).generator("estimate")
        for _ in range(3):
            order = rest[torch.randperm(len(rest), generator=chance)]
            for part in order.split(16):
                optimizer.zero_grad()
                loss(part).backward()
                optimizer.step()
        losses[branch] = [*ends, loss(rest).item(), loss(held).item()]
    train_n, valid_n, train_N, valid_N = torch.tensor(list(losses.values())).double().T
    return train_n, train_N, valid_n, valid_N


@pytest.mark.parametrize("as_released", [False, True])
@pytest.mark.parametrize("modalities", [2, 3])
def test_the_estimate_is_that_of_separate_trainings(modalities: int, as_released: bool) -> None:
    options = {"super_epoch": 3, "batch_size": 16, "share": 0.2, "as_released": as_released}
    training = toys.built(kit.spec("gblend", modalities, **options))
    method, train = training.method, training.data.only("train")
    assert isinstance(method, GBlend)
    before = {k: v.clone() for k, v in method.model.state_dict().items()}
    twin = toys.built(kit.spec("gblend", modalities, **options)).method
    assert isinstance(twin, GBlend)
    method.begin_epoch(0, train)
    assert method.rest is not None
    held = torch.tensor(sorted(set(range(toys.SAMPLES)) - set(method.rest.tolist())))
    train_n, train_N, valid_n, valid_N = slow_estimate(twin, train, method.rest, held)
    expected = blend(train_n, train_N, valid_n, valid_N)
    if as_released:
        expected = blend_of_ends(train_N, valid_N)
    assert method.weights.tolist() == pytest.approx(expected.tolist(), rel=0.02, abs=1e-3)
    assert method.weights.sum().item() == pytest.approx(1.0)
    # The model that is trained has not moved, and neither has its optimizer.
    assert toys.differences(before, dict(method.model.state_dict())) == []
    assert not method.optimizer.state
    assert all(parameter.grad is None for parameter in method.model.parameters())


def estimates(spec: Any) -> list[int]:
    """Before which epochs the weights change."""
    training = toys.built(spec)
    method, train = training.method, training.data.only("train")
    assert isinstance(method, GBlend)
    found = []
    for epoch in range(5):
        before = method.counts["updates"]
        method.begin_epoch(epoch, train)
        found += [epoch] * (method.counts["updates"] > before)
    return found


def test_online_offline_and_given() -> None:
    assert estimates(kit.spec("gblend", super_epoch=2)) == [0, 2, 4]
    assert estimates(kit.spec("gblend", super_epoch=2, online=False)) == [0]
    weights = {"m1": 0.1, "m2": 0.7, "fused": 0.2}
    spec = kit.spec("gblend", weights=weights)
    assert estimates(spec) == []
    method = toys.built(spec).method
    assert isinstance(method, GBlend)
    assert dict(zip(method.branches, method.weights.tolist(), strict=True)) == pytest.approx(
        weights
    )


@pytest.mark.parametrize(("online", "left_out"), [(True, 8), (False, 0)])
def test_held_out_rows_are_trained_on_only_if_nothing_more_is_asked_of_them(
    online: bool, left_out: int
) -> None:
    spec = kit.spec("gblend", share=0.16, super_epoch=1, online=online)
    training = toys.built(spec)
    visited: list[int] = []
    training.method.watchers.append(lambda _, batch: visited.extend(batch.index.tolist()))
    list(toys.events(training, spec))
    assert len(set(visited)) == toys.SAMPLES - left_out


def test_the_cost_of_the_estimates_is_counted() -> None:
    """One estimate, of one epoch in 3 batches: 2 measurements of 3 + 1 batches, each 2 forwards."""
    spec = kit.spec("gblend", share=0.16, super_epoch=1, batch_size=16, axes={"epochs": 1})
    training, _ = toys.trained(spec)
    steps = 3
    assert dict(training.method.counts) == {
        "forwards": 2 * 3 + 2 * 2 * 4 + steps,
        "backwards": 2 * 3 + steps,
        "updates": 2 * 3 + steps,
    }


def test_a_step_is_one_forward_and_one_backward() -> None:
    method = GBlend(*kit.small(3, "branches"))
    report = method.step(kit.some(method.model))
    assert report.keys() == {"loss", *(f"loss/{branch}" for branch in method.branches)}
    assert dict(method.counts) == {"forwards": 1, "backwards": 1, "updates": 1}
    assert method.weights.tolist() == [0.25] * 4


@pytest.mark.parametrize(
    "bad",
    [
        {"super_epoch": 0},
        {"batch_size": 1},
        {"share": 0.0},
        {"share": 1.0},
        {"weights": {"audio": 1.0}},
        {"weights": {"audio": 0.5, "flow": -0.5, "fused": 1.0}},
    ],
)
def test_bad_settings_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        GBlend(*kit.small(), **bad)


def test_several_labels() -> None:
    model, optimizer = kit.small(2, "branches")
    method = GBlend(model, optimizer, F.binary_cross_entropy_with_logits)
    batch = kit.some(model)
    labels = F.one_hot(batch.target, kit.CLASSES).double()
    assert method.step(Batch(batch.inputs, labels, batch.index))["loss"].isfinite()


@pytest.mark.parametrize("online", [False, True])
@pytest.mark.parametrize("steps", [0, 2, 3, 5])
def test_a_stopped_training_goes_on_bitwise(online: bool, steps: int) -> None:
    axes = {"controller": "vcmm", "optimizer": "sgd"}
    options = {"super_epoch": 1, "share": 0.2, "online": online, "axes": axes}
    assert kit.differences_of_resume(kit.spec("gblend", 3, kind="sequence", **options), steps) == []


def test_renaming_modalities_renames_the_losses() -> None:
    names = {"m1": "m2", "m2": "m3", "m3": "m1"}
    plain, other = kit.losses_under(kit.spec("gblend", 3, super_epoch=2, share=0.2), names)
    for a, b in zip(plain, other, strict=True):
        assert a == pytest.approx(b, rel=1e-6)


def test_one_modality() -> None:
    _, losses = toys.trained(kit.spec("gblend", 1, super_epoch=1))
    assert all(math.isfinite(row["loss"]) for row in losses)


def test_a_held_out_split_too_small_for_the_classes_is_refused_with_one_that_is_not() -> None:
    """50 rows of 3 classes: .02 of them is 1 row."""
    training = toys.built(kit.spec("gblend", share=0.02))
    with pytest.raises(ValueError, match=r"holds 1 rows out.*use share=0.06"):
        training.method.begin_epoch(0, training.data.only("train"))
    toys.trained(kit.spec("gblend", share=0.06, super_epoch=1))
