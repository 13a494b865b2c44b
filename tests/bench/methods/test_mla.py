"""MLA: modalities in turn through one head, whose gradient is projected."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.bench import toys
from tests.bench.methods import kit
from vcmm.bench.methods.mla import MLA, batch_certainty, certainty, normalized, projection


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_the_projection_of_the_specification() -> None:
    matrix = projection(torch.eye(2, dtype=torch.float64), double(1, 0), 0.1)
    assert matrix.diag().tolist() == pytest.approx([0.0909090909, 1.0], abs=1e-9)
    assert matrix[0, 1] == matrix[1, 0] == 0
    unit = normalized(matrix)
    assert unit.diag().tolist() == pytest.approx([0.0905357460, 0.9958932065], abs=1e-9)


def test_the_published_recursion_keeps_p_and_the_plugin_overwrites_it_by_its_norm() -> None:
    first, second = double(1, 0), double(0.6, 0.8)
    kept = plugin = torch.eye(2, dtype=torch.float64)
    for mean in (first, second):
        kept = projection(kept, mean, 0.1)
        plugin = normalized(projection(plugin, mean, 0.1))
    # By hand: k = (.6/11, .8), r k = .0327272 + .64, and so on.
    k = double(0.6 / 11, 0.8)
    expected = double(1 / 11, 1).diag() - torch.outer(k, k) / (0.1 + 0.36 / 11 + 0.64)
    assert torch.allclose(kept, expected, rtol=1e-12)
    assert not torch.allclose(normalized(kept), plugin, rtol=1e-3)


def test_the_gate_of_the_specification() -> None:
    logits = torch.stack([double(2, 0, 0), double(0.5, 0, 0)])[:, None]
    assert certainty(logits)[:, 0].tolist() == pytest.approx([0.599377663, 0.400622337], abs=1e-9)


def test_a_gate_per_sample_and_as_released_one_that_depends_on_the_batch() -> None:
    logits = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0)).double()
    every = certainty(logits)
    assert torch.allclose(every[:, :1], certainty(logits[:, :1]))
    assert every.sum(dim=0).tolist() == pytest.approx([1.0] * 5)
    assert batch_certainty(logits).shape == (3, 1)
    assert not torch.allclose(batch_certainty(logits), batch_certainty(logits[:, :3]))


@pytest.mark.parametrize("modalities", [1, 2, 3])
@pytest.mark.parametrize("as_released", [False, True])
def test_two_steps_are_those_of_a_slow_loop(modalities: int, as_released: bool) -> None:
    model, optimizer = kit.small(modalities, "shared")
    method = MLA(model, optimizer, as_released=as_released)
    encoders = {m: e.weight.detach().clone() for m, e in model.encoders.items()}
    weight = model.fusion.head.weight.detach().clone()
    bias = model.fusion.head.bias.detach().clone()
    directions, calls = torch.eye(2, dtype=torch.float64), 0
    batches = [kit.some(model, seed=seed) for seed in range(2)]
    method._samples = 10
    for number, batch in enumerate(batches):
        features = {m: batch.inputs[m] @ encoders[m].T for m in encoders}
        for m, h in features.items():
            residual = (h @ weight.T + bias).softmax(dim=1) - F.one_hot(batch.target, kit.CLASSES)
            residual = residual / len(h)
            on_weight, on_encoder = residual.T @ h, (residual @ weight).T @ batch.inputs[m]
            calls += 1
            if calls > 1 and not as_released:
                alpha = 0.1 ** (1 + number * 4 / 10)
                k = directions @ h.mean(dim=0)
                directions = directions - torch.outer(k, k) / (alpha + h.mean(dim=0) @ k)
                on_weight = on_weight @ (directions / directions.norm()).T
            weight, bias = weight - 0.1 * on_weight, bias - 0.1 * residual.sum(dim=0)
            encoders[m] = encoders[m] - 0.1 * on_encoder
        method.step(batch)
    assert torch.allclose(model.fusion.head.weight, weight, rtol=1e-10)
    assert torch.allclose(model.fusion.head.bias, bias, rtol=1e-10)
    for m, value in encoders.items():
        assert torch.allclose(model.encoders[m].weight, value, rtol=1e-10)


def test_a_forward_and_a_backward_per_modality_a_step() -> None:
    method = MLA(*kit.small(3, "shared"))
    method.step(kit.some(method.model))
    assert dict(method.counts) == {"forwards": 1, "backwards": 3, "updates": 3}


def test_in_a_loop_of_ones_own_the_projection_does_not_die_out() -> None:
    """Nobody says how long an epoch is; alpha stays at .1, and 0 would divide by 0."""
    method = MLA(*kit.small(2, "shared"))
    directions, batches = torch.eye(2, dtype=torch.float64), range(200)
    for seed in batches:
        batch = kit.some(method.model, seed=seed)
        features = method.model(batch.inputs).features
        for number, h in enumerate(features.values()):
            if seed + number > 0:
                directions = projection(directions, h.detach().mean(dim=0), 0.1)
        assert method.step(batch)["loss"].isfinite()
    assert torch.allclose(method.directions, directions, rtol=1e-9)


def test_features_of_different_widths_are_mapped_to_the_largest() -> None:
    from vcmm.bench.fusions.shared import Shared
    from vcmm.bench.method import groups
    from vcmm.bench.model import Multimodal

    encoders = {"audio": nn.Linear(2, 3), "video": nn.Linear(2, 5)}
    model = Multimodal(encoders, Shared({"audio": 3, "video": 5}, kit.CLASSES)).double()
    method = MLA(model, torch.optim.SGD(groups(model), lr=0.1))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    method.step(kit.some(model))
    assert all(not torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert method.directions.shape == (5, 5)


def test_another_fusion_is_refused() -> None:
    for fusion in ("mean", "boosted"):
        with pytest.raises(ValueError, match='fusion "shared"'):
            MLA(*kit.small(2, fusion))


def test_several_labels() -> None:
    model, optimizer = kit.small(2, "shared")
    method = MLA(model, optimizer, F.binary_cross_entropy_with_logits)
    batch = kit.some(model)
    labels = F.one_hot(batch.target, kit.CLASSES).double()
    assert method.step(type(batch)(batch.inputs, labels, batch.index))["loss"].isfinite()


@pytest.mark.parametrize("controller", ["none", "vcmm"])
@pytest.mark.parametrize("steps", [2, 4])
def test_a_stopped_training_goes_on_bitwise(controller: str, steps: int) -> None:
    axes = {"controller": controller, "optimizer": "sgd"}
    assert kit.differences_of_resume(kit.spec("mla", 3, axes=axes), steps) == []


def test_it_learns() -> None:
    _, losses = toys.trained(kit.spec("mla", axes={"epochs": 40}))
    assert losses[-1]["loss"] < 0.5 * losses[0]["loss"]
