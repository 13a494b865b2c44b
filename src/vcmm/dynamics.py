"""Noise R and drift Q of one stream of probes per modality, and their running means.

Legend: g_t is the probe gradient of step t, R~_t its measured noise, e_t = mean(g_t^2) its energy,
u_t = mean((g_t - g_{t-1})^2) - R~_t - R~_{t-1} the unclipped drift, an unbiased estimate of Q.

| equation                                       | where                                        |
|------------------------------------------------|----------------------------------------------|
| Q~ = max(u_t, floor * e_t)                     | `Dynamics.update`, as published              |
| R <- a R + (1 - a) R~, Q <- a Q + (1 - a) Q~   | `running_mean`                               |
| Q = max(mean of u, floor * mean of e)          | `Dynamics.update`, `floor_after_smoothing`   |
| R = R~, Q = R~ K0^2 / (1 - K0) at first        | `first_drift`                                |

Clipping before smoothing biases Q upward, the more so the smaller d (Q / R)^2 is, for a probe of d
entries; `docs/bias.md` gives the sizes. It is the published order and so the default here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from .number import Number, Truth, choose, divide, isfinite, isnan, larger, where
from .probe import Probe


def running_mean(mean: Number, value: Number, smoothing: float) -> Number:
    """a * mean + (1 - a) * value."""
    return smoothing * mean + (1 - smoothing) * value


def first_drift(noise: Number, base_gain: Number) -> Number:
    """The Q at which the Kalman gain of Q / R~ is the base optimizer's own gain K0 = 1 - beta0."""
    return divide(noise * base_gain**2, 1 - base_gain)


@dataclass(slots=True)
class Dynamics:
    """Running means of every modality; nan until it has been measured once."""

    noise: Number  # R
    drift: Number  # Q
    raw_drift: Number  # running mean of u, for the floor after smoothing
    energy: Number  # running mean of e, likewise

    @classmethod
    def unknown(cls) -> Dynamics:
        """Of one modality, on the host."""
        return cls(*(math.nan for _ in cls.names()))

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(field.name for field in fields(cls))

    def known(self) -> Truth:
        """Modalities with an estimate that says something: R = Q = 0 has no ratio."""
        return (self.noise > 0) | (self.drift > 0)

    def update(
        self,
        probe: Probe,
        base_gain: Number,
        *,
        smoothing: float,
        floor: float,
        subtract_noise: bool,
        floor_after_smoothing: bool,
    ) -> None:
        """Take one step's probe in. Where it is not finite the estimate stands."""
        noise, energy = probe.noise, probe.energy
        measurable = isfinite(noise) & isfinite(energy) & (abs(probe.change) != math.inf)
        starting = measurable & isnan(self.noise)
        raw = probe.drift if subtract_noise else probe.change
        compared = measurable & isfinite(raw)  # not so at the first probe, nor after a nan
        floored = larger(raw, floor * energy)

        now = self.noise, self.energy
        then = running_mean(now[0], noise, smoothing), running_mean(now[1], energy, smoothing)
        now = choose(measurable, then, now)
        self.noise, self.energy = choose(starting, (noise, energy), now)

        now = self.raw_drift, self.drift
        then = running_mean(now[0], raw, smoothing), running_mean(now[1], floored, smoothing)
        raw_drift, drift = choose(compared, then, now)
        if floor_after_smoothing:
            drift = where(measurable, larger(raw_drift, floor * self.energy), self.drift)
        start = first_drift(noise, base_gain)
        self.raw_drift, self.drift = choose(starting, (start, start), (raw_drift, drift))
