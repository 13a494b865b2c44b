"""What momentum each modality should have: the `Policy` protocol and the three of the paper.

A policy decides; `MomentumController` realizes its decision exactly on the optimizer. Every row of
the paper's ablation table is one of these with other arguments:

| row                       | policy                                                            |
|---------------------------|-------------------------------------------------------------------|
| full                      | `Kalman()`                                                        |
| fixed asymmetric          | `Fixed(audio=0.95, video=0.80)`                                   |
| frozen                    | `Frozen(Kalman(), after=steps // 10, average=steps // 50)`        |
| without noise subtraction | `Kalman(subtract_noise=False)`                                    |
| without centring          | `Kalman(center=False)`                                            |
| without exact correction  | `Kalman()` in a controller with `exact=False`                     |
| shared                    | no controller                                                     |
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from .dynamics import Dynamics, Measurement
from .gain import centred_logit, drift_ratio, kalman_gain, logit_gain, momentum
from .probe import Number, Probe

# A beta0 of .7 makes a base gain of .30000000000000004.
_ROUNDING = 1e-9


class Policy(Protocol):
    """Decides the momentum of every modality, once per optimizer step.

    Derive from it and write `update`; the other methods are for policies with settings to check,
    numbers to show or a memory to save.
    """

    def check(self, base: Mapping[str, float]) -> None:
        """Raise ValueError if this policy cannot serve modalities with these base momenta."""

    @abstractmethod
    def update(
        self, probes: Mapping[str, Probe], base: Mapping[str, Number]
    ) -> Mapping[str, Number]:
        """The momentum of this step, per modality.

        `probes` holds the modalities that this step could measure, perhaps none; `base` holds every
        modality's own coefficient, read live from the optimizer. A modality that is left out of the
        answer keeps its base, and its groups are not touched.
        """
        ...

    def metrics(self) -> dict[str, float]:
        """Numbers to log, named "modality/quantity"."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """What must survive a restart: tensors, numbers, strings, and dicts of them."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave."""


