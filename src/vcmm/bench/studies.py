"""How runs fall into settings, searches and sweeps included.

Runs of one setting have all in common but method, fusion, controller, modalities and seed. Two
things part from that rule:

- **A search.** Where arms were tried with several learning rates for one seed, and trained on with
  one of them, each arm has the learning rate that was chosen for it. The chosen ones are one
  setting, and what was tried stands aside (`roles.aside`). Should an arm have several with all
  seeds, the one with the best score on valid counts.
- **A sweep.** Where joint training alone, without and with VCMM as published, was trained with
  another learning rate or batch size than a setting with more arms, that is a step of a sweep. It
  stands near that setting.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from .records import Run
from .roles import aside, kind, published

COMPARED = ("method", "fusion", "controller", "modalities", "seed")
Common = Mapping[str, Any]
Item = TypeVar("Item")


@dataclass(slots=True)
class Study:
    """The runs of a setting, what its arms have in common, and what is not in its tables."""

    common: Common
    runs: list[Run]
    aside: list[Run] = field(default_factory=list[Run])
    near: list[Run] = field(default_factory=list[Run])

    @property
    def kinds(self) -> set[str]:
        return {kind(run.spec) for run in self.runs}


def studies(runs: Iterable[Run]) -> list[Study]:
    """The runs, parted into settings."""
    families = _grouped(runs, lambda run: canonical(_without_rate(conditions(run))))
    return _with_sweeps([study for family in families for study in _of_family(family)])


def conditions(run: Run) -> dict[str, Any]:
    """All that runs must share to be compared."""
    shared = {axis: value for axis, value in run.spec.items() if axis not in COMPARED}
    # The same data may lie elsewhere; what it holds is in its hash.
    shared["data"] = {**shared["data"], "name": Path(shared["data"]["name"]).name}
    if run.weights:  # and so with files of weights
        shared["encoder"] = _weighed(shared["encoder"], run)
        shared["encoders"] = {m: _weighed(one, run) for m, one in shared["encoders"].items()}
    return {
        **shared,
        "content": run.data_hash[:8],
        "threads": run.threads,
        "device": run.device,
        "numerics": run.numerics or "float32",
        "version": run.result_version,
    }


def _weighed(encoder: Mapping[str, Any], run: Run) -> dict[str, Any]:
    """An encoder's choice, with what its file of weights holds and not where that lies."""
    path = encoder.get("weights")
    return {**encoder, "weights": run.weights[path][:8]} if path else dict(encoder)


def canonical(value: object) -> str:
    """One text for equal values."""
    return json.dumps(value, sort_keys=True)


# A family: runs that differ in nothing else but their learning rate


def _of_family(runs: Sequence[Run]) -> list[Study]:
    arms = _grouped(runs, lambda run: canonical([_arm(run), _rate(run)]))
    by_kind: dict[str, list[tuple[Mapping[str, Any], set[int]]]] = {}
    for arm in arms:
        seeds = {run.seed for run in arm}
        by_kind.setdefault(kind(arm[0].spec), []).append((arm[0].spec, seeds))
    full: list[list[Run]] = []
    tried: list[list[Run]] = []
    for arm in arms:
        stands = aside(arm[0].spec, {run.seed for run in arm}, by_kind)
        (tried if stands else full).append(arm)
    ends = {(_arm(arm[0]), _rate(arm[0])) for arm in full}
    if not any(
        _arm(arm[0]) == end and _rate(arm[0]) != rate for arm in tried for end, rate in ends
    ):
        return _by_rate(full, tried)
    each = _grouped(full, lambda arm: _arm(arm[0]))
    chosen = [max(peers, key=_on_valid) for peers in each]
    near = [run for arm in full if not any(arm is one for one in chosen) for run in arm]
    shared = _without_rate(conditions(runs[0]))
    return [Study(shared, _flat(chosen), _flat(tried), near)]


def _by_rate(full: Sequence[list[Run]], tried: Sequence[list[Run]]) -> list[Study]:
    found: list[Study] = []
    for arms in _grouped(full, lambda arm: canonical(_rate(arm[0]))):
        there = _rate(arms[0][0])
        beside = [run for arm in tried if _rate(arm[0]) == there for run in arm]
        found.append(Study(conditions(arms[0][0]), _flat(arms), beside))
    rates = {_rate(study.runs[0]) for study in found}
    found[0].aside += [run for arm in tried if _rate(arm[0]) not in rates for run in arm]
    return found


def _on_valid(arm: Sequence[Run]) -> tuple[int, float]:
    """More seeds first, then the score that a search goes by."""
    scores = [
        max(row.values.get(run.metric, 0.0) for row in run.evals if row.split == "valid")
        for run in arm
    ]
    return len(arm), sum(scores) / len(scores)


def _arm(run: Run) -> str:
    """All that makes an arm but its learning rate."""
    return canonical([run.spec[axis] for axis in COMPARED if axis != "seed"])


def _rate(run: Run) -> float | None:
    return run.spec["optimizer"].get("lr")


def _without_rate(shared: Common) -> dict[str, Any]:
    optimizer = {name: value for name, value in shared["optimizer"].items() if name != "lr"}
    return {**shared, "optimizer": optimizer}


# Sweeps


def _with_sweeps(found: Sequence[Study]) -> list[Study]:
    """The steps of a sweep, moved to the setting that they stand near."""
    steps = [study for study in found if all(_plain(run.spec) for run in study.runs)]
    kept = list(found)
    for step in steps:
        near = [main for main in kept if step.kinds < main.kinds and _one_apart(step, main)]
        if near:
            main = max(near, key=lambda study: len(study.runs))
            main.near += step.runs
            main.aside += step.aside
            kept = [study for study in kept if study is not step]
    return kept


def _plain(spec: Mapping[str, Any]) -> bool:
    return spec["method"]["name"] == "joint" and published(spec)


def _one_apart(step: Study, main: Study) -> bool:
    """Whether nothing differs but the learning rate, or the batch size and with it the epochs."""
    ours, theirs = step.common, main.common
    axes = {axis for axis in ours if canonical(ours[axis]) != canonical(theirs[axis])}
    by_rate = axes == {"optimizer"} and _without_rate(ours) == _without_rate(theirs)
    return by_rate or axes in ({"batch_size"}, {"batch_size", "epochs"})


def _flat(arms: Iterable[Sequence[Run]]) -> list[Run]:
    return [run for arm in arms for run in arm]


def _grouped(items: Iterable[Item], key: Callable[[Item], str]) -> list[list[Item]]:
    groups: dict[str, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())
