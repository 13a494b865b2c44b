"""What is known of a list of runs while they are trained: a state that events change.

The live display and the plain lines both read it, and neither keeps anything of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from ..events import Event
from ..spec import AXES, Spec, canonical

_ENOUGH = 0.02  # runs that must have been trained before the rest is estimated


@dataclass(slots=True)
class Row:
    """One run."""

    label: str
    epochs: int = 0
    epoch: int = 0  # how many are complete
    step: int = 0
    steps: int = 0
    first: int = 0  # the step that this attempt went on from
    since: float = 0.0
    loss: float | None = None
    score: tuple[str, float] | None = None  # what valid shows: accuracy, or map
    betas: dict[str, float] = field(default_factory=dict[str, float])
    diverged: bool = False  # when valid was last looked at, its loss was no number

    @property
    def share(self) -> float:
        """How much of the run is done."""
        return self.step / self.steps if self.steps else 0.0

    def left(self, now: float) -> float | None:
        """Seconds until it is complete, judging by this attempt."""
        taken = self.step - self.first
        return (now - self.since) * (self.steps - self.step) / taken if taken else None


@dataclass(frozen=True, slots=True)
class Failure:
    """A run that failed."""

    label: str
    run: str
    error: str

    @property
    def reason(self) -> str:
        """What failed, in a line: the last one of a traceback."""
        lines = [line for line in self.error.strip().splitlines() if line.strip()]
        if not lines:
            return "no reason was given"
        return lines[-1] if lines[0].startswith("Traceback") else lines[0]


class Board:
    """All runs of a launch."""

    def __init__(self, specs: Iterable[Spec], clock: Any = time.monotonic) -> None:
        self.labels = labels([spec.to_json() for spec in specs])
        self.running: dict[str, Row] = {}
        self.complete: dict[str, str] = {}  # spec -> hash, in the order in which they became so
        self.cached = 0
        self.waiting: set[str] = set()  # run by another process
        self.failures: list[Failure] = []
        self.clock = clock
        self.begin = clock()
        self._trained = 0.0  # runs' worth of training so far, without those that run

    @property
    def total(self) -> int:
        return len(self.labels)

    @property
    def over(self) -> int:
        """How many are done or have failed."""
        return len(self.complete) + len(self.failures)

    @property
    def elapsed(self) -> float:
        return self.clock() - self.begin

    @property
    def share(self) -> float:
        """How much of everything is done."""
        under_way = sum(row.share for row in list(self.running.values()))
        return (self.over + under_way) / max(1, self.total)

    @property
    def left(self) -> float | None:
        """Seconds until all is done, judging by what was trained so far."""
        rows = list(self.running.values())
        trained = self._trained + sum(
            (row.step - row.first) / row.steps for row in rows if row.steps
        )
        if trained < _ENOUGH:
            return None
        rest = self.total - self.over - sum(row.share for row in rows)
        return self.elapsed * rest / trained

    def update(self, event: Event) -> Row:
        """Take an event in; the run that it is about."""
        key = canonical(event.spec)
        row = self.running.get(key) or Row(self.labels[key])
        row.epochs = event.epochs or row.epochs
        self.waiting.discard(key)
        if event.kind == "started":
            self.running[key] = row
            row.epoch, row.step, row.steps = event.epoch, event.step, event.steps
            row.first, row.since = event.step, self.clock()
        elif event.kind == "step":
            row.step, row.loss = event.step, event.values.get("loss", row.loss)
            betas = {k.removesuffix("/beta"): v for k, v in event.values.items() if "/beta" in k}
            row.betas = betas or row.betas
        elif event.kind == "epoch":
            row.epoch, row.step = event.epoch + 1, event.step
            name = "accuracy" if "accuracy" in event.values else "map"
            row.score = (name, event.values[name]) if name in event.values else row.score
            row.diverged = "loss" not in event.values
        elif event.kind == "busy":
            self.waiting.add(key)
        else:
            self._end(event, key, row)
        return row

    def _end(self, event: Event, key: str, row: Row) -> None:
        """Done, found, or failed."""
        self.running.pop(key, None)
        if event.kind == "failed":
            self.failures.append(Failure(row.label, event.run, event.error))
        else:
            self.complete[key] = event.run
        if event.kind == "cached":
            self.cached += 1
        elif row.steps:
            self._trained += (row.steps - row.first) / row.steps


def labels(specs: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """What tells each spec from the others, in words: "joint + vcmm, seed 1"."""
    each = {canonical(spec): spec for spec in specs}
    flat = {key: _flat(spec) for key, spec in each.items()}
    seen: dict[str, set[str]] = {}
    for values in flat.values():
        for name, value in values.items():
            seen.setdefault(name, set()).add(value)
    found: dict[str, str] = {}
    for key, spec in each.items():
        several = {name: value for name, value in flat[key].items() if len(seen[name]) > 1}
        parts = [_arm(spec, several.pop("fusion", "mean"))]
        parts += [f"{name.split(':')[-1]}={value}" for name, value in several.items()]
        found[key] = ", ".join([*parts, f"seed {spec['seed']}"])
    return found


def _arm(spec: Mapping[str, Any], fusion: str) -> str:
    method, controller = spec["method"], spec["controller"]["name"]
    name = f"unimodal: {method['modality']}" if "modality" in method else str(method["name"])
    name += "" if fusion == "mean" else f" by {fusion}"
    return name if controller == "none" else f"{name} + {controller}"


def _flat(spec: Mapping[str, Any]) -> dict[str, str]:
    """Everything but the arm and the seed, by name; options by what they are options of."""
    found: dict[str, str] = {}
    for name, value in spec.items():
        if name in AXES:
            choice = cast(dict[str, Any], value)
            if name not in ("method", "controller"):
                found[name] = choice["name"]
            options = {k: v for k, v in choice.items() if k not in ("name", "modality")}
            found |= {f"{name} {choice['name']}:{k}": canonical(v) for k, v in options.items()}
        elif name != "seed":
            found[name] = canonical(value)
    return found


def clock(seconds: float | None) -> str:
    """1:05, or 2:03:04."""
    if seconds is None:
        return "-:--"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
