"""Hold some rows out: with the classes in proportion, no group on both sides, the same every time.

Which rows go is decided by a hash of their number and the seed (the finalizer of splitmix64), not
by a random generator whose stream another version of a library may change.

Class ids without groups are held out class by class, where every share is exact to less than one
row. With groups, or several labels per row, an exact share may not exist. There every group (or
row) is visited once in the order of the hash, and taken if that brings the counts of the labels
closer to their share; a second visit does the same with an eye on the number of rows too. The last
group of a class is never taken, so what is left of train still shows every class.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .types import Array

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def hold_out(
    target: Array, fraction: float, seed: int, group: Array | None = None
) -> tuple[Ints, Ints]:
    """(rest, held): the rows that are left, and about this fraction of all; both in order."""
    if not 0 < fraction < 1:
        raise ValueError(f"fraction = {fraction}; it must lie between 0 and 1, 0.15 for instance")
    if group is None and target.ndim == 1:
        held = stratified(target, fraction, seed)
    else:
        labels = indicators(target)
        unit = np.arange(len(target)) if group is None else np.unique(group, return_inverse=True)[1]
        counts = np.zeros((int(unit.max(initial=-1)) + 1, labels.shape[1]))
        np.add.at(counts, unit, labels)
        held = np.flatnonzero(taken(counts, np.bincount(unit), fraction, seed)[unit])
    if not len(held):
        what = "rows" if group is None else "groups"
        raise ValueError(
            f"nothing can be held out of {len(target)} rows: it would take all {what} of a class. "
            f"Give a valid split of its own, or more {what} of every class"
        )
    return np.setdiff1d(np.arange(len(target)), held, assume_unique=True), held


def order(count: int, seed: int) -> Ints:
    """0 ... count - 1, shuffled by a hash."""
    with np.errstate(over="ignore"):
        start = mixed(np.array([seed], np.uint64))
        keys = mixed(np.arange(count, dtype=np.uint64) + start)
    return np.argsort(keys, kind="stable").astype(np.int64)


def mixed(value: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """splitmix64 (Steele, Lea and Flood, 2014): every bit of the input reaches every bit."""
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def stratified(target: Array, fraction: float, seed: int) -> Ints:
    """Rows held out of every class; the rounded shares are settled by largest remainder."""
    _, ids, counts = np.unique(target, return_inverse=True, return_counts=True)
    share = fraction * counts
    take = np.minimum(np.floor(share), counts - 1).astype(np.int64)
    missing = max(1, round(fraction * len(target))) - int(take.sum())
    open_to_more = [c for c in np.argsort(take - share, kind="stable") if take[c] < counts[c] - 1]
    for c in open_to_more[: max(0, missing)]:
        take[c] += 1
    shuffled = order(len(target), seed)
    shuffled = shuffled[np.argsort(ids[shuffled], kind="stable")]  # class after class
    first = np.cumsum(counts) - counts
    rank = np.arange(len(target)) - np.repeat(first, counts)
    return np.sort(shuffled[rank < np.repeat(take, counts)])


def indicators(target: Array) -> Floats:
    """1 where a row has a label. To have none of several labels is one as well."""
    if target.ndim == 1:
        return (target[:, None] == np.unique(target)).astype(np.float64)
    labels = target.astype(np.float64)
    return np.concatenate([labels, labels.sum(axis=1, keepdims=True) == 0], axis=1)


def taken(counts: Floats, sizes: Ints, fraction: float, seed: int) -> npt.NDArray[np.bool_]:
    """Which units are held out, given how often each has each label, and its rows."""
    total = counts.sum(axis=0)
    share, size = fraction * total, fraction * sizes.sum()
    inside = np.zeros(len(counts), np.bool_)

    def distance(held: Floats, rows: float, weight: float) -> float:
        return float(((held - share) ** 2).sum() + weight * (rows - size) ** 2)

    def leaves_every_class(unit: int, held: Floats) -> bool:
        return not np.any((counts[unit] > 0) & (held + counts[unit] == total))

    held, rows = np.zeros(len(total)), 0.0
    for weight in (0.0, 1 / len(total)):
        for unit in order(len(counts), seed).tolist():
            with_it = held + counts[unit], rows + float(sizes[unit])
            if inside[unit] or distance(*with_it, weight) >= distance(held, rows, weight):
                continue
            if leaves_every_class(unit, held):
                held, rows = with_it
                inside[unit] = True
    if not inside.any():  # every unit is larger than its share: then one, and the closest
        free = [unit for unit in range(len(counts)) if leaves_every_class(unit, held)]
        if free:
            inside[min(free, key=lambda unit: distance(counts[unit], sizes[unit], 1.0))] = True
    return inside
