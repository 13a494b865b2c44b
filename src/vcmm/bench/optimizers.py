"""Optimizers by name: torch's own, in the fused kernel where there is one, and SGDF.

Muon is not among them: torch's takes matrices alone, and every encoder here has biases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim import Optimizer

from .sgd import SGD
from .sgdf import SGDF

Groups = Iterable[dict[str, Any]]


def adam(
    groups: Groups,
    *,
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    amsgrad: bool = False,
) -> Optimizer:
    """Adam, fused; weight decay enters the gradient."""
    return torch.optim.Adam(groups, lr, betas, eps, weight_decay, amsgrad, fused=True)


def adamw(
    groups: Groups,
    *,
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    amsgrad: bool = False,
) -> Optimizer:
    """AdamW, fused; weight decay is decoupled from the gradient."""
    return torch.optim.AdamW(groups, lr, betas, eps, weight_decay, amsgrad, fused=True)


def sgd(
    groups: Groups, *, lr: float = 1e-2, momentum: float = 0.9, weight_decay: float = 1e-4
) -> Optimizer:
    """SGD with momentum, fused; weight decay enters the gradient."""
    return SGD(groups, lr, momentum, weight_decay=weight_decay, fused=True)


def adamax(
    groups: Groups,
    *,
    lr: float = 2e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> Optimizer:
    """Adam with the infinity norm."""
    return torch.optim.Adamax(groups, lr, betas, eps, weight_decay, foreach=True)


def nadam(
    groups: Groups,
    *,
    lr: float = 2e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> Optimizer:
    """Adam with Nesterov's momentum."""
    return torch.optim.NAdam(groups, lr, betas, eps, weight_decay, foreach=True)


def radam(
    groups: Groups,
    *,
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> Optimizer:
    """Adam that trusts its second moment only once it has seen enough."""
    return torch.optim.RAdam(groups, lr, betas, eps, weight_decay, foreach=True)


def sgdf(
    groups: Groups,
    *,
    lr: float = 0.5,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    gamma: float = 0.5,
    weight_decay: float = 0.0,
    decoupled: bool = False,
) -> Optimizer:
    """SGD with a filter between momentum and gradient (CVPR 2026)."""
    return SGDF(groups, lr, betas, eps, weight_decay, gamma=gamma, decoupled=decoupled)


OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "adam": adam,
    "adamax": adamax,
    "adamw": adamw,
    "nadam": nadam,
    "radam": radam,
    "sgd": sgd,
    "sgdf": sgdf,
}
