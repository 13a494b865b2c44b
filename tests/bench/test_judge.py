from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.nn import functional as F

from vcmm.bench import judge, metrics
from vcmm.bench.build import Training
from vcmm.bench.methods.joint import Joint
from vcmm.bench.types import Output

from . import toys
from .toys import mined, tiny


def stepped(controller: str = "vcmm", kind: str = "sequence") -> Training:
    """A training in its middle, with batch norm and a gradient that was not used yet."""
    training = toys.built(tiny(2, kind, controller=controller))
    method, batch = training.method, training.data.batch("train", torch.arange(16))
    for _ in range(2):
        method.train().step(batch)
    method.backward(method.loss(method(batch.inputs), batch))
    return training


def snapshot(training: Training) -> dict[str, Any]:
    """All that could be left changed."""
    method = training.method
    optimizer = {i: dict(state) for i, state in enumerate(method.optimizer.state.values())}
    return {
        "state": {
            name: value.clone()
            for name, value in method.state_dict().items()
            if isinstance(value, Tensor)
        },
        "gradients": {
            name: p.grad.clone()
            for name, p in method.named_parameters()  # type: ignore[union-attr]
            if p.grad is not None
        },
        "modes": {name: module.training for name, module in method.named_modules()},
        "counts": dict(method.counts),
        "optimizer": {
            i: {k: v.clone() if isinstance(v, Tensor) else v for k, v in s.items()}
            for i, s in optimizer.items()
        },
        "random": torch.get_rng_state(),
        "controller": training.controller.metrics() if training.controller else {},
        "grad": torch.is_grad_enabled(),
    }


@pytest.mark.parametrize("part", ["evaluate", "probe"])
def test_judging_leaves_no_trace(part: str) -> None:
    training = stepped()
    training.method.model.encoders["m1"].eval()  # a method may hold a part of its own so
    before = snapshot(training)
    if part == "evaluate":
        judge.evaluate(training.method, training.data, "valid")
    else:
        judge.probe(training.method, training.data)
    assert not toys.differences(before, snapshot(training))
    assert before["gradients"]


def test_a_training_that_is_judged_between_its_steps_is_the_same_training() -> None:
    spec = tiny(2, "sequence", controller="vcmm")
    plain, losses = toys.trained(spec)
    judged = toys.built(spec)
    found: list[Any] = []

    def told() -> Any:
        for event in toys.events(judged, spec):
            yield event
            judge.evaluate(judged.method, judged.data, "test")
            judge.probe(judged.method, judged.data)

    found = toys.losses(told())
    assert found == losses
    assert not toys.differences(plain.method.model.state_dict(), judged.method.model.state_dict())


class Failing(Joint):
    """Cannot predict."""

    def predict(self, output: Output) -> Tensor:
        raise ArithmeticError


def test_the_mode_comes_back_also_when_judging_fails() -> None:
    training = stepped()
    method = Failing(training.method.model, training.method.optimizer)
    state = torch.get_rng_state()
    with pytest.raises(ArithmeticError):
        judge.evaluate(method, training.data, "valid")
    assert all(module.training for module in method.modules())
    assert torch.equal(torch.get_rng_state(), state)


class Curious(Joint):
    """Says whether a graph is made while it predicts, and draws."""

    def predict(self, output: Output) -> Tensor:
        assert not torch.is_grad_enabled()
        assert not self.training
        torch.rand(3)
        return self.model.fusion.heads["m1"](output.features["m1"])  # type: ignore[union-attr,index]


def test_predictions_are_made_without_gradients_and_are_what_is_scored() -> None:
    training = stepped()
    method = Curious(training.method.model, training.method.optimizer)
    state = torch.get_rng_state()
    found = judge.evaluate(method, training.data, "valid")
    assert found["accuracy"] == found["m1/accuracy"]
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_no_split_is_looked_at_but_the_one_asked_for(split: Any) -> None:
    training = stepped("none", "vector")
    others = {"train", "valid", "test"} - {split}
    data = mined(training.data, *others)  # type: ignore[arg-type]
    assert judge.evaluate(training.method, data, split) == judge.evaluate(
        training.method, training.data, split
    )
    judge.evaluate(training.method, training.data.only(split), split)


def test_probes_are_fitted_on_train_and_given_for_the_splits_that_there_are() -> None:
    training = stepped("none", "vector")
    whole = judge.probe(training.method, training.data)
    assert whole.keys() == {"train", "valid", "test"}
    assert whole["valid"].keys() == {"m1/probe", "m2/probe"}
    part = judge.probe(training.method, training.data.only("train", "valid"))
    assert part == {split: whole[split] for split in part}
    # What valid holds has no influence on what is found for test.
    poisoned = toys.poisoned(training.data, "valid")
    assert judge.probe(training.method, poisoned)["test"] == whole["test"]


def test_the_values_are_those_of_the_whole_split_however_it_is_batched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    training = stepped("none", "sequence")
    method = training.method
    found = judge.evaluate(method, training.data, "train")
    size = len(training.data.splits["train"])
    batch = training.data.batch("train", torch.arange(size))
    with torch.no_grad():
        output = method.eval()(batch.inputs)
    expected = metrics.scores(output.fused, batch.target)
    own = {m: metrics.accuracy(z, batch.target) for m, z in output.logits.items()}
    assert found == pytest.approx(
        {
            **expected,
            **{f"{m}/accuracy": value for m, value in own.items()},
            "modality_gap": max(own.values()) - min(own.values()),
        }
    )
    monkeypatch.setattr(judge, "ROWS", 7)
    assert judge.evaluate(method, training.data, "train") == pytest.approx(found)
    assert all(type(value) is float for value in found.values())


