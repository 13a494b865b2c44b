"""Folders of runs that hold an ablation, a sweep and a search, with numbers that are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vcmm.bench.roles import PUBLISHED

from ..folders import write

SEEDS = (0, 1, 2)
NOISE = (0.0, 0.011, -0.007)  # of the seeds, the same for all arms
OTHER = (0.002, -0.001, -0.002)  # of an arm and a seed, so that differences have a spread


def arm(
    root: Path,
    mean: float,
    controller: str = "none",
    *,
    method: str = "joint",
    control: Mapping[str, Any] | None = None,
    seeds: Sequence[int] = SEEDS,
    turn: int = 0,
    **spec: Any,
) -> None:
    """Runs of one arm around a mean; `turn` tells its own noise from that of others."""
    if controller == "vcmm":
        control = {**PUBLISHED, **(control or {})}
    for seed in seeds:
        test = mean + NOISE[seed] + OTHER[(seed + turn) % 3]
        write(root, method, controller, control=control, seed=seed, test=test, **spec)


def betas(a: float, g: float) -> dict[str, Any]:
    return {"betas": {"accelerometer": a, "gyroscope": g}}


def ablated(root: Path, **spec: Any) -> Path:
    """All rows of the ablation; of 9 fixed momenta two were chosen."""
    arm(root, 0.70, **spec)
    arm(root, 0.76, "vcmm", turn=1, **spec)
    arm(root, 0.73, "frozen", control={"after": 0.1, "floor_after_smoothing": False}, **spec)
    for index, option in enumerate(("subtract_noise", "center", "exact")):
        arm(root, 0.74 + 0.005 * index, "vcmm", control={option: False}, turn=2, **spec)
    arm(root, 0.70, "vcmm", control={"strength": 0.0}, **spec)
    arm(root, 0.761, "vcmm", control={"floor_after_smoothing": True}, turn=2, **spec)
    for a in (0.8, 0.9, 0.95):
        for g in (0.8, 0.9, 0.95):
            chosen = (a, g) in ((0.95, 0.8), (0.95, 0.95))
            mean = 0.72 + 0.1 * (a - g)
            arm(root, mean, "fixed", control=betas(a, g), seeds=SEEDS if chosen else (0,), **spec)
    return root


def swept(root: Path) -> Path:
    """VCMM with other strengths and smoothings; both arms with another rate and another batch."""
    arm(root, 0.70)
    arm(root, 0.76, "vcmm", turn=1)
    for strength in (0.0, 0.5, 2.0):
        arm(root, 0.70 + 0.03 * min(strength, 1), "vcmm", control={"strength": strength}, turn=2)
    for smoothing in (0.8, 0.9):
        arm(root, 0.75, "vcmm", control={"smoothing": smoothing}, turn=2)
    arm(root, 0.75, "vcmm", control={"floor": 0.01}, turn=2)
    arm(root, 0.75, "vcmm", control={"smoothing": 0.5, "strength": 3.0}, turn=2)
    rates = [{"optimizer": {"name": "adam", "lr": lr}} for lr in (0.01, 0.1)]
    for other in (*rates, {"batch_size": 16}, {"batch_size": 32}):
        arm(root, 0.60, **other)
        arm(root, 0.65, "vcmm", turn=1, **other)
    return root


def searched(root: Path) -> Path:
    """Three learning rates for each of two methods, of which one has all seeds."""
    for method, rates in {"joint": (0.001, 0.004, 0.002), "ogm": (0.001, 0.0007, 0.009)}.items():
        for place, lr in enumerate(rates):
            seeds = SEEDS if place == 1 else (0,)
            optimizer = {"name": "adam", "lr": lr}
            mean = 0.7 + 0.02 * (place == 1)
            arm(root, mean, method=method, optimizer=optimizer, seeds=seeds, turn=len(method))
    return root
