"""From a store to `Data`: who is in which split, what is held out for valid, and the hash of it.

The splits are lists that samples carry since they were found, "ogm/train" say. Papers of these
benchmarks have no valid; then a share of train is held out, class by class, or whole groups where
the split keeps groups apart. Which samples go is decided by a hash of their ids and the seed: it
does not depend on the order of a list or a folder, and a file that lacks moves hardly any other.
Of a store that is loaded, the sizes of its files are compared with its manifest. Their sums are
compared by `vcmm data check` and `prepare`, because to read a whole store can take minutes.

The hash of the data covers the digest of the store, the ids of every split and the fields of the
views, so that equal hashes mean equal batches. The digest is that of the manifest: whoever loads
compares the sizes of the files, and `vcmm data check` and `prepare` what is in them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from ..holdout import hold_out
from ..types import Array, Data, Split, SplitName
from .source import View, Viewed

if TYPE_CHECKING:
    from .store import Store

Ints = npt.NDArray[np.int64]
SPLITS: tuple[SplitName, ...] = ("train", "valid", "test")


def assembled(
    name: str,
    store: Store,
    *,
    lists: Mapping[SplitName, str],
    views: Mapping[str, View],
    about: str,
    valid: float = 0.1,
    seed: int = 0,
    grouped: bool = False,
) -> Data:
    """The data set of a store as these lists divide it, each modality through its view.

    Without a list for valid, the share `valid` of train is held out; 0 leaves train whole.
    `grouped` says that the lists keep groups apart, so that valid does too.
    """
    rows = listed(name, store, lists)
    target = np.asarray(store.target, np.int64)
    groups = np.array([str(who) for who in store.groups]) if grouped else None
    if "valid" not in rows and valid:
        rows["train"], rows["valid"] = held_out(
            store.ids, target, rows["train"], valid, seed, groups
        )
    if grouped:
        keep_apart(name, store.groups, rows)
    splits: dict[SplitName, Split] = {}
    for split in SPLITS:
        if split not in rows:
            continue
        here = rows[split]
        splits[split] = Split(
            inputs={},
            target=target[here],
            group=None if groups is None else groups[here],
            sources={m: Viewed(store.arrays[m], here, view) for m, view in views.items()},
        )
    return Data(
        name=name,
        splits=splits,
        forms={m: views[m].form for m in sorted(views)},
        labels=tuple(store.labels),
        multilabel=False,
        hash=content_hash(store, rows, views),
        about=f"{about} {counted(store, rows)}",
    )


def listed(name: str, store: Store, lists: Mapping[SplitName, str]) -> dict[SplitName, Ints]:
    """The rows of the store that each list names, sorted by id."""
    rows: dict[SplitName, Ints] = {}
    taken: dict[int, str] = {}
    for split, wanted in lists.items():
        here = [row for row, of in enumerate(store.lists) if wanted in of]
        if not here:
            has = sorted({one for of in store.lists for one in of})
            raise ValueError(
                f"{name}: no sample is in list {wanted!r}, which would be {split}; "
                f"the prepared samples are in {', '.join(has) or 'none'}. If the list was not "
                "there when they were prepared, put it below the root and run: vcmm data prepare "
                f"{name} --root DIR"
            )
        for row in here:
            if row in taken:
                raise ValueError(
                    f"{name}: {store.ids[row]!r} is in list {taken[row]!r} and in {wanted!r}; "
                    "a sample belongs to one split"
                )
            taken[row] = wanted
        rows[split] = np.array(sorted(here, key=lambda row: store.ids[row]), np.int64)
    return rows


def held_out(
    ids: Sequence[str],
    target: Ints,
    rows: Ints,
    fraction: float,
    seed: int,
    groups: Array | None = None,
) -> tuple[Ints, Ints]:
    """(rest, held) of these rows: about this fraction of every class, or of whole groups."""
    names = [ids[int(row)] for row in rows]
    if groups is None:
        chosen = set(chosen_ids(names, target[rows].tolist(), fraction, seed))
        held = np.flatnonzero([name in chosen for name in names])
    else:
        held = hold_out(target[rows], fraction, seed, groups[rows])[1]
    return np.delete(rows, held), rows[held]


def chosen_ids(
    ids: Sequence[str], classes: Sequence[object], fraction: float, seed: int
) -> list[str]:
    """The ids that go: of every class those whose hashes come first, in proportion.

    Rounded shares are settled by largest remainder; the last sample of a class stays.
    """
    if not 0 < fraction < 1:
        raise ValueError(f"fraction = {fraction}; it must lie between 0 and 1, 0.1 for instance")
    members: dict[str, list[str]] = {}
    for one, label in zip(ids, classes, strict=True):
        members.setdefault(str(label), []).append(one)
    take = {label: min(int(fraction * len(of)), len(of) - 1) for label, of in members.items()}
    rest = max(1, round(fraction * len(ids))) - sum(take.values())
    by_remainder = sorted(
        (label for label, of in members.items() if take[label] < len(of) - 1),
        key=lambda label: (take[label] - fraction * len(members[label]), label),
    )
    for label in by_remainder[: max(0, rest)]:
        take[label] += 1
    chosen = [
        one
        for label in sorted(members)
        for one in sorted(members[label], key=lambda one: rank(one, seed))[: take[label]]
    ]
    if not chosen:
        raise ValueError(
            f"nothing can be held out of {len(ids)} samples: it would take the last of a class. "
            "Give more samples of every class"
        )
    return sorted(chosen)


def rank(one: str, seed: int) -> str:
    """Where an id stands in the order that a seed decides."""
    return hashlib.sha256(f"{seed}/{one}".encode()).hexdigest()


def keep_apart(name: str, groups: Sequence[str | None], rows: Mapping[SplitName, Ints]) -> None:
    """An error if a group is in two splits."""
    seen: dict[str | None, SplitName] = {}
    for split, here in rows.items():
        for who in sorted({str(groups[int(row)]) for row in here}):
            if who in seen:
                raise ValueError(f"{name}: group {who!r} is in {seen[who]} and in {split}")
            seen[who] = split


def content_hash(store: Store, rows: Mapping[SplitName, Ints], views: Mapping[str, View]) -> str:
    """sha256 of all that decides what batches hold."""
    said: dict[str, Any] = {
        "store": store.digest,
        "labels": list(store.labels),
        "splits": {split: [store.ids[int(row)] for row in here] for split, here in rows.items()},
        "views": {m: [type(view).__name__, asdict(cast(Any, view))] for m, view in views.items()},
    }
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def counted(store: Store, rows: Mapping[SplitName, Ints]) -> str:
    """How many samples each split has, and how many could not be used."""
    parts = ", ".join(f"{len(rows[split])} {split}" for split in SPLITS if split in rows)
    if lacks := [key for key in ("failed", "missing") if key not in store.manifest]:
        raise ValueError(
            f"{store.path / 'manifest.json'} is broken (it has no {lacks[0]!r}); remove "
            f"{store.path} and run: vcmm data prepare {store.manifest['name']} --root DIR"
        )
    failed, missing = len(store.manifest["failed"]), len(store.manifest["missing"])
    lost = [f"{failed} did not decode"] if failed else []
    lost += [f"{missing} lack" + ("s" if missing == 1 else "")] if missing else []
    return f"Samples: {'; '.join([parts, *lost])}."
