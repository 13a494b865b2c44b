"""What can be wrong with one's own arrays. Every problem is found, and names its array and row."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Set
from difflib import get_close_matches

import numpy as np
import numpy.typing as npt

from ..model import RESERVED
from ..types import Array, SplitName
from .assemble import SPLITS
from .chunks import chunks
from .kinds import Spelling, layout

MODALITY = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
HUGE = 1e150  # its square still is a number, which the variance needs

Arrays = Mapping[str, Array]


def problems(
    arrays: Arrays, kinds: Mapping[str, Spelling], unreadable: Mapping[str, str]
) -> list[str]:
    """Every reason why these arrays are not a data set; empty if there is none."""
    found = [f"{name} cannot be read: {reason}" for name, reason in unreadable.items()]
    if not arrays:
        return found or ["there are no arrays; give x_MODALITY_SPLIT and y_SPLIT"]
    modalities = modalities_of([*arrays, *unreadable])
    splits = splits_of([*arrays, *unreadable])
    found += names(arrays.keys() | unreadable.keys(), modalities, splits, kinds)
    for split in splits:
        found += lengths(arrays, modalities, split)
    for modality in modalities:
        found += inputs(arrays, modality, splits, kinds.get(modality))
    targets = {f"y_{split}": arrays[f"y_{split}"] for split in splits if f"y_{split}" in arrays}
    malformed = [line for name in targets for line in label_array(name, targets[name])]
    if malformed or "y_train" not in targets:
        found += malformed
    else:
        found += labels(targets)
    return [*found, *groups(arrays, splits)]


def splits_of(names: Iterable[str]) -> tuple[SplitName, ...]:
    """Train, test, and valid if anything was given for it."""
    has_valid = any(name.endswith("_valid") for name in names)
    return tuple(split for split in SPLITS if split != "valid" or has_valid)


def modalities_of(names: Iterable[str]) -> tuple[str, ...]:
    """The names that some x_NAME_SPLIT gives."""
    found: set[str] = set()
    for name in names:
        prefix, _, rest = name.partition("_")
        modality, _, split = rest.rpartition("_")
        if prefix == "x" and split in SPLITS and modality:
            found.add(modality)
    return tuple(sorted(found))


def names(
    given: Set[str],
    modalities: tuple[str, ...],
    splits: tuple[SplitName, ...],
    kinds: Mapping[str, Spelling],
) -> Iterator[str]:
    """Arrays that are missing, and names that mean nothing."""
    needed = [f"y_{split}" for split in splits]
    needed += [f"x_{modality}_{split}" for modality in modalities for split in splits]
    known = {*needed, *(f"group_{split}" for split in splits)}
    missing = [name for name in needed if name not in given]
    for name in sorted(given - known):
        near = get_close_matches(name, [*missing, *sorted(known)], 1, 0.8)
        hint = f"did you mean {near[0]}?" if near else "names are x_MODALITY_SPLIT, y_SPLIT"
        yield f"{name} is not a name that is known; {hint} (splits: {', '.join(SPLITS)})"
    for name in missing:
        yield f"{name} is missing; there are {', '.join(sorted(given))}"
    if not modalities:
        yield "there is no modality; give x_MODALITY_train and x_MODALITY_test, x_audio_train say"
    for modality in modalities:
        if not MODALITY.fullmatch(modality) or modality in RESERVED:
            yield (
                f"'{modality}', of x_{modality}_..., cannot be the name of a modality; names start "
                "with a letter, then letters, digits, _ and -, and are none of "
                f"{', '.join(sorted(RESERVED))}"
            )
    for modality in sorted(kinds.keys() - set(modalities)):
        yield f"kinds names '{modality}', which is no modality; there are {', '.join(modalities)}"


def lengths(arrays: Arrays, modalities: tuple[str, ...], split: SplitName) -> Iterator[str]:
    """Arrays of one split that do not have a row for every sample."""
    own = [f"y_{split}", *(f"x_{m}_{split}" for m in modalities), f"group_{split}"]
    rows = {name: len(arrays[name]) if arrays[name].ndim else 0 for name in own if name in arrays}
    if len(set(rows.values())) > 1:
        told = ", ".join(f"{name} has {count}" for name, count in rows.items())
        shortest = min(rows, key=lambda name: rows[name])
        yield f"rows of {split} differ: {told}; {shortest} has no row {rows[shortest]}"
    elif 0 in rows.values():
        yield f"{split} is empty: {', '.join(rows)} have no rows"


def inputs(
    arrays: Arrays, modality: str, splits: tuple[SplitName, ...], spelling: Spelling | None
) -> Iterator[str]:
    """What is wrong with the arrays of one modality."""
    first: Array | None = None
    for name in (f"x_{modality}_{split}" for split in splits):
        if name not in arrays:
            continue
        array = arrays[name]
        if array.dtype.kind not in "biuf":
            yield f"{name} is {array.dtype}; inputs are integers or floats"
            continue
        if first is None:
            first = array
            try:
                layout(name, array, spelling)
            except ValueError as error:
                yield str(error)
        elif array.shape[1:] != first.shape[1:]:
            yield (
                f"{name} has samples of shape {array.shape[1:]}, and x_{modality}_train of "
                f"{first.shape[1:]}; row 0 already differs"
            )
        if 0 in array.shape[1:]:
            yield f"{name} has shape {array.shape}: its samples, from row 0 on, hold nothing"
        elif array.dtype.kind == "f":
            yield from finite(name, array)


def finite(name: str, array: Array) -> Iterator[str]:
    """A line if a value is NaN, infinite or too large to be squared."""
    if not array.ndim:
        return
    bad = 0
    first: tuple[int, float] | None = None
    for start, rows in chunks(array):
        values = rows.astype(np.float64).reshape(len(rows), -1)
        wrong = ~(np.abs(values) < HUGE)
        at = np.flatnonzero(wrong.any(axis=1))
        bad += len(at)
        if len(at) and first is None:
            first = start + int(at[0]), float(values[at[0]][wrong[at[0]]][0])
    if first is not None:
        more = f", and so have {bad - 1} more rows" if bad > 1 else ""
        yield (
            f"{name} has {first[1]} in row {first[0]}{more}; inputs are finite, and below {HUGE:g}"
        )


def label_array(name: str, target: Array) -> Iterator[str]:
    """What is wrong with the labels of one split, seen alone."""
    if target.ndim == 1:
        if target.dtype.kind not in "biuU":
            yield f"{name} is {target.dtype}; class ids are integers: {name}.astype(np.int64)"
    elif target.ndim != 2:
        yield f"{name} has shape {target.shape}; labels are class ids [n], or 0/1 [n, classes]"
    elif target.shape[1] == 1:
        yield f"{name} has shape {target.shape}; class ids have one axis: {name}.ravel()"
    elif target.dtype.kind not in "biuf":
        yield f"{name} is {target.dtype}; a matrix of labels holds 0 and 1"
    else:
        wrong = np.argwhere((target != 0) & (target != 1))
        if len(wrong):
            row, column = map(int, wrong[0])
            yield (
                f"{name} has {target[row, column]} in row {row}, column {column}; a matrix of "
                "labels holds 0 and 1"
            )


def labels(targets: Arrays) -> Iterator[str]:
    """What is wrong with the labels of train, and with the others compared to them."""
    train = targets["y_train"]
    if not len(train):
        return
    if train.ndim == 1 and len(np.unique(train)) == 1:
        yield f"y_train has one class, {train[0]}, in every row from 0 on; two are needed at least"
    if train.ndim == 2:
        for column in np.flatnonzero(~train.any(axis=0)).tolist():
            yield f"y_train never has label {column} in any row; leave that column out everywhere"
        if train.shape[1] > 1 and (train.sum(axis=1) == 1).all():
            yield (
                "y_train has exactly one 1 in every row, so these are classes and not several "
                "labels; give class ids: y_train.argmax(axis=1)"
            )
    for name, target in targets.items():
        if target.shape[1:] != train.shape[1:]:
            yield f"{name} has shape {target.shape}, and y_train {train.shape}; give both alike"
        elif (target.dtype.kind == "U") != (train.dtype.kind == "U"):
            yield f"{name} is {target.dtype}, and y_train {train.dtype}; give both alike"
        elif train.ndim == 1:
            new = np.flatnonzero(~np.isin(target, train))
            if len(new):
                yield f"{name} has class {target[new[0]]} in row {new[0]}, which y_train never has"


def groups(arrays: Arrays, splits: tuple[SplitName, ...]) -> Iterator[str]:
    """Groups that are not names, or that lie in two splits."""
    seen: dict[str, dict[str, int]] = {}
    for name in (f"group_{split}" for split in splits if f"group_{split}" in arrays):
        group = arrays[name]
        if group.ndim != 1 or group.dtype.kind not in "biuU":
            yield (
                f"{name} is {group.dtype} of shape {group.shape}; groups are one integer or string "
                "per row"
            )
            continue
        here = first_rows(group)
        for other, there in seen.items():
            for who in sorted(here.keys() & there.keys())[:1]:
                yield (
                    f"group {who} is in {other} (row {there[who]}) and in {name} (row "
                    f"{here[who]}); no group may be in two splits"
                )
        seen[name] = here


def first_rows(group: npt.NDArray[np.generic]) -> dict[str, int]:
    """The first row of every group, by its name."""
    who, rows = np.unique(group, return_index=True)
    return dict(zip(map(str, who.tolist()), rows.tolist(), strict=True))
