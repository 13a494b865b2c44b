"""The unimodal ensemble: models trained independently, and their probabilities averaged.

L = sum_m CE(z_m, y); p = mean_m softmax(z_m). No parameter is shared, so with an optimizer that
treats parameters one by one this trains the very models that separate trainings would give
(`tests/bench/test_methods.py`). The sum of the losses merely saves the passes over the data.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim import Optimizer

from ..method import Criterion, Method, Terms
from ..model import Multimodal
from ..types import Batch, Output


def log_mean(log_probabilities: Tensor) -> Tensor:
    """log(mean_m p_m) over the first axis."""
    return log_probabilities.logsumexp(dim=0) - math.log(len(log_probabilities))


class Ensemble(Method):
    """Every modality learns for itself, and each has an equal say."""

    def __init__(
        self, model: Multimodal, optimizer: Optimizer, criterion: Criterion = F.cross_entropy
    ) -> None:
        super().__init__(model, optimizer, criterion)
        owned = {parameter for claim in model.claims().values() for parameter in claim}
        if any(parameter not in owned for parameter in model.parameters()):
            raise ValueError(
                "an ensemble shares no parameter between modalities, but this fusion does; "
                'use fusion "mean" or "sum"'
            )
        self.multilabel = criterion is F.binary_cross_entropy_with_logits

    def loss(self, output: Output, batch: Batch) -> Terms:
        return {m: self.criterion(z, batch.target) for m, z in output.logits.items()}

    def predict(self, output: Output) -> Tensor:
        logits = torch.stack(list(output.logits.values()))
        if not self.multilabel:
            return log_mean(F.log_softmax(logits, dim=-1))
        return log_mean(F.logsigmoid(logits)) - log_mean(F.logsigmoid(-logits))