def test_one_modality_has_no_gap() -> None:
    training = toys.built(tiny(2, method="unimodal"))
    found = judge.evaluate(training.method, training.data, "test")
    assert "modality_gap" not in found
    assert found["accuracy"] == found["m1/accuracy"]


# The probe


def rows(samples: int, features: int, classes: int, *, apart: float = 1.0) -> Any:
    chance = torch.Generator().manual_seed(features)
    target = torch.arange(samples) % classes
    centres = torch.randn(classes, features, generator=chance)
    x = torch.randn(samples, features, generator=chance) + apart * centres[target]
    return (x - x.mean(dim=0)) / x.std(dim=0), target


def gradient(weight: Tensor, x: Tensor, target: Tensor, decay: float) -> Tensor:
    """Of the objective, in float64."""
    w = weight.double().requires_grad_()
    loss_of = F.cross_entropy if target.ndim == 1 else F.binary_cross_entropy_with_logits
    loss = loss_of(
        F.linear(x.double(), w[:, 1:], w[:, 0]), target if target.ndim == 1 else target.double()
    )
    (found,) = torch.autograd.grad(loss + decay / 2 * w[:, 1:].square().sum(), w)
    return found


@pytest.mark.parametrize(
    ("samples", "features", "classes", "apart"),
    [(300, 64, 7, 1.0), (300, 64, 7, 0.05), (40, 64, 3, 3.0), (500, 5, 20, 1.0)],
)
@pytest.mark.parametrize("many", [False, True])
def test_the_linear_probe_reaches_its_optimum(
    samples: int, features: int, classes: int, apart: float, many: bool
) -> None:
    """Noise, separable classes, and more features than samples among them."""
    x, target = rows(samples, features, classes, apart=apart)
    if many:
        target = F.one_hot(target, classes).float()
    weight = judge.fitted(x, target, classes)
    assert weight.shape == (classes, features + 1)
    assert not weight.requires_grad
    # float32 leaves about 1e-4 of a gradient that begins at about 0.1.
    assert gradient(weight, x, target, 1e-3).norm() < 5e-4
    assert gradient(torch.zeros_like(weight), x, target, 1e-3).norm() > 1e-2
    assert torch.equal(weight, judge.fitted(x, target, classes))


def test_the_linear_probe_is_scikit_learns_logistic_regression() -> None:
    x, target = rows(300, 16, 4)
    weight = judge.fitted(x, target, 4, decay=1e-2)
    model = LogisticRegression(C=1 / (300 * 1e-2), tol=1e-8, max_iter=1000).fit(x, target)
    ours = F.linear(x, weight[:, 1:], weight[:, 0]).softmax(dim=1)
    np.testing.assert_allclose(ours.numpy(), model.predict_proba(x), atol=2e-3)


def test_a_probe_sees_what_the_head_does_not() -> None:
    """Heads that know nothing, on encoders through which the classes can be told apart."""
    training = toys.built(tiny(2, data=toys.source(noise=0.1)))
    with torch.no_grad():
        for head in training.method.model.fusion.heads.values():  # type: ignore[union-attr,operator]
            head.weight.zero_()
    found = judge.evaluate(training.method, training.data, "valid")
    probes = judge.probe(training.method, training.data)["valid"]
    for modality in ("m1", "m2"):
        assert found[f"{modality}/accuracy"] < 0.5
        assert probes[f"{modality}/probe"] > 0.9


def test_dead_features_do_not_disturb_a_probe() -> None:
    training = toys.built(tiny(2, data=toys.source(noise=0.1)))
    before = judge.probe(training.method, training.data)["test"]
    last = [m for m in training.method.model.encoders["m1"].modules() if isinstance(m, nn.Linear)][
        -1
    ]
    with torch.no_grad():
        last.weight[:3].zero_()
        last.bias[:3] = -1.0  # ReLU makes zeros of it
    after = judge.probe(training.method, training.data)["test"]
    assert after["m1/probe"] >= before["m1/probe"] - 0.2
    assert after["m2/probe"] == before["m2/probe"]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_where_training_diverged_there_is_no_probe_and_the_rest_is_judged(value: float) -> None:
    training = toys.built(tiny(2))
    with torch.no_grad():
        for parameter in training.method.model.encoders["m1"].parameters():
            parameter.fill_(value)
    found = judge.probe(training.method, training.data)
    assert all(values.keys() == {"m2/probe"} for values in found.values())
    assert judge.evaluate(training.method, training.data, "valid")["accuracy"] < 0.9


def test_data_without_targets_of_a_class_is_judged_too() -> None:
    training = toys.built(tiny(2))
    part = training.data.splits["valid"]
    few = np.flatnonzero(part.target != 1)
    inputs = {m: x[few] for m, x in part.inputs.items()}
    splits = {
        **training.data.splits,
        "valid": replace(part, inputs=inputs, target=part.target[few]),
    }
    found = judge.evaluate(training.method, replace(training.data, splits=splits), "valid")
    assert 0 <= found["map"] <= 1
