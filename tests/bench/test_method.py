from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vcmm.bench import judge
from vcmm.bench.fusions import FUSIONS
from vcmm.bench.method import Method, Terms, groups, total
from vcmm.bench.methods.joint import Joint
from vcmm.bench.methods.multi_loss import MultiLoss
from vcmm.bench.model import Multimodal
from vcmm.bench.optimizers import OPTIMIZERS
from vcmm.bench.types import Batch, Output

from . import toys
from .toys import tiny


class Identity(nn.Module):
    """An encoder that gives what it gets, scaled by a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.scale * inputs


def by_hand(kind: type[Method] = Joint) -> tuple[Any, Batch]:
    """Two modalities of one feature, two classes, mean fusion: ten numbers, all of them chosen."""
    fusion: Any = FUSIONS["mean"]({"a": 1, "b": 1}, 2).double()
    model = Multimodal({"a": Identity(), "b": Identity()}, fusion)
    with torch.no_grad():
        fusion.heads["a"].weight.copy_(torch.tensor([[1.0], [-1.0]]))
        fusion.heads["b"].weight.copy_(torch.tensor([[0.5], [0.0]]))
        fusion.heads["a"].bias.copy_(torch.tensor([0.1, 0.0]))
        fusion.heads["b"].bias.copy_(torch.tensor([0.0, 0.3]))
    method = kind(model, torch.optim.SGD(groups(model), lr=0.1))
    rows = {"a": torch.tensor([[2.0], [-1.0]]), "b": torch.tensor([[1.0], [3.0]])}
    inputs = {m: x.double() for m, x in rows.items()}
    return method, Batch(inputs, torch.tensor([0, 1]), torch.arange(2))


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def residuals(margins: list[float], own: list[int]) -> list[float]:
    """dCE/dz_0 of each sample, where z_0 - z_1 is the margin. That of z_1 is its negative."""
    return [sigmoid(m) - (target == 0) for m, target in zip(margins, own, strict=True)]


def margins_by_hand() -> tuple[list[float], list[float]]:
    """z_0 - z_1 of the two heads for the two samples, worked out from the numbers above."""
    a = [(1 * 2 + 0.1) - (-1 * 2 + 0.0), (1 * -1 + 0.1) - (-1 * -1 + 0.0)]
    b = [(0.5 * 1 + 0.0) - (0.0 * 1 + 0.3), (0.5 * 3 + 0.0) - (0.0 * 3 + 0.3)]
    return a, b


def test_the_gradient_of_joint_training_is_the_one_worked_out_by_hand() -> None:
    method, batch = by_hand()
    a, b = margins_by_hand()
    fused = [(x + y) / 2 for x, y in zip(a, b, strict=True)]
    e = residuals(fused, [0, 1])
    method.backward(method.loss(method(batch.inputs), batch))
    # dL/dw_a0 = mean_i e_i h_ai / 2: the mean over samples, and over modalities.
    heads = method.model.fusion.heads
    expected = (e[0] * 2 + e[1] * -1) / 2 / 2
    torch.testing.assert_close(heads["a"].weight.grad.flatten().tolist(), [expected, -expected])
    expected = (e[0] * 1 + e[1] * 3) / 2 / 2
    torch.testing.assert_close(heads["b"].weight.grad.flatten().tolist(), [expected, -expected])
    expected = (e[0] + e[1]) / 2 / 2
    torch.testing.assert_close(heads["a"].bias.grad.tolist(), [expected, -expected])
    # dL/ds_a = mean_i e_i (w_a0 - w_a1) x_ai / 2
    scale = method.model.encoders["a"].scale.grad.item()
    assert scale == pytest.approx((e[0] * 2 * 2 + e[1] * 2 * -1) / 2 / 2)


def test_the_gradient_of_multi_loss_adds_that_of_every_head() -> None:
    method, batch = by_hand(MultiLoss)
    a, b = margins_by_hand()
    fused = residuals([(x + y) / 2 for x, y in zip(a, b, strict=True)], [0, 1])
    own = residuals(a, [0, 1])
    method.backward(method.loss(method(batch.inputs), batch))
    joint = (fused[0] * 2 + fused[1] * -1) / 2 / 2
    alone = (own[0] * 2 + own[1] * -1) / 2
    weight = method.model.fusion.heads["a"].weight.grad
    torch.testing.assert_close(weight.flatten().tolist(), [joint + alone, -joint - alone])


def test_a_step_of_sgd_is_the_gradient_times_the_rate_and_reports_the_loss_before_it() -> None:
    method, batch = by_hand()
    before = {name: p.detach().clone() for name, p in method.named_parameters()}
    loss = F.cross_entropy(method(batch.inputs).fused, batch.target)
    names, parameters = zip(*method.named_parameters(), strict=True)
    gradients = dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))
    report = method.step(batch)
    assert report.keys() == {"loss"}
    assert report["loss"].item() == pytest.approx(loss.item())
    for name, parameter in method.named_parameters():
        torch.testing.assert_close(parameter, before[name] - 0.1 * gradients[name])


class Spoken(Joint):
    """Says what is called."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.said: list[str] = []

    def forward(self, inputs: Any) -> Output:
        self.said.append("forward")
        return super().forward(inputs)

    def loss(self, output: Output, batch: Batch) -> Terms:
        self.said.append("loss")
        return super().loss(output, batch)

    def backward(self, terms: Terms) -> None:
        self.said.append("backward")
        super().backward(terms)

    def modulate(self, output: Output, batch: Batch) -> None:
        assert all(p.grad is not None for p in self.parameters())
        self.said.append("modulate")
        for parameter in self.parameters():
            parameter.grad.zero_()  # type: ignore[union-attr]

    def update(self, output: Output, batch: Batch) -> None:
        self.said.append("update")
        super().update(output, batch)


