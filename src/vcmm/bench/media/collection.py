"""What a media data set is, to `check` and to `prepare`.

To add one, write its `Collection` and its loader in a file of `vcmm.bench.data`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..types import Array

Parameters = Mapping[str, Any]  # of decoding, complete: what `prepare` was told, with defaults


class Undecodable(ValueError):
    """A file that cannot be used, and why. The sample is listed and left out."""


@dataclass(frozen=True, slots=True)
class Item:
    """One sample before it is decoded."""

    id: str  # unique in its data set
    label: str  # the name of its class
    lists: tuple[str, ...]  # that name it, "ogm/train" say; sorted
    files: Mapping[str, tuple[str, ...]]  # modality -> paths below the root, parts joined by "/"
    group: str | None = None  # who it comes from
    more: Mapping[str, Any] = field(default_factory=dict[str, Any])  # JSON that decoding needs


@dataclass(frozen=True, slots=True)
class Found:
    """What a folder holds of a data set."""

    items: tuple[Item, ...]  # with all their files, sorted by id
    labels: tuple[str, ...]  # the classes, in the order of their numbers
    missing: Mapping[str, str] = field(
        default_factory=dict[str, str]
    )  # id, or a file -> what lacks
    remarks: tuple[str, ...] = ()  # what a person should know, a line each


@dataclass(frozen=True, slots=True)
class Collection:
    """A data set of media files, by functions of its folder."""

    name: str
    layout: str  # which files are expected below the root, and how to obtain them: many lines
    parameters: Callable[..., None]  # raises for bad ones; its keyword-only arguments are they
    find: Callable[[Path, Parameters], Found]
    # (root, item, parameters) -> an array for every modality. Runs in other processes.
    decode: Callable[[Path, Item, Parameters], Mapping[str, Array]]
    version: int = 1  # raised when `decode` makes something else of the same files
