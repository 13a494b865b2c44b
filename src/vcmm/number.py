"""One formula for floats and for tensors.

A step measures a handful of numbers. On the host they are floats, because an operation on a tensor
of one element costs twenty times one on a float; on the device of a capturable optimizer they stay
float64 tensors. What both share is written once, with these functions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

Number = float | Tensor
Numbers = tuple[Number, ...]
Truth = bool | Tensor


def log(x: Number) -> Number:
    """Minus infinity at zero, nan below."""
    if isinstance(x, Tensor):
        return torch.log(x.double())
    return math.log(x) if x > 0 else (-math.inf if x == 0 else math.nan)


def expm1(x: Number) -> Number:
    """exp(x) - 1."""
    return torch.expm1(x) if isinstance(x, Tensor) else math.expm1(x)


def sigmoid(x: Number) -> Number:
    """1 / (1 + exp(-x)), 0 where exp(-x) would overflow."""
    if isinstance(x, Tensor):
        return torch.sigmoid(x)
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


def isfinite(x: Number) -> Truth:
    """Neither infinite nor nan: otherwise x - x is nan, which equals nothing."""
    return x - x == 0


def isnan(x: Number) -> Truth:
    """Not a number."""
    return torch.isnan(x) if isinstance(x, Tensor) else math.isnan(x)


def divide(a: Number, b: Number) -> Number:
    """With the infinities and nans of IEEE 754, which Python's floats refuse to give."""
    if isinstance(a, Tensor) or isinstance(b, Tensor) or b != 0:
        return a / b
    return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a)


def clamp(x: Number, low: float, high: float) -> Number:
    """The nearest number within the bounds, or nan."""
    if isinstance(x, Tensor):
        return x.clamp(low, high)
    return low if x < low else high if x > high else x


def larger(a: Number, b: Number) -> Number:
    """The larger one, or nan if either is."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.maximum(a, b)
    return a if a > b or isnan(a) else b


def where(condition: Truth, a: Number, b: Number) -> Number:
    """The first where the condition holds, else the second."""
    if isinstance(condition, Tensor):
        return torch.where(condition, a, b)
    return a if condition else b


def choose(condition: Truth, a: Numbers, b: Numbers) -> Numbers:
    """`where`, for several numbers under one condition."""
    if isinstance(condition, Tensor):
        return tuple(where(condition, x, y) for x, y in zip(a, b, strict=True))
    return a if condition else b
