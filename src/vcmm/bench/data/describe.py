"""What is in a data set, as JSON would have it."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..types import Data, Split


def describe(data: Data) -> dict[str, Any]:
    """Modalities, splits with the samples of every class, and where it all comes from."""
    return {
        "name": data.name,
        "about": data.about,
        "hash": data.hash,
        "multilabel": data.multilabel,
        "labels": list(data.labels),
        "modalities": {
            modality: {
                "kind": data.forms[modality].kind,
                "shape": list(data.forms[modality].shape),
                "dtype": dtype_of(data.splits["train"], modality),
            }
            for modality in data.modalities
        },
        "splits": {
            name: {
                "samples": len(split),
                "groups": None if split.group is None else len(np.unique(split.group)),
                "classes": dict(zip(data.labels, class_counts(split, data), strict=True)),
            }
            for name, split in data.splits.items()
        },
    }


def dtype_of(split: Split, modality: str) -> str:
    """Of the arrays as they lie there; of what is decoded, that it is."""
    return "media" if modality in split.sources else str(split.inputs[modality].dtype)


def class_counts(split: Split, data: Data) -> list[int]:
    """The samples of every class; with several labels per sample, those that have the label."""
    if data.multilabel:
        return split.target.astype(np.int64).sum(axis=0).tolist()
    return np.bincount(split.target.astype(np.int64), minlength=data.classes).tolist()