class Kalman(Policy):
    """The paper: noise and drift, their ratio, the Kalman gain, centred across modalities.

    Args:
        strength: how far the log-odds of the gains may leave the base, lambda. 0 turns control off.
        smoothing: a of the running means of noise and drift.
        floor: least drift, as a share of the probe's energy.
        gain_range: bounds of the gain, so of 1 - beta.
        warmup: steps that keep the base momentum while the running means settle.
        subtract_noise: take the noise of both probes out of their squared difference.
        center: compare modalities with one another. If false, each gets its own Kalman gain.
        floor_after_smoothing: smooth the raw drift first and apply the floor then, which is
            unbiased; the published order, floor first, is the default.
    """

    def __init__(
        self,
        *,
        strength: float = 1.0,
        smoothing: float = 0.95,
        floor: float = 1e-4,
        gain_range: tuple[float, float] = (0.01, 0.30),
        warmup: int = 0,
        subtract_noise: bool = True,
        center: bool = True,
        floor_after_smoothing: bool = False,
    ) -> None:
        low, high = gain_range
        for valid, message in (
            (0 <= strength < math.inf, f"strength is {strength}; it must be 0 or more, and finite"),
            (0 <= smoothing < 1, f"smoothing is {smoothing}; it must be in [0, 1)"),
            (0 <= floor < math.inf, f"floor is {floor}; it must be 0 or more, and finite"),
            (0 < low <= high < 1, f"gain_range is {gain_range}; it must be 0 < low <= high < 1"),
            (warmup >= 0, f"warmup is {warmup}; it must be 0 or more steps"),
        ):
            if not valid:
                raise ValueError(f"Kalman: {message}")
        self.strength = strength
        self.smoothing = smoothing
        self.floor = floor
        self.gain_range = (low, high)
        self.warmup = warmup
        self.subtract_noise = subtract_noise
        self.center = center
        self.floor_after_smoothing = floor_after_smoothing
        self._steps = 0
        self._modalities: tuple[str, ...] = ()
        self._dynamics = Dynamics.empty(0)

    def check(self, base: Mapping[str, float]) -> None:
        if self.strength == 0 or not self.center:
            return
        low, high = self.gain_range
        for modality, beta in base.items():
            if not low - _ROUNDING <= 1 - beta <= high + _ROUNDING:
                raise ValueError(
                    f"modality {modality!r} has base momentum {beta:g}, outside of "
                    f"[{1 - high:g}, {1 - low:g}] that gain_range={self.gain_range} allows; give "
                    "the optimizer a momentum within, or Kalman a gain_range that contains "
                    f"{1 - beta:g}"
                )

    def update(
        self, probes: Mapping[str, Probe], base: Mapping[str, Number]
    ) -> Mapping[str, Number]:
        self.check({m: beta for m, beta in base.items() if isinstance(beta, float)})
        self._steps += 1
        device = next(
            (p.noise.device for p in probes.values() if isinstance(p.noise, Tensor)), None
        )
        self._follow(tuple(base), device)
        base_gain = 1 - _vector(base.values(), self._dynamics.noise.device)
        if probes:
            self._dynamics.update(
                self._measurement(probes),
                base_gain,
                smoothing=self.smoothing,
                floor=self.floor,
                subtract_noise=self.subtract_noise,
                floor_after_smoothing=self.floor_after_smoothing,
            )
        if self._steps <= self.warmup or (self.center and (self.strength == 0 or len(base) < 2)):
            return {}
        return self._betas(base, base_gain)

    def _betas(self, base: Mapping[str, Number], base_gain: Tensor) -> Mapping[str, Number]:
        known = self._dynamics.known()
        logits = logit_gain(self._ratio())
        if self.center:
            logits = centred_logit(logits, known, base_gain, self.strength)
        betas = torch.where(known, momentum(logits, self.gain_range), 1 - base_gain)
        if known.device.type != "cpu":  # a capturable step must not ask the device what is known
            return dict(zip(base, betas.unbind(), strict=True))
        if self.center and known.sum() < 2:
            return {}
        values = cast(list[float], betas.tolist())
        estimated = cast(list[bool], known.tolist())
        return {m: beta for m, beta, e in zip(base, values, estimated, strict=True) if e}

    def _ratio(self) -> Tensor:
        return drift_ratio(self._dynamics.drift, self._dynamics.noise)

    def _measurement(self, probes: Mapping[str, Probe]) -> Measurement:
        nothing = Probe(math.nan, math.nan, math.nan, math.nan)
        rows = [probes.get(modality, nothing) for modality in self._modalities]
        device = self._dynamics.noise.device
        return Measurement(
            noise=_vector((row.noise for row in rows), device),
            change=_vector((row.change for row in rows), device),
            previous_noise=_vector((row.previous_noise for row in rows), device),
            energy=_vector((row.energy for row in rows), device),
        )

    def _follow(self, modalities: tuple[str, ...], device: torch.device | None) -> None:
        """Have an entry per modality, on the device of the probes."""
        state = self._dynamics
        if modalities != self._modalities:
            old = {name: i for i, name in enumerate(self._modalities)}
            order = torch.tensor(
                [old.get(name, len(old)) for name in modalities], dtype=torch.int64
            )
            state = state.map(lambda x: torch.cat([x, x.new_full((1,), math.nan)])[order])
            self._modalities = modalities
        if device is not None and state.noise.device != device:
            state = state.map(lambda x: x.to(device))
        self._dynamics = state

    def metrics(self) -> dict[str, float]:
        """R, Q, rho = Q / R and the uncentred Kalman gain K(rho), where there is an estimate."""
        state, rho = self._dynamics, self._ratio()
        table = torch.stack([state.noise, state.drift, rho, kalman_gain(rho)], dim=1)
        columns = cast(list[list[float]], table.tolist())
        return {
            f"{modality}/{quantity}": value
            for modality, row in zip(self._modalities, columns, strict=True)
            for quantity, value in zip(("R", "Q", "rho", "gain"), row, strict=True)
            if not math.isnan(value)
        }

    def state_dict(self) -> dict[str, Any]:
        dynamics = {name: getattr(self._dynamics, name).tolist() for name in Dynamics.names()}
        return {"steps": self._steps, "modalities": list(self._modalities), "dynamics": dynamics}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        device = self._dynamics.noise.device
        modalities = tuple(state["modalities"])
        columns = {name: _vector(state["dynamics"][name], device) for name in Dynamics.names()}
        if any(column.shape != (len(modalities),) for column in columns.values()):
            raise ValueError(f"Kalman: the saved means do not fit the modalities {modalities}")
        self._steps = int(state["steps"])
        self._modalities = modalities
        self._dynamics = Dynamics(**columns)


