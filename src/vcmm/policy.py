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
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, cast

from torch import Tensor

from .dynamics import Dynamics
from .gain import centred_logit, drift_ratio, kalman_gain, logit_gain, momentum
from .number import Number, Truth, where
from .probe import Probe

# A beta0 of .7 makes a base gain of .30000000000000004.
_ROUNDING = 1e-9


class Policy(Protocol):
    """Decides the momentum of every modality, once per optimizer step, for one controller.

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

    def anticipate(
        self, probes: Mapping[str, Probe], base: Mapping[str, Number]
    ) -> Mapping[str, Number] | None:
        """What `update` is going to answer if nothing comes between.

        It is called, if at all, when a batch is observed, so that less is left for the step, and
        changes nothing that shows. None, if it cannot be said ahead.
        """
        return None

    def metrics(self) -> dict[str, float]:
        """Numbers to log, named "modality/quantity"."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """What must survive a restart: tensors, numbers, strings, and dicts of them."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave."""


def checked(
    policy: str, answer: Mapping[str, Number], base: Mapping[str, Number], on_device: bool
) -> dict[str, Number]:
    """What a policy of this name answered, as floats unless it is on a device; or an error."""
    if not isinstance(cast(object, answer), dict | Mapping):  # a dict is recognized at once
        raise TypeError(
            f"{policy}.update gave {answer!r}; it must give a dict of momenta, for modalities "
            f"among {', '.join(base)}"
        )
    betas: dict[str, Number] = {}
    for modality, beta in answer.items():
        number = isinstance(cast(object, beta), float | int | Tensor)
        betas[modality] = beta if on_device or not number else float(beta)
        if modality not in base or not number or not (on_device or 0 <= betas[modality] < 1):
            raise ValueError(
                f"{policy} gave momentum {beta} for modality {modality!r}; it must give numbers "
                f"in [0, 1), for modalities among {', '.join(base)}"
            )
    return betas


class _Ahead(NamedTuple):
    """What `Kalman` makes of probes and base momenta."""

    probes: Mapping[str, Probe]
    base: dict[str, Number]
    dynamics: dict[str, Dynamics]
    betas: dict[str, Number]


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
        self._dynamics: dict[str, Dynamics] = {}
        self._ahead: _Ahead | None = None

    def check(self, base: Mapping[str, Number]) -> None:
        if self.strength == 0 or not self.center:
            return
        low, high = self.gain_range
        for modality, beta in base.items():
            if isinstance(beta, Tensor):  # to look at it would be to wait for the device
                continue
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
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead.probes is not probes or ahead.base != base:
            self.check(base)
            ahead = self._decided(probes, base)
        self._steps += 1
        self._dynamics = ahead.dynamics
        return ahead.betas

    def anticipate(
        self, probes: Mapping[str, Probe], base: Mapping[str, Number]
    ) -> Mapping[str, Number] | None:
        self._ahead = None
        try:
            self.check(base)
        except ValueError:  # which belongs to the step
            return None
        self._ahead = self._decided(probes, base)
        return self._ahead.betas

    def _decided(self, probes: Mapping[str, Probe], base: Mapping[str, Number]) -> _Ahead:
        """What `update` does, without doing it."""
        dynamics = {**self._dynamics}
        for modality in base:
            state = dynamics.get(modality)
            dynamics[modality] = state = replace(state) if state else Dynamics.unknown()
            if modality in probes:
                state.update(
                    probes[modality],
                    1 - base[modality],
                    smoothing=self.smoothing,
                    floor=self.floor,
                    subtract_noise=self.subtract_noise,
                    floor_after_smoothing=self.floor_after_smoothing,
                )
        resting = self._steps < self.warmup
        resting = resting or (self.center and (self.strength == 0 or len(base) < 2))
        betas = {} if resting else self._betas(dynamics, base)
        return _Ahead(probes, dict(base), dynamics, betas)

    def _betas(
        self, dynamics: Mapping[str, Dynamics], base: Mapping[str, Number]
    ) -> dict[str, Number]:
        known: list[Truth] = []
        logits: list[Number] = []
        on_device = False
        for modality in base:
            state = dynamics[modality]
            known.append(state.known())
            logits.append(logit_gain(_ratio(state)))
            on_device = on_device or isinstance(state.noise, Tensor)
        if self.center:
            if not on_device and sum(known) < 2:
                return {}
            base_gain = [1 - beta for beta in base.values()]
            logits = centred_logit(logits, known, base_gain, self.strength)
        betas: dict[str, Number] = {}
        for (modality, own), logit, has in zip(base.items(), logits, known, strict=True):
            beta = momentum(logit, self.gain_range)
            if on_device:  # a capturable step must not ask the device what is known
                betas[modality] = where(has, beta, own)
            elif has:
                betas[modality] = beta
        return betas

    def metrics(self) -> dict[str, float]:
        """R, Q, rho = Q / R and the uncentred Kalman gain K(rho) where there is an estimate."""
        metrics: dict[str, float] = {}
        for modality, state in self._dynamics.items():
            rho = _ratio(state)
            row = {"R": state.noise, "Q": state.drift, "rho": rho, "gain": kalman_gain(rho)}
            values = {f"{modality}/{name}": float(value) for name, value in row.items()}
            metrics |= {name: value for name, value in values.items() if not math.isnan(value)}
        return metrics

    def state_dict(self) -> dict[str, Any]:
        dynamics = {
            name: [float(getattr(state, name)) for state in self._dynamics.values()]
            for name in Dynamics.names()
        }
        return {"steps": self._steps, "modalities": list(self._dynamics), "dynamics": dynamics}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        modalities = tuple(state["modalities"])
        columns = [[float(x) for x in state["dynamics"][name]] for name in Dynamics.names()]
        if any(len(column) != len(modalities) for column in columns):
            raise ValueError(f"Kalman: the saved means do not fit the modalities {modalities}")
        self._steps, self._ahead = int(state["steps"]), None
        rows = zip(*columns, strict=True)
        self._dynamics = {m: Dynamics(*row) for m, row in zip(modalities, rows, strict=True)}


def _ratio(state: Dynamics) -> Number:
    return drift_ratio(state.drift, state.noise)


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

    def anticipate(
        self, probes: Mapping[str, Probe], base: Mapping[str, Number]
    ) -> Mapping[str, Number] | None:
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

    def anticipate(
        self, probes: Mapping[str, Probe], base: Mapping[str, Number]
    ) -> Mapping[str, Number] | None:
        return self.policy.anticipate(probes, base) if self._steps < self.after else self._mean

    def metrics(self) -> dict[str, float]:
        return self.policy.metrics()

    def state_dict(self) -> dict[str, Any]:
        mean = {modality: float(beta) for modality, beta in self._mean.items()}
        return {"steps": self._steps, "mean": mean, "policy": self.policy.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._steps = int(state["steps"])
        self._mean = dict(state["mean"])
        self.policy.load_state_dict(state["policy"])