def test_a_step_speaks_its_paragraph_in_order_and_modulation_changes_what_is_learned() -> None:
    method, batch = by_hand(Spoken)
    before = [p.detach().clone() for p in method.parameters()]
    seen: list[bool] = []

    def watch(output: Output, given: Batch) -> None:
        assert given is batch
        method.said.append("watch")
        seen.append(all(p.grad is not None for p in method.parameters()))

    method.watchers.append(watch)
    method.step(batch)
    assert method.said == ["forward", "loss", "backward", "modulate", "update", "watch"]
    assert seen == [True]  # watchers come before the step, while gradients are there
    assert all(p.grad is None for p in method.parameters())
    # Its gradients were set to zero, so plain SGD has not moved.
    assert all(torch.equal(a, b) for a, b in zip(before, method.parameters(), strict=True))


def test_what_is_reported_holds_no_graph_and_sums_up() -> None:
    training = toys.built(tiny(3, method="multi_loss"))
    batch = training.data.batch("train", torch.arange(8))
    report = training.method.step(batch)
    assert report.keys() == {"loss", "loss/fused", "loss/m1", "loss/m2", "loss/m3"}
    assert not any(value.requires_grad for value in report.values())
    parts = sum(value for name, value in report.items() if name != "loss")
    torch.testing.assert_close(report["loss"], parts)


def test_passes_over_the_data_are_counted_in_training_alone() -> None:
    training = toys.built(tiny())
    method, batch = training.method, training.data.batch("train", torch.arange(8))
    for _ in range(3):
        method.step(batch)
    assert method.counts == {"forwards": 3, "backwards": 3, "updates": 3}
    judge.evaluate(method, training.data, "test")
    method.eval()(batch.inputs)
    assert method.counts == {"forwards": 3, "backwards": 3, "updates": 3}


def test_the_total_is_the_sum_and_a_single_term_is_itself() -> None:
    one = torch.tensor(0.1, requires_grad=True)
    assert total({"fused": one}) is one
    terms = {name: torch.tensor(float(i)) for i, name in enumerate("abc", 1)}
    assert total(terms).item() == 6


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
@pytest.mark.parametrize("modality", ["m1", None])
@pytest.mark.parametrize("controller", ["none", "vcmm"])
def test_a_module_that_is_adopted_is_trained_as_the_modalitys_or_as_shared(
    optimizer: str, modality: str | None, controller: str
) -> None:
    spec = tiny(fusion="concat", optimizer=optimizer, controller=controller)
    training = toys.built(spec)
    method, batch = training.method, training.data.batch("train", torch.arange(8))
    before = len(method.optimizer.param_groups)
    for _ in range(2):  # the model is some steps old when modules join, and then another
        for _ in range(2):
            method.step(batch)
            training.schedule.step()
        method.extra = nn.Linear(8, 3)
        method.adopt(method.extra, modality)
    assert len(method.optimizer.param_groups) == before
    group = next(g for g in method.optimizer.param_groups if g["modality"] == modality)
    assert set(method.extra.parameters()) < set(group["params"])
    counted = Counter(p for g in method.optimizer.param_groups for p in g["params"])
    assert all(counted[p] == 1 for p in method.parameters())
    start = method.extra.weight.detach().clone()
    for _ in range(3):
        output = method(batch.inputs)
        terms = {"own": F.cross_entropy(method.extra(output.features["m1"]), batch.target)}
        method.backward({**method.loss(output, batch), **terms})
        method.update(output, batch)
        training.schedule.step()
    assert not torch.equal(method.extra.weight, start)


def test_randomness_of_a_method_is_named_seeded_and_saved() -> None:
    torch.manual_seed(4)
    method, _ = by_hand()
    state = torch.get_rng_state()
    first = torch.rand(3, generator=method.generator("noise"))
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(torch.rand(3, generator=method.generator("other")), first)
    second = torch.rand(3, generator=method.generator("noise"))
    assert not torch.equal(first, second)

    saved = method.state_dict()
    third = torch.rand(3, generator=method.generator("noise"))
    torch.manual_seed(99)  # a resumed process may have drawn anything
    other, _ = by_hand()
    other.load_state_dict(saved)
    assert torch.equal(torch.rand(3, generator=other.generator("noise")), third)

    torch.manual_seed(4)
    again, _ = by_hand()
    assert torch.equal(torch.rand(3, generator=again.generator("noise")), first)
    torch.manual_seed(5)
    again, _ = by_hand()
    assert not torch.equal(torch.rand(3, generator=again.generator("noise")), first)


def test_the_state_of_a_method_is_safe_to_load(tmp_path: Any) -> None:
    method, batch = by_hand()
    method.generator("noise")
    method.step(batch)
    torch.save(method.state_dict(), tmp_path / "state.pt")
    other, _ = by_hand()
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert not toys.differences(other.state_dict(), method.state_dict())


def rows_of(told: Iterator[tuple[Output, Batch]]) -> list[int]:
    return [row for _, batch in told for row in batch.index.tolist()]


def test_a_survey_sees_the_rows_asked_for_without_gradients_and_is_counted() -> None:
    training = toys.built(tiny(data=toys.source(samples=130)))
    method, rows = training.method, torch.arange(129).flip(0)
    buffers = [b.clone() for b in method.buffers()]
    for output, batch in method.survey(training.data, rows):
        assert not output.fused.requires_grad
        assert not method.training
        assert len(batch.target) > 1
    assert method.training
    assert method.counts["forwards"] == 3  # of at most 64 rows each
    assert rows_of(method.survey(training.data, rows)) == rows.tolist()
    assert all(torch.equal(a, b) for a, b in zip(buffers, method.buffers(), strict=True))
