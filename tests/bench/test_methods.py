"""The reference methods. What a paper's method does is tested beside it, in tests/bench/methods."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from vcmm.bench.build import chosen_data
from vcmm.bench.fusions import FUSIONS
from vcmm.bench.method import groups
from vcmm.bench.methods.ensemble import Ensemble, log_mean
from vcmm.bench.methods.unimodal import Unimodal
from vcmm.bench.model import Multimodal
from vcmm.bench.spec import Choice
from vcmm.bench.types import Batch, Output

from . import toys
from .toys import tiny

CONSTANT: dict[str, Any] = {"schedule": "constant", "seed": 3}


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd", "nadam"])
@pytest.mark.parametrize("fusion", ["mean", "sum"])
@pytest.mark.parametrize("kind", ["vector", "sequence"])
def test_an_ensemble_is_bitwise_the_models_that_are_trained_alone(
    optimizer: str, fusion: str, kind: str
) -> None:
    axes: dict[str, Any] = {"optimizer": optimizer, "fusion": fusion, **CONSTANT}
    together, losses = toys.trained(tiny(3, kind, method="ensemble", **axes))
    state = together.method.model.state_dict()
    for modality in ("m1", "m2", "m3"):
        spec = tiny(3, kind, method=Choice("unimodal", modality=modality), **axes)
        alone, own = toys.trained(spec)
        expected = alone.method.model.state_dict()
        assert expected.keys() == {name for name in state if f".{modality}." in name}
        for name, value in expected.items():
            assert torch.equal(value, state[name]), name
        assert [row["loss"] for row in own] == [row[f"loss/{modality}"] for row in losses]


def logits() -> dict[str, torch.Tensor]:
    return {
        m: torch.randn(5, 3, generator=torch.Generator().manual_seed(i))
        for i, m in enumerate(("a", "b", "c"))
    }


def ensemble(criterion: Any = F.cross_entropy) -> Ensemble:
    encoders = {m: nn.Linear(2, 2) for m in "abc"}
    model = Multimodal(encoders, FUSIONS["mean"](dict.fromkeys("abc", 2), 3))
    return Ensemble(model, torch.optim.SGD(groups(model), lr=0.1), criterion)


def test_an_ensemble_averages_probabilities_and_not_logits() -> None:
    z = logits()
    predicted = ensemble().predict(Output({}, z, torch.zeros(5, 3)))
    mean = torch.stack([one.softmax(dim=1) for one in z.values()]).mean(dim=0)
    torch.testing.assert_close(predicted.softmax(dim=1), mean)
    predicted = ensemble(F.binary_cross_entropy_with_logits).predict(
        Output({}, z, torch.zeros(5, 3))
    )
    mean = torch.stack([one.sigmoid() for one in z.values()]).mean(dim=0)
    torch.testing.assert_close(predicted.sigmoid(), mean)


def test_averaging_holds_where_probabilities_are_too_small_for_a_float() -> None:
    small = torch.tensor([[-500.0, 0.0], [-600.0, 0.0]])
    expected = torch.tensor([-500.0 - torch.log(torch.tensor(2.0)).item(), 0.0])
    torch.testing.assert_close(log_mean(small), expected)


@pytest.mark.parametrize("fusion", ["concat", "shared", "gated"])
def test_an_ensemble_refuses_a_fusion_that_shares(fusion: str) -> None:
    with pytest.raises(ValueError, match='use fusion "mean" or "sum"'):
        toys.built(tiny(method="ensemble", fusion=fusion))


def test_multi_loss_adds_the_loss_of_every_head_to_that_of_all() -> None:
    training = toys.built(tiny(3, method="multi_loss"))
    method, batch = training.method, training.data.batch("train", torch.arange(8))
    output = method(batch.inputs)
    terms = method.loss(output, batch)
    assert list(terms) == ["fused", "m1", "m2", "m3"]
    torch.testing.assert_close(terms["fused"], F.cross_entropy(output.fused, batch.target))
    for modality, z in output.logits.items():
        torch.testing.assert_close(terms[modality], F.cross_entropy(z, batch.target))
    assert method.predict(output) is output.fused


def test_unimodal_training_sees_one_modality() -> None:
    spec = tiny(3, method=Choice("unimodal", modality="m2"))
    training = toys.built(spec)
    assert training.data.modalities == ("m2",)
    assert set(training.data.splits["train"].inputs) == {"m2"}
    assert {g["modality"] for g in training.method.optimizer.param_groups} == {"m2"}
    data = toys.data_of(spec)
    with pytest.raises(ValueError, match="there is no modality 'm9'; there are m1, m2, m3"):
        chosen_data(tiny(3, method=Choice("unimodal", modality="m9")), data)
    spec = replace(tiny(3, method=Choice("unimodal", modality="m3")), modalities=("m1", "m2"))
    with pytest.raises(ValueError, match="there is no modality 'm3'; there are m1, m2"):
        chosen_data(spec, data)
    model = toys.built(tiny(3)).method.model
    with pytest.raises(ValueError, match="unimodal training of 'm1' was given a model of m1, m2"):
        Unimodal(model, torch.optim.SGD(groups(model), lr=0.1), modality="m1")


def test_joint_training_of_one_modality_is_unimodal_training() -> None:
    joint, _ = toys.trained(replace(tiny(2), modalities=("m1",)))
    alone, _ = toys.trained(tiny(2, method=Choice("unimodal", modality="m1")))
    assert not toys.differences(joint.method.model.state_dict(), alone.method.model.state_dict())


@pytest.mark.parametrize("name", ["joint", "multi_loss", "ensemble"])
def test_training_lowers_the_loss(name: str) -> None:
    spec = tiny(2, method=name, data=toys.source(noise=0.1), epochs=16)
    _, losses = toys.trained(spec)
    first, last = ([row["loss"] for row in losses[part]] for part in (slice(4), slice(-4, None)))
    assert sum(last) < 0.5 * sum(first)


def test_labels_of_several_kinds_reach_the_loss_as_they_should() -> None:
    """Joint training on labels [n, C] is binary cross-entropy, mean over samples and labels."""
    method = ensemble(F.binary_cross_entropy_with_logits)
    target = (torch.rand(4, 3) > 0.5).float()
    batch = Batch({m: torch.randn(4, 2) for m in "abc"}, target, torch.arange(4))
    output = method(batch.inputs)
    z = output.logits["a"]
    expected = -(target * F.logsigmoid(z) + (1 - target) * F.logsigmoid(-z)).mean()
    torch.testing.assert_close(method.loss(output, batch)["a"], expected)
