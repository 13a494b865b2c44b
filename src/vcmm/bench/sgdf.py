"""SGDF: SGD with a filter that mixes the momentum and the newest gradient (CVPR 2026).

| equation                                                                   |
|----------------------------------------------------------------------------|
| m = b1 m + (1 - b1) g;  s = b2 s + (1 - b2) (g - m)^2                      |
| m^ = m / (1 - P), P = product of all b1 so far, which is b1^t if it stands |
| r = g - m^;  c = (1 + b1) (1 - b2^t) / ((1 - b1) (1 - P^2))                |
| K = (s / (s + c r^2 + eps))^gamma;  theta -= lr (m^ + K r)                 |

With P kept by the optimizer itself, a momentum that varies in time is corrected exactly, so a
controller writes beta and nothing else (`Binding(correction="inherent")`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from vcmm import Binding, register


def noise_scale(betas: tuple[float, float], step: int, product: float) -> float:
    """c, by which r^2 is compared with s."""
    first, second = betas
    return (1 + first) * (1 - second**step) / ((1 - first) * (1 - product**2))


def gain(spread: Tensor, rest: Tensor, scale: float, gamma: float, eps: float) -> Tensor:
    """K: how much of the newest gradient is taken beside the momentum."""
    return (spread / (spread + scale * rest.square() + eps)) ** gamma


def update(
    gradient: Tensor, state: dict[str, Any], betas: tuple[float, float], gamma: float, eps: float
) -> Tensor:
    """m^ + K r, and the state brought forward by one step."""
    first, second = betas
    m, s = state["first"], state["spread"]
    state["step"] += 1
    state["product"] *= first
    m.lerp_(gradient, 1 - first)
    deviation = gradient - m
    s.mul_(second).addcmul_(deviation, deviation, value=1 - second)
    mean = m / (1 - state["product"])
    rest = gradient - mean
    scale = noise_scale(betas, state["step"], state["product"])
    return mean + gain(s, rest, scale, gamma, eps) * rest


class SGDF(Optimizer):
    """SGD with the filter. Weight decay enters the gradient unless it is `decoupled`."""

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 0.5,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        gamma: float = 0.5,
        decoupled: bool = False,
    ) -> None:
        if not 0 <= betas[0] < 1 or not 0 <= betas[1] < 1:
            raise ValueError(f"SGDF: betas are {betas}; both must be in [0, 1)")
        if lr < 0 or eps < 0 or weight_decay < 0:
            raise ValueError(
                f"SGDF: lr is {lr}, eps {eps} and weight_decay {weight_decay}; none may be negative"
            )
        settings = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "gamma": gamma,
            "decoupled_weight_decay": decoupled,
        }
        super().__init__(params, settings)

    @torch.no_grad()
    def step(  # pyright: ignore[reportIncompatibleMethodOverride] - torch overloads its own
        self, closure: Callable[[], float] | None = None
    ) -> float | None:
        """Take one step."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, group)
        return loss

    def _move(self, parameter: Tensor, group: dict[str, Any]) -> None:
        gradient, decay = parameter.grad, group["weight_decay"]
        assert gradient is not None
        if decay and group["decoupled_weight_decay"]:
            parameter.mul_(1 - group["lr"] * decay)
        elif decay:
            gradient = gradient.add(parameter, alpha=decay)
        state = self.state[parameter]
        if not state:
            state["step"] = 0
            state["product"] = 1.0
            state["first"] = torch.zeros_like(parameter)
            state["spread"] = torch.zeros_like(parameter)
        moved = update(gradient, state, group["betas"], group["gamma"], group["eps"])
        parameter.add_(moved, alpha=-group["lr"])


register(SGDF, Binding(correction="inherent"))
