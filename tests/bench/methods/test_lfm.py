"""LFM: how far modalities disagree, and what share of the loss that is."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.bench import toys
from tests.bench.methods import kit
from vcmm.bench.methods.lfm import LFM, alignment, curve, disagreement, hypergradient
from vcmm.bench.types import Output

ONE = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64)
OTHER = torch.tensor([[0.0, 2.0, 0.0]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("epoch", "share"), [(0, 0.2046), (50, 0.4367), (100, 0.5392), (150, 0.8213), (199, 0.9160)]
)
def test_the_fitted_curve(epoch: int, share: float) -> None:
    assert curve(epoch) == pytest.approx(share, abs=5e-5)


def test_the_curve_stays_at_its_end() -> None:
    assert curve(10_000) == curve(199)


def test_the_example_has_the_released_value_and_not_the_true_divergence() -> None:
    assert disagreement(ONE, OTHER).item() == pytest.approx(0.2191756964, abs=1e-10)
    p, q = ONE.softmax(1), OTHER.softmax(1)
    m = (p + q) / 2
    true = 0.5 * ((p * (p / m).log()).sum() + (q * (q / m).log()).sum())
    assert true.item() == pytest.approx(0.1857490225, abs=1e-9)


def test_disagreement_is_symmetric_zero_between_equals_and_finite_far_apart() -> None:
    assert disagreement(OTHER, ONE).item() == pytest.approx(disagreement(ONE, OTHER).item())
    assert disagreement(ONE, ONE).item() == pytest.approx(0.0, abs=1e-15)
    far = (ONE * 1e4).requires_grad_()
    value = disagreement(far, OTHER * 1e4)
    value.backward()
    assert value.isfinite()
    assert far.grad is not None
    assert far.grad.isfinite().all()
    rows = disagreement(torch.cat([ONE, ONE]), torch.cat([OTHER, ONE]))
    assert rows.item() == pytest.approx(0.2191756964 / 2, abs=1e-10)


def test_alignment_sums_over_all_pairs() -> None:
    third = torch.tensor([[0.5, 0.5, 3.0]], dtype=torch.float64)
    pairs = [(ONE, OTHER), (ONE, third), (OTHER, third)]
    expected = sum(disagreement(p, q).item() for p, q in pairs)
    assert alignment({"a": ONE, "t": third, "v": OTHER}).item() == pytest.approx(expected)


@pytest.mark.parametrize("modalities", [2, 3, 6])
def test_the_loss_is_twice_the_mixture(modalities: int) -> None:
    model, optimizer = kit.small(modalities)
    batch = kit.some(model)
    output: Output = model(batch.inputs)
    terms = LFM(model, optimizer).loss(output, batch)
    fused = F.cross_entropy(output.fused, batch.target).item()
    assert terms["fused"].item() == pytest.approx(2 * 0.05 * fused, rel=1e-6)
    assert terms["alignment"].item() == pytest.approx(
        2 * 0.95 * alignment(output.logits).item(), rel=1e-6
    )
    fitted = LFM(model, optimizer, schedule="fitted").loss(output, batch)
    assert fitted["fused"].item() == pytest.approx(2 * 0.204623704 * fused, rel=1e-6)


def test_the_gradient_by_hand() -> None:
    """One weight a module, one sample of class 0; logits (h, 0, 0), differentiated by hand."""
    model, optimizer = kit.small(2, inputs=1, width=1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        for modality, weight in (("audio", 1.0), ("flow", -0.5)):
            model.encoders[modality].weight.fill_(weight)
            model.fusion.heads[modality].weight[0] = 1.0
    batch = kit.some(model, 1, inputs=1)
    for x in batch.inputs.values():
        x.fill_(1.0)
    method = LFM(model, optimizer)
    method.weight.fill_(0.5)  # the loss is CE + A
    found = kit.gradients(method, batch)["encoders.audio.weight"].item()

    def posterior(score: float) -> list[float]:
        e = math.exp(score)
        return [e / (e + 2), 1 / (e + 2), 1 / (e + 2)]

    p, q, z = posterior(1.0), posterior(-0.5), posterior(0.25)
    # A = sum_k m_k (log m_k - .5 log p_k - .5 log q_k), and dp_k / dz_0 = p_k ([k = 0] - p_0).
    align = 0.0
    for k in range(3):
        m, dp = (p[k] + q[k]) / 2, p[k] * ((k == 0) - p[0])
        inside = math.log(m) - 0.5 * math.log(p[k]) - 0.5 * math.log(q[k])
        align += dp / 2 * (inside + 1) - 0.5 * m / p[k] * dp
    assert found == pytest.approx((z[0] - 1) / 2 + align, rel=1e-9)


@pytest.mark.parametrize("modalities", [2, 3])
def test_the_hypergradient_is_the_derivative_of_the_inner_product(modalities: int) -> None:
    """Against differences of <grad T, grad C>, parameter by parameter."""
    model, _ = kit.small(modalities)
    batch = kit.some(model, 6)
    over = list(model.parameters())
    weight = torch.tensor(0.7, dtype=torch.float64)

    def parts() -> tuple[Tensor, Tensor]:
        output = model(batch.inputs)
        return F.cross_entropy(output.fused, batch.target), alignment(output.logits)

    def inner() -> float:
        classify, align = parts()
        t = torch.autograd.grad(0.3 * classify + 0.7 * align, over, retain_graph=True)
        c = torch.autograd.grad(classify, over)
        return sum(float((x * y).sum()) for x, y in zip(t, c, strict=True))

    found = hypergradient(*parts(), weight, over)
    expected: list[float] = []
    for parameter in over:
        flat = parameter.data.view(-1)
        for i in range(len(flat)):
            ends = []
            for sign in (1, -1):
                flat[i] += sign * 1e-5
                ends.append(inner())
                flat[i] -= sign * 1e-5
            expected.append((ends[0] - ends[1]) / 2e-5)
    assert found.tolist() == pytest.approx(expected, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("as_released", [False, True])
@pytest.mark.parametrize(("epoch", "halvings"), [(1, 0), (19, 0), (20, 1), (45, 2)])
def test_the_step_of_the_mixture(as_released: bool, epoch: int, halvings: int) -> None:
    training = toys.built(kit.spec("lfm", eta=0.5, as_released=as_released))
    method, train = training.method, training.data.only("train")
    assert isinstance(method, LFM)
    method.weight.fill_(0.5)
    method.begin_epoch(0, train)
    assert method.weight.item() == 0.5  # nothing was learned before the first epoch
    assert method.rest is not None
    held = sorted(set(range(toys.SAMPLES)) - set(method.rest.tolist()))
    batch = train.batch("train", torch.tensor(held))
    over = list(method.model.parameters())
    output: Output = method.model(batch.inputs)
    classify = F.cross_entropy(output.fused, batch.target)
    h = hypergradient(classify, alignment(output.logits), method.weight, over)
    slope = h[: over[0].numel()].mean() if as_released else h.mean()
    method.begin_epoch(epoch, train)
    expected = 0.5 - 0.5 / 2**halvings * slope.item()
    assert method.weight.item() == pytest.approx(expected, abs=1e-6)
    assert method.weight.item() != 0.5
    assert all(parameter.grad is None for parameter in over)


def test_the_mixture_stays_inside_its_bounds() -> None:
    for eta in (1e9, -1e9):
        training = toys.built(kit.spec("lfm"))
        method, train = training.method, training.data.only("train")
        assert isinstance(method, LFM)
        method.learn(train.batch("train", torch.arange(8)), eta)
        assert method.weight.item() in (pytest.approx(0.05), pytest.approx(0.95))


def test_held_out_rows_are_not_trained_on_and_the_others_all_are() -> None:
    spec = kit.spec("lfm", held=6)
    training = toys.built(spec)
    visited: list[int] = []
    training.method.watchers.append(lambda _, batch: visited.extend(batch.index.tolist()))
    list(toys.events(training, spec))
    assert len(set(visited)) == toys.SAMPLES - 6
    assert len(visited) == 2 * (toys.SAMPLES - 6)


def test_the_fitted_schedule_is_stretched_and_holds_nothing_out() -> None:
    training = toys.built(kit.spec("lfm", schedule="fitted", length=10))
    method, train = training.method, training.data.only("train")
    assert isinstance(method, LFM)
    method.begin_epoch(5, train)
    assert method.weight.item() == pytest.approx(1 - curve(100))
    assert method.sampler(5) is None
    method.begin_epoch(10, train)
    assert method.weight.item() == pytest.approx(1 - curve(199))


def test_one_modality_is_joint_training() -> None:
    model, optimizer = kit.small(1)
    batch = kit.some(model)
    output = model(batch.inputs)
    terms = LFM(model, optimizer).loss(output, batch)
    assert {k: v.item() for k, v in terms.items()} == {
        "fused": F.cross_entropy(output.fused, batch.target).item()
    }
    toys.trained(kit.spec("lfm", 1))


@pytest.mark.parametrize("bad", [{"schedule": "fixed"}, {"eta": -1.0}, {"held": 0}, {"length": 0}])
def test_bad_settings_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        LFM(*kit.small(), **bad)


def test_more_rows_held_out_than_there_are() -> None:
    training = toys.built(kit.spec("lfm", held=toys.SAMPLES))
    with pytest.raises(ValueError, match="held is 50"):
        training.method.begin_epoch(0, training.data.only("train"))


def test_several_labels_are_refused_with_another_method_to_use() -> None:
    with pytest.raises(ValueError, match="multi_loss"):
        LFM(*kit.small(), F.binary_cross_entropy_with_logits)


def test_the_cost_of_learning_the_mixture_is_counted() -> None:
    """42 rows are three batches; after the first epoch a forward and three backwards come to it."""
    training, _ = toys.trained(kit.spec("lfm"))
    assert dict(training.method.counts) == {"forwards": 7, "backwards": 9, "updates": 6}
    training, _ = toys.trained(kit.spec("lfm", schedule="fitted"))
    assert dict(training.method.counts) == {"forwards": 8, "backwards": 8, "updates": 8}


@pytest.mark.parametrize("schedule", ["learned", "fitted"])
@pytest.mark.parametrize("steps", [0, 1, 3, 5])
def test_a_stopped_training_goes_on_bitwise(schedule: str, steps: int) -> None:
    axes = {"controller": "vcmm", "optimizer": "sgd", "epochs": 3}
    spec = kit.spec("lfm", 3, kind="sequence", schedule=schedule, eta=1.0, axes=axes)
    assert kit.differences_of_resume(spec, steps) == []


@pytest.mark.parametrize("schedule", ["learned", "fitted"])
def test_renaming_modalities_changes_nothing(schedule: str) -> None:
    names = {"m1": "m2", "m2": "m3", "m3": "m1"}
    plain, other = kit.losses_under(kit.spec("lfm", 3, schedule=schedule, eta=1.0), names)
    for a, b in zip(plain, other, strict=True):
        assert a == pytest.approx(b, rel=1e-6)
