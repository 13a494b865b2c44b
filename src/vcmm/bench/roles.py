"""What an arm is there for, read from its spec: a method, a row of the ablation, one step of a
sweep, a point of a grid, a trial of a search.

It is never read from which suite asked for a run. So tables and figures appear wherever the records
hold what they need.

A trial is an arm that was trained with one seed, while another arm of its kind was trained with
that one and with more: of the same method, fusion, controller and modalities, but with another
learning rate. It was tried and not chosen. So are fixed momenta with one seed where any arm has
more: they are points of a grid. A recording is an arm that was trained again in order to log more.
All these stand aside: in no table but their own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

Json = Mapping[str, Any]

# As published; a test holds it to the signature of `controllers.vcmm`.
PUBLISHED: dict[str, Any] = {
    "strength": 1.0,
    "smoothing": 0.95,
    "floor": 1e-4,
    "gain_range": [0.01, 0.30],
    "warmup": 0,
    "subtract_noise": True,
    "center": True,
    "floor_after_smoothing": False,
    "exact": True,
}
RECORDER = "encoder_every"  # what is logged and not what is trained
TUNED = frozenset({"betas", RECORDER})


def changed(spec: Json) -> dict[str, Any]:
    """The options of VCMM that are not the published ones; empty for any other controller."""
    controller = spec["controller"]
    if controller["name"] != "vcmm":
        return {}
    return {
        name: controller[name]
        for name, was in PUBLISHED.items()
        if controller.get(name, was) != was
    }


def published(spec: Json) -> bool:
    """Whether it has no controller, or VCMM as it was published."""
    return spec["controller"]["name"] in ("none", "vcmm") and not changed(spec)


def betas(spec: Json) -> dict[str, float] | None:
    """The constant momenta by modality, where that is how it was trained."""
    controller = spec["controller"]
    return dict(controller["betas"]) if controller["name"] == "fixed" else None


def shared(spec: Json) -> bool:
    """Whether all modalities have the same constant momentum."""
    found = betas(spec)
    return found is not None and len(set(found.values())) == 1


def recording(spec: Json) -> bool:
    """Whether a recorder ran beside the training."""
    return bool(spec["controller"].get(RECORDER, 0))


def kind(spec: Json) -> str:
    """What is searched for once: the arm less its learning rate, its momenta and its recorder."""
    controller = {key: spec["controller"][key] for key in spec["controller"].keys() - TUNED}
    axes = [spec["method"], spec["fusion"], controller, spec["modalities"]]
    return json.dumps(axes, sort_keys=True)


def aside(spec: Json, seeds: set[int], others: Mapping[str, list[tuple[Json, set[int]]]]) -> bool:
    """Whether an arm stands aside, given the specs and seeds of all arms by kind."""
    peers = others[kind(spec)]
    fixed = betas(spec) is not None
    fuller = [one for each in others.values() for one in each] if fixed else peers
    tried = len(seeds) == 1 and any(seeds < more for _, more in fuller)
    return tried or (recording(spec) and any(not recording(other) for other, _ in peers))
