from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from vcmm.bench import judge, seeds
from vcmm.bench.build import Training, build, build_model, chosen_data, momenta
from vcmm.bench.controllers import CONTROLLERS
from vcmm.bench.data.assemble import assemble
from vcmm.bench.encoders.conv import Conv1d
from vcmm.bench.encoders.mlp import MLP
from vcmm.bench.fusions import FUSIONS
from vcmm.bench.methods import METHODS
from vcmm.bench.spec import Choice, Spec
from vcmm.bench.train import Stepped
from vcmm.bench.types import Data, Split, SplitName

from . import toys
from .toys import tiny


def labelled(samples: int = 60, classes: int = 4) -> Data:
    """Several labels per sample, each of which one modality knows better than the other."""
    chance = np.random.default_rng(0)
    splits: dict[SplitName, Split] = {}
    known = {m: chance.standard_normal((classes, 6)) for m in ("near", "far")}
    for split in ("train", "valid", "test"):
        target = (chance.random((samples, classes)) < 0.4).astype(np.int64)
        noise = {"near": 0.1, "far": 2.0}
        inputs = {
            m: (target @ known[m] + noise[m] * chance.standard_normal((samples, 6))).astype("f4")
            for m in known
        }
        splits[split] = Split(inputs, target)
    names = tuple(f"label {c}" for c in range(classes))
    return assemble("labelled", splits, labels=names, multilabel=True)


@pytest.mark.parametrize("method", ["joint", "ensemble", "multi_loss"])
@pytest.mark.parametrize("controller", ["none", "vcmm"])
def test_several_labels_per_sample_from_end_to_end(method: str, controller: str) -> None:
    spec = replace(
        tiny(method=method, controller=controller, epochs=12),
        encoder=Choice("mlp", width=16, outputs=16),
        optimizer=Choice("adam", lr=0.02),
    )
    data = labelled()
    training = build(spec, data)
    before = judge.evaluate(training.method, data, "test")
    losses = toys.losses(toys.events(training, spec))
    after = judge.evaluate(training.method, data, "test")
    assert after["accuracy"] > max(before["accuracy"] + 0.1, 0.8)
    assert after["map"] > 0.8
    assert after["near/accuracy"] > after["far/accuracy"]
    assert losses[-1]["loss"] < losses[0]["loss"]
    probes = judge.probe(training.method, data)["test"]
    assert probes["near/probe"] > 0.9 > probes["far/probe"] > 0.5
    if controller == "vcmm":
        found = momenta(training)
        assert {f"{m}/{q}" for m in ("near", "far") for q in ("beta", "R", "Q", "rho")} <= set(
            found
        )
        assert found["near/beta"] != found["far/beta"]


def test_the_probe_of_several_labels_is_the_gradient_of_their_own_loss() -> None:
    """R of the first step, from the sum over labels, written out; a constant factor is free."""
    spec = tiny(controller="vcmm")
    training = build(spec, labelled())
    batch = training.data.batch("train", torch.arange(16))
    output = training.method.train()(batch.inputs)
    training.method.step(batch)
    for modality, z in output.logits.items():
        h = torch.cat([output.features[modality], torch.ones(16, 1)], dim=1).double()
        error = z.double().sigmoid() - batch.target
        halves = [error[s::2].T @ h[s::2] / 8 for s in (0, 1)]
        noise = (halves[0] - halves[1]).square().mean().item() / 4
        assert momenta(training)[f"{modality}/R"] == pytest.approx(noise, rel=1e-5)


def test_the_criterion_is_the_one_of_the_labels() -> None:
    assert build(tiny(), labelled()).method.criterion is F.binary_cross_entropy_with_logits
    assert toys.built(tiny()).method.criterion is F.cross_entropy


@pytest.mark.parametrize("controller", sorted(CONTROLLERS))
@pytest.mark.parametrize("method", sorted(METHODS))
def test_building_twice_gives_the_same_training_whatever_was_drawn_before(
    method: str, controller: str
) -> None:
    spec = tiny(2, method=method, controller=controller)
    torch.manual_seed(11)
    one, first = toys.trained(spec)
    torch.manual_seed(12)
    torch.rand(5)
    two, second = toys.trained(spec)
    assert first == second
    assert not toys.differences(one.method.state_dict(), two.method.state_dict())
    assert momenta(one) == momenta(two)


def test_the_seed_is_of_weights_and_order() -> None:
    one, two = toys.built(tiny(seed=0)), toys.built(tiny(seed=1))
    assert all(
        not torch.equal(a, b)
        for (name, a), (_, b) in zip(
            one.method.named_parameters(), two.method.named_parameters(), strict=True
        )
    )
    orders: list[Any] = []
    for seed in (0, 1):
        spec = tiny(seed=seed)
        training = toys.built(spec)
        seen: list[int] = []
        training.method.watchers.append(lambda o, b, s=seen: s.extend(b.index.tolist()))
        list(toys.events(training, spec))
        orders.append(seen)
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1])


def test_encoders_are_chosen_for_each_modality() -> None:
    mlp = Choice("mlp", width=5, depth=3, outputs=7)
    spec = tiny(2, "sequence", encoders={"m2": mlp})
    model = build_model(spec, toys.data_of(spec))
    assert isinstance(model.encoders["m1"], Conv1d)
    assert isinstance(model.encoders["m2"], MLP)
    heads: Any = model.fusion.heads
    assert (heads["m1"].in_features, heads["m2"].in_features) == (8, 7)


