"""From a ratio of drift to noise to a momentum coefficient.

A gradient seen through minibatch noise R, whose true value walks at random with drift Q, is best
followed by a Kalman filter. Its steady-state gain K solves rho = K^2 / (1 - K) with rho = Q / R,
and the filter is an exponential average with beta = 1 - K.

| equation                                                        | function        |
|-----------------------------------------------------------------|-----------------|
| rho = Q / R, finite for every R, Q >= 0                         | `drift_ratio`   |
| K = 2 / (1 + sqrt(1 + 4 / rho))                                 | `kalman_gain`   |
| logit K = log rho - log K = log(rho / K)                        | `logit_gain`    |
| l~_m = logit K0 + strength * (logit K_m - mean_j logit K_j)     | `centred_logit` |
| beta_m = 1 - clip(sigmoid(l~_m), gain_range)                    | `momentum`      |

Arguments are one modality's numbers, or float64 tensors of any shape on any device.
"""

from __future__ import annotations

from collections.abc import Iterable

from .number import Number, Truth, clamp, divide, log, sigmoid, where

# Beyond these a ratio carries no further information, and its logarithm is still finite.
_RATIO_RANGE = (1e-300, 1e300)


def drift_ratio(drift: Number, noise: Number) -> Number:
    """rho = Q / R, kept within 1e-300 and 1e300. Where both are zero there is no ratio: nan."""
    return clamp(divide(drift, noise), *_RATIO_RANGE)


def kalman_gain(rho: Number) -> Number:
    """K in (0, 1) with rho = K^2 / (1 - K), in a form that does not cancel for small or large rho.

    Checked against known values in `tests/test_gain.py`.
    """
    return 2 / (1 + (1 + 4 / rho) ** 0.5)


def logit_gain(rho: Number) -> Number:
    """log(K / (1 - K)), without forming 1 - K, which rounds to zero for large rho."""
    return log(rho / kalman_gain(rho))


def centred_logit(
    logits: Iterable[Number],
    known: Iterable[Truth],
    base_gain: Iterable[Number],
    strength: float,
) -> list[Number]:
    """l~_m = logit K0 + strength * (logit K_m - mean of logit K_j over the known modalities).

    `known` marks the modalities that have an estimate. The others keep the base and stay out of
    the mean; a single known modality is its own mean, and keeps the base too.
    """
    rows = list(zip(logits, known, base_gain, strict=True))
    total: Number = 0.0
    count: Number = 0
    for logit, has, _ in rows:
        total = total + where(has, logit, 0.0)
        count = count + has
    mean = divide(total, count)
    return [
        log(divide(base, 1 - base)) + strength * where(has, logit - mean, 0.0)
        for logit, has, base in rows
    ]


def momentum(logits: Number, gain_range: tuple[float, float]) -> Number:
    """beta = 1 - clip(sigmoid(l), gain_range)."""
    return 1 - clamp(sigmoid(logits), *gain_range)
