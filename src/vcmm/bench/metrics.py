"""What a prediction is worth. All metrics are computed by torchmetrics from a whole split at once.

| metric       | one class per sample                            | several labels per sample     |
|--------------|-------------------------------------------------|-------------------------------|
| accuracy     | share of samples whose largest logit is right   | share of labels that are      |
| macro_f1     | F1 of every class, averaged                     | F1 of every label, averaged   |
| map          | average precision of each class against the rest| of every label                |
| ece          | calibration error in 15 bins of confidence      | the same over labels          |
| loss         | cross-entropy                                   | binary cross-entropy          |

`modality_gap` is the largest minus the smallest accuracy of the modalities' own heads.
`map` is the mean of scikit-learn's `average_precision_score` over the classes that the split has,
of softmax probabilities (`tests/bench/test_metrics.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

BINS = 15


def scores(logits: Tensor, target: Tensor) -> dict[str, float]:
    """Every metric of some logits [n, C], for class ids [n] or labels [n, C]."""
    logits = logits.double()
    return _of_labels(logits, target) if target.ndim == 2 else _of_classes(logits, target)


def accuracy(logits: Tensor, target: Tensor) -> float:
    """The share of samples, or of labels, that are right."""
    right = (logits > 0) == (target > 0.5) if target.ndim == 2 else logits.argmax(dim=1) == target
    return right.double().mean().item()


def gap(accuracies: Mapping[str, float]) -> dict[str, float]:
    """Between the best and the worst modality, if there are two."""
    values = accuracies.values()
    return {"modality_gap": max(values) - min(values)} if len(accuracies) > 1 else {}


def _of_classes(logits: Tensor, target: Tensor) -> dict[str, float]:
    from torchmetrics.functional.classification import (
        multiclass_calibration_error,
        multiclass_f1_score,
    )

    classes = logits.shape[1]
    probabilities = logits.softmax(dim=1)
    f1 = multiclass_f1_score(probabilities, target, classes, average="macro")
    error = multiclass_calibration_error(probabilities, target, classes, BINS)
    return {
        "accuracy": accuracy(logits, target),
        "macro_f1": f1.item(),
        "map": _mean_precision(probabilities, F.one_hot(target, classes)),
        "ece": error.item(),
        "loss": F.cross_entropy(logits, target).item(),
    }


def _of_labels(logits: Tensor, target: Tensor) -> dict[str, float]:
    from torchmetrics.functional.classification import (
        binary_calibration_error,
        multilabel_f1_score,
    )

    labels, truth = logits.shape[1], target.long()
    probabilities = logits.sigmoid()
    f1 = multilabel_f1_score(probabilities, truth, labels, average="macro")
    error = binary_calibration_error(probabilities.flatten(), truth.flatten(), BINS)
    return {
        "accuracy": accuracy(logits, target),
        "macro_f1": f1.item(),
        "map": _mean_precision(probabilities, truth),
        "ece": error.item(),
        "loss": F.binary_cross_entropy_with_logits(logits, target.double()).item(),
    }


def _mean_precision(probabilities: Tensor, truth: Tensor) -> float:
    """Average precision of each column of 0/1 truth that has a 1; nan if none has."""
    from torchmetrics.functional.classification import binary_average_precision

    present = cast(list[int], (truth.sum(dim=0) > 0).nonzero().flatten().tolist())
    each = [binary_average_precision(probabilities[:, c], truth[:, c]) for c in present]
    return torch.stack(each).mean().item() if each else math.nan