class Fixed(Policy):
    """A constant momentum per modality: `Fixed(audio=0.95, video=0.80)`. Others keep the base."""

    def __init__(self, **betas: float) -> None:
        for modality, beta in betas.items():
            if not 0 <= beta < 1:
                raise ValueError(f"Fixed: momentum of {modality!r} is {beta}; it must be in [0, 1)")
        self.betas = betas

    def check(self, base: Mapping[str, float]) -> None:
        for modality in self.betas.keys() - base.keys():
            raise ValueError(
                f"Fixed names modality {modality!r}, which no parameter group carries; the groups "
                f"carry {', '.join(base)}. Name one of these, or tag a group with "
                f"modality={modality!r}"
            )

    def update(
        self, probes: Mapping[str, Probe], base: Mapping[str, Number]
    ) -> Mapping[str, Number]:
        return self.betas


class Frozen(Policy):
    """Follow another policy for `after` steps, then keep its average over the last `average`.

    Wraps any policy: `Frozen(Kalman(), after=steps // 10, average=steps // 50)`.
    """

    def __init__(self, policy: Policy, *, after: int, average: int) -> None:
        if not 1 <= average <= after:
            raise ValueError(
                f"Frozen: average is {average} and after is {after} steps; "
                "they must satisfy 1 <= average <= after"
            )
        self.policy = policy
        self.after = after
        self.average = average
        self._steps = 0
        self._mean: dict[str, Number] = {}

    def check(self, base: Mapping[str, float]) -> None:
        self.policy.check(base)

    def update(
        self, probes: Mapping[str, Probe], base: Mapping[str, Number]
    ) -> Mapping[str, Number]:
        self._steps += 1
        if self._steps > self.after:
            return self._mean
        betas = self.policy.update(probes, base)
        counted = self._steps - (self.after - self.average)
        if counted >= 1:
            now: dict[str, Number] = {**base, **betas}
            # This form of the mean leaves a constant exactly as it is, so that an inner policy
            # that never moved leaves the optimizer bitwise alone.
            old = self._mean if counted > 1 else now
            self._mean = {m: (o := old.get(m, b)) + (b - o) / counted for m, b in now.items()}
        return betas

    def metrics(self) -> dict[str, float]:
        return self.policy.metrics()

    def state_dict(self) -> dict[str, Any]:
        mean = {modality: float(beta) for modality, beta in self._mean.items()}
        return {"steps": self._steps, "mean": mean, "policy": self.policy.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._steps = int(state["steps"])
        self._mean = dict(state["mean"])
        self.policy.load_state_dict(state["policy"])


def _vector(values: Any, device: torch.device) -> Tensor:
    """Floats and scalar tensors as one float64 vector."""
    values = list(values)
    if any(isinstance(value, Tensor) for value in values):
        return torch.stack([torch.as_tensor(v, dtype=torch.float64, device=device) for v in values])
    return torch.tensor(values, dtype=torch.float64, device=device)
