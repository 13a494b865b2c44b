"""One's own data: an .npz file or a folder of .npy files.

    x_audio_train  x_audio_test  [x_audio_valid]     vectors [n, d], sequences [n, t, c], images
    x_video_train  x_video_test  [x_video_valid]     (see `kinds`), integers or floats
    y_train        y_test        [y_valid]           classes [n], or 0/1 for several labels [n, C]
    [group_train]  [group_test]  [group_valid]       who a row comes from, a subject say

Without valid, 15 % of train are held out for it, with the classes in proportion, or by groups so
that none is on both sides; see `holdout`. Classes may be any integers or strings, and keep their
names. What is wrong is told in full by `check`, and by the error of `load`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..holdout import hold_out
from ..types import Array, Data, Split, SplitName
from .assemble import assemble
from .checks import modalities_of, problems, splits_of
from .chunks import rows_of
from .kinds import Spelling
from .stored import opened

VALID = 0.15  # of train, where no valid split is given


def load(path: str | Path, *, kinds: Mapping[str, Spelling] | None = None) -> Data:
    """The data set in a file or folder; `kinds` corrects what the shapes suggest."""
    path = Path(path)
    splits, labels, multilabel, carved = read(path, kinds or {})
    valid = f"valid is {VALID:.0%} of train as it was given" if carved else "valid was given"
    return assemble(
        path.stem,
        splits,
        labels=labels,
        multilabel=multilabel,
        kinds=kinds,
        about=f"Read from {path.name}; {valid}.",
    )


def check(path: str | Path, *, kinds: Mapping[str, Spelling] | None = None) -> list[str]:
    """All that is wrong with a file or folder; empty if it can be trained on."""
    try:
        read(Path(path), kinds or {})
    except Malformed as error:
        return error.problems
    return []


class Malformed(ValueError):
    """Arrays that are no data set, with every reason."""

    def __init__(self, path: Path, problems: list[str]) -> None:
        self.problems = problems
        lines = "".join(f"\n  - {problem}" for problem in problems)
        super().__init__(f"'{path}' cannot be used:{lines}")


def read(
    path: Path, kinds: Mapping[str, Spelling]
) -> tuple[dict[SplitName, Split], tuple[str, ...], bool, bool]:
    """Splits, names of the classes, whether a row has several, and whether valid was carved."""
    arrays, unreadable = opened(path)
    found = problems(arrays, kinds, unreadable)
    if found:
        raise Malformed(path, found)
    modalities, given = modalities_of(arrays), splits_of(arrays)
    targets, labels = coded({split: arrays[f"y_{split}"] for split in given})
    splits: dict[SplitName, Split] = {
        split: Split(
            {modality: arrays[f"x_{modality}_{split}"] for modality in modalities},
            targets[split],
            arrays.get(f"group_{split}"),
        )
        for split in given
    }
    carved = "valid" not in splits
    if carved:
        try:
            splits["train"], splits["valid"] = carve(splits["train"])
        except ValueError as error:
            raise Malformed(path, [f"x_..._valid is missing, and {error}"]) from None
    return splits, labels, targets["train"].ndim == 2, carved


def coded(
    targets: Mapping[SplitName, Array],
) -> tuple[dict[SplitName, Array], tuple[str, ...]]:
    """Class ids from 0 on, or labels as 0 and 1, with their names."""
    if targets["train"].ndim == 2:
        columns = targets["train"].shape[1]
        matrices: dict[SplitName, Array] = {
            split: target.astype(np.uint8) for split, target in targets.items()
        }
        return matrices, tuple(f"label {column}" for column in range(columns))
    values = np.unique(targets["train"])
    ids: dict[SplitName, Array] = {
        split: np.searchsorted(values, target).astype(np.int64) for split, target in targets.items()
    }
    return ids, tuple(map(str, values.tolist()))


def carve(train: Split) -> tuple[Split, Split]:
    """(train, valid); rows of memory-mapped arrays stay where they are."""
    rest, held = hold_out(train.target, VALID, 0, train.group)
    parts = [
        replace(
            train,
            inputs={modality: rows_of(array, rows) for modality, array in train.inputs.items()},
            target=train.target[rows],
            group=None if train.group is None else train.group[rows],
        )
        for rows in (rest, held)
    ]
    return parts[0], parts[1]