@pytest.mark.parametrize(
    "axes",
    [
        {},
        {"modalities": ("m1",)},
        {"method": Choice("unimodal", modality="m1")},
    ],
)
def test_an_encoder_for_a_modality_that_is_not_there_is_an_error(axes: dict[str, Any]) -> None:
    spec = replace(tiny(2), encoders={"m9": Choice("mlp")}, **axes)
    with pytest.raises(ValueError, match="encoders names modality 'm9'; the data has m1, m2"):
        toys.built(spec)
    # One that is there, but left out, is none.
    toys.built(replace(tiny(2), encoders={"m2": Choice("mlp")}, **axes))


def test_an_encoder_that_does_not_fit_says_whose_it_was() -> None:
    spec = tiny(2, encoders={"m2": Choice("conv1d")})
    with pytest.raises(ValueError, match=r"modality 'm2': this encoder takes .* kind sequence"):
        toys.built(spec)


def test_modalities_are_selected_by_the_spec_and_then_by_the_method() -> None:
    data = toys.data_of(tiny(3))
    some = replace(tiny(3), modalities=("m3", "m1"))
    assert chosen_data(some, data).modalities == ("m1", "m3")
    assert chosen_data(tiny(3), data).modalities == ("m1", "m2", "m3")
    alone = replace(some, method=Choice("unimodal", modality="m3"))
    assert chosen_data(alone, data).modalities == ("m3",)
    with pytest.raises(ValueError, match="has no modality 'm9'; it has m1, m2, m3"):
        chosen_data(replace(tiny(3), modalities=("m9",)), data)
    training = toys.built(some)
    assert training.method.model.modalities == ("m1", "m3")
    assert set(training.data.splits["test"].inputs) == {"m1", "m3"}


def test_the_schedule_is_as_long_as_the_training() -> None:
    spec = tiny(schedule="cosine", epochs=3)
    training = toys.built(spec)
    told = [event for event in toys.events(training, spec) if isinstance(event, Stepped)]
    assert training.steps == len(told) == 3 * toys.STEPS
    assert training.method.optimizer.param_groups[0]["lr"] == pytest.approx(0, abs=1e-9)


def test_every_axis_of_a_spec_arrives() -> None:
    spec = Spec(
        data=toys.source(2),
        encoder=Choice("mlp", width=5, outputs=6),
        method="multi_loss",
        fusion="concat",
        controller=Choice("vcmm", strength=0.5),
        optimizer=Choice("sgd", lr=0.3, momentum=0.8),
        schedule=Choice("step", every=2),
        epochs=4,
        batch_size=25,
    )
    training = toys.built(spec)
    method = training.method
    assert type(method) is METHODS["multi_loss"]
    assert type(method.optimizer).__name__ == "SGD"
    assert method.optimizer.param_groups[0]["lr"] == 0.3
    assert method.optimizer.param_groups[0]["momentum"] == 0.8
    assert type(method.model.fusion).__name__ == "Concat"
    assert training.controller is not None
    assert training.controller.policy.strength == 0.5  # type: ignore[attr-defined]
    assert training.schedule.step_size == 2 * 2  # type: ignore[attr-defined]
    assert training.steps == 8
    assert [g["modality"] for g in method.optimizer.param_groups] == ["m1", "m2", None]


def test_what_is_logged_of_a_controller_is_named_by_modality_and_finite() -> None:
    training = toys.built(tiny(2, controller="vcmm"))
    first = momenta(training)
    assert all(np.isfinite(value) for value in first.values())
    training.method.step(training.data.batch("train", torch.arange(16)))
    found = momenta(training)
    names = {"beta", "R", "Q", "rho", "gain"}
    assert {f"{m}/{name}" for m in ("m1", "m2") for name in names} <= found.keys()
    assert all(type(value) is float and np.isfinite(value) for value in found.values())


@pytest.mark.parametrize("fusion", sorted(FUSIONS))
def test_a_fusion_that_says_it_is_linear_is(fusion: str) -> None:
    """z_m(a + b) + z_m(0) = z_m(a) + z_m(b), for the features of one modality."""
    made = FUSIONS[fusion]({"audio": 6, "video": 6}, 3).double().eval()
    seeds.initialize(made, 0)
    chance = torch.Generator().manual_seed(0)
    a, b, other = torch.randn(3, 5, 6, generator=chance, dtype=torch.float64)
    linear: list[bool] = []
    for modality, rest in (("audio", "video"), ("video", "audio")):

        def logits(features: torch.Tensor, m: str = modality, r: str = rest) -> torch.Tensor:
            return made({m: features, r: other})[0][m]

        left = logits(a + b) + logits(torch.zeros_like(a))
        linear.append(torch.allclose(left, logits(a) + logits(b), rtol=1e-9, atol=1e-12))
    assert all(linear) == made.linear


@pytest.mark.parametrize("fusion", ["aligned", "boosted", "gated", "growing"])
def test_where_no_head_is_linear_the_probe_has_heads_of_its_own(fusion: str) -> None:
    def trained(controller: Choice) -> Training:
        spec = toys.tiny(3, fusion=fusion, controller=controller)
        training = toys.built(spec)
        list(toys.events(training, spec))
        return training

    plain, probed = trained(Choice("none")), trained(Choice("vcmm", strength=0.0))
    assert not toys.differences(plain.method.model.state_dict(), probed.method.model.state_dict())
    assert not hasattr(plain.method, "probes")
    assert all(parameter.any() for parameter in probed.method.probes.parameters())
    assert probed.controller.metrics()["m1/R"] > 0
