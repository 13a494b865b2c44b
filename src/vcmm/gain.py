"""From a ratio of drift to noise to a momentum coefficient.

A gradient seen through minibatch noise R, whose true value walks at random with drift Q, is best
followed by a Kalman filter. Its steady-state gain K solves rho = K^2 / (1 - K) with rho = Q / R,
and the filter is an exponential average with beta = 1 - K.

| equation                                                        | function        |
|-----------------------------------------------------------------|-----------------|
| rho = Q / R, finite for every R, Q >= 0                         | `drift_ratio`   |
| K = 2 / (1 + sqrt(1 + 4 / rho))                                 | `kalman_gain`   |
| logit K = log rho - log K                                       | `logit_gain`    |
| l~_m = logit K0 + strength * (logit K_m - mean_j logit K_j)     | `centred_logit` |
| beta_m = 1 - clip(sigmoid(l~_m), gain_range)                    | `momentum`      |

All arguments are float64 tensors with one entry per modality, on any device.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Beyond these a ratio carries no further information, and its logarithm is still finite.
_RATIO_RANGE = (1e-300, 1e300)


def drift_ratio(drift: Tensor, noise: Tensor) -> Tensor:
    """rho = Q / R, kept within 1e-300 and 1e300. Where both are zero there is no ratio: nan."""
    return (drift / noise).clamp(*_RATIO_RANGE)


def kalman_gain(rho: Tensor) -> Tensor:
    """K in (0, 1) with rho = K^2 / (1 - K), in a form that does not cancel for small or large rho.

    Checked against known values in `tests/test_gain.py`.
    """
    return 2 / (1 + torch.sqrt(1 + 4 / rho))


def logit_gain(rho: Tensor) -> Tensor:
    """log(K / (1 - K)), without forming 1 - K, which rounds to zero for large rho."""
    return torch.log(rho) - torch.log(kalman_gain(rho))


def centred_logit(logits: Tensor, known: Tensor, base_gain: Tensor, strength: float) -> Tensor:
    """l~_m = logit K0 + strength * (logit K_m - mean of logit K_j over the known modalities).

    `known` marks the modalities that have an estimate. The others keep the base and stay out of
    the mean; a single known modality has nothing to be compared with, and keeps the base too.
    """
    zero = torch.zeros_like(logits)
    mean = torch.where(known, logits, zero).sum() / known.sum().clamp(min=1)
    deviation = torch.where(known & (known.sum() > 1), logits - mean, zero)
    return torch.logit(base_gain) + strength * deviation


def momentum(logits: Tensor, gain_range: tuple[float, float]) -> Tensor:
    """beta = 1 - clip(sigmoid(l), gain_range)."""
    return 1 - torch.sigmoid(logits).clamp(*gain_range)
