"""Against scikit-learn, whose definitions most tables follow, and against examples by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk
from torch import Tensor
from torch.nn import functional as F

from vcmm.bench import metrics


def drawn(
    seed: int, samples: int, classes: int, step: float | None = None
) -> tuple[Tensor, Tensor]:
    """Logits that know something of the classes; with `step` they are rounded, so many tie."""
    chance = torch.Generator().manual_seed(seed)
    target = torch.randint(classes, (samples,), generator=chance)
    logits = torch.randn(samples, classes, generator=chance) + F.one_hot(target, classes)
    return (logits if step is None else (logits / step).round() * step), target


def sklearn_of_classes(logits: Tensor, target: Tensor) -> dict[str, float]:
    probabilities = logits.double().softmax(dim=1).numpy()
    truth, predicted = target.numpy(), logits.argmax(dim=1).numpy()
    precision = [
        sk.average_precision_score(truth == c, probabilities[:, c]) for c in np.unique(truth)
    ]
    every = list(range(logits.shape[1]))
    return {
        "accuracy": float(sk.accuracy_score(truth, predicted)),
        "macro_f1": float(sk.f1_score(truth, predicted, average="macro", zero_division=0)),
        "map": float(np.mean(precision)),
        "loss": float(sk.log_loss(truth, probabilities, labels=every)),
    }


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(2, 60),
    st.integers(2, 7),
    st.sampled_from([None, 0.5, 2.0]),
)
def test_classes_as_scikit_learn_has_them(
    seed: int, samples: int, classes: int, step: float | None
) -> None:
    """Among them splits without some of the classes, and predictions that tie."""
    logits, target = drawn(seed, samples, classes, step)
    found = metrics.scores(logits, target)
    for name, value in sklearn_of_classes(logits, target).items():
        assert found[name] == pytest.approx(value, abs=2e-6), name


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 40), st.integers(1, 5), st.sampled_from([None, 0.5]))
def test_labels_as_scikit_learn_has_them(
    seed: int, samples: int, labels: int, step: float | None
) -> None:
    chance = torch.Generator().manual_seed(seed)
    target = (torch.rand(samples, labels, generator=chance) < 0.3).float()
    logits = torch.randn(samples, labels, generator=chance) + target
    logits = logits if step is None else (logits / step).round() * step
    if labels == 1:  # torchmetrics wants two or more for F1
        logits, target = logits.repeat(1, 2), target.repeat(1, 2)
    found = metrics.scores(logits, target)
    truth, probabilities = target.numpy(), logits.double().sigmoid().numpy()
    predicted = (logits > 0).numpy()
    assert found["accuracy"] == pytest.approx((predicted == (truth > 0.5)).mean())
    f1 = sk.f1_score(truth, predicted, average="macro", zero_division=0)
    assert found["macro_f1"] == pytest.approx(f1, abs=2e-6)
    present = [c for c in range(truth.shape[1]) if truth[:, c].any()]
    if present:
        each = [sk.average_precision_score(truth[:, c], probabilities[:, c]) for c in present]
        assert found["map"] == pytest.approx(np.mean(each), abs=2e-6)
    else:
        assert math.isnan(found["map"])
    expected = -(target * F.logsigmoid(logits) + (1 - target) * F.logsigmoid(-logits)).mean()
    assert found["loss"] == pytest.approx(expected.item(), rel=1e-5)


def test_the_mean_of_average_precisions_is_scikit_learns_over_all_classes_at_once() -> None:
    logits, target = drawn(1, 80, 4)
    assert target.unique().numel() == 4
    truth = F.one_hot(target, 4).numpy()
    expected = sk.average_precision_score(truth, logits.double().softmax(dim=1).numpy())
    assert metrics.scores(logits, target)["map"] == pytest.approx(expected, abs=2e-6)


def test_average_precision_by_hand_with_a_tie() -> None:
    # Thresholds .9, .6 (two samples), .2: precision 1, 2/3, 2/4; recall 1/2, 1, 1 for the class.
    first = torch.tensor([0.9, 0.6, 0.6, 0.2]).double()
    logits = torch.stack([first, 1 - first], dim=1).log()
    target = torch.tensor([0, 0, 1, 1])
    expected = (1 / 2 * 1 + 1 / 2 * 2 / 3, 1 / 2 * 1 + 1 / 2 * 2 / 3)  # the other class mirrors it
    assert metrics.scores(logits, target)["map"] == pytest.approx(sum(expected) / 2)


def test_calibration_error_by_hand() -> None:
    # Confidence .9 and .95 lie in the last bin of 15, .6 in the tenth.
    confidence = torch.tensor([0.9 + 0.04, 0.95, 0.6, 0.61]).double()
    right = [True, False, True, True]
    logits = torch.stack([confidence, 1 - confidence], dim=1).log()
    target = torch.tensor([0 if yes else 1 for yes in right])
    last = abs((0.94 + 0.95) / 2 - 1 / 2) * 2 / 4
    tenth = abs((0.6 + 0.61) / 2 - 1) * 2 / 4
    assert metrics.scores(logits, target)["ece"] == pytest.approx(last + tenth, abs=1e-6)


def test_calibration_error_of_labels_compares_probability_with_frequency() -> None:
    probability = torch.tensor([[0.94, 0.61], [0.95, 0.6]]).double()
    logits = probability.logit()
    target = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    expected = (abs(0.945 - 1) + abs(0.605 - 0)) / 2
    assert metrics.scores(logits, target)["ece"] == pytest.approx(expected, abs=1e-6)


def test_what_is_sure_and_right_is_perfect_however_large_the_logits() -> None:
    target = torch.arange(6) % 3
    for size in (30.0, 1e4, 1e30):
        found = metrics.scores(F.one_hot(target, 3) * size, target)
        assert found["accuracy"] == found["macro_f1"] == found["map"] == 1
        assert found["ece"] == pytest.approx(0, abs=1e-9)
        assert found["loss"] == pytest.approx(0, abs=1e-9)
    wrong = metrics.scores(F.one_hot((target + 1) % 3, 3) * 1e4, target)
    assert wrong["accuracy"] == 0
    assert wrong["loss"] == pytest.approx(1e4)
    assert wrong["ece"] == pytest.approx(1)


@pytest.mark.parametrize("many", [False, True])
def test_values_are_plain_floats_and_always_the_same_ones(many: bool) -> None:
    logits, target = drawn(0, 20, 3)
    given_target: Any = F.one_hot(target, 3).float() if many else target
    found = metrics.scores(logits, given_target)
    assert list(found) == ["accuracy", "macro_f1", "map", "ece", "loss"]
    assert all(type(value) is float for value in found.values())
    assert found == metrics.scores(logits, given_target)
    # Neither the precision in which logits came nor the order of samples matters.
    order = torch.randperm(20)
    again = metrics.scores(logits.double()[order], given_target[order])
    assert again == pytest.approx(found, rel=1e-6)


@pytest.mark.parametrize("many", [False, True])
def test_a_training_that_diverged_can_still_be_judged(many: bool) -> None:
    target = torch.arange(6) % 3
    for value in (math.nan, math.inf):
        found = metrics.scores(
            torch.full((6, 3), value), F.one_hot(target, 3).float() if many else target
        )
        assert found["accuracy"] <= 2 / 3
        assert not math.isfinite(found["loss"])


def test_the_gap_is_between_best_and_worst() -> None:
    assert metrics.gap({"a": 0.5, "b": 0.9, "c": 0.7}) == {"modality_gap": pytest.approx(0.4)}
    assert metrics.gap({"a": 0.5, "b": 0.5}) == {"modality_gap": 0}
    assert metrics.gap({"a": 0.5}) == {}


def test_accuracy_of_classes_and_of_labels() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 2.0]])
    assert metrics.accuracy(logits, torch.tensor([0, 1])) == 0.5
    labels = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    assert metrics.accuracy(logits, labels) == pytest.approx(5 / 6)
