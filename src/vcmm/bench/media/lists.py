"""Lists of clips: rows of a csv or txt with their line, names that are names, and a hash of it all.

The hash of a list is the sha256 of its sorted lines "id,label", each with a newline. It is the same
for the same clips in any order, so that two groups can say whether they split alike.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .folders import lacking
from .paths import inside, lines


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a list."""

    where: str  # "train.csv, line 3"
    cells: tuple[str, ...]


def rows(path: Path) -> Iterator[Row]:
    """The lines of a file as cells between commas, stripped; empty ones are passed over."""
    for number, line in enumerate(lines(path), start=1):
        if line.strip():
            where = f"{path.name}, line {number}"
            try:
                cells = next(csv.reader([line], strict=True))
            except csv.Error as error:
                raise ValueError(f"{where}: {line[:80]!r} is no csv: {error}") from error
            yield Row(where, tuple(cell.strip() for cell in cells))


def checked(name: str, where: str) -> str:
    """A clip's name out of a list, if it is a name and not a path."""
    if not name or name in {".", ".."} or set(name) & set("/\\\0:") or not name.isprintable():
        raise ValueError(
            f"{where}: {name[:80]!r} is no name of a clip; a name is not empty and no path"
        )
    return name


def add(of: dict[str, str], name: str, label: str, where: str) -> bool:
    """Note the label of a clip; whether it was new. An error if it has another already."""
    new = name not in of
    if of.setdefault(name, label) != label:
        raise ValueError(f"{where}: {name!r} is {label!r}, and {of[name]!r} further up")
    return new


def apart(lists: Mapping[str, Iterable[str]]) -> None:
    """An error if two lists share a clip."""
    seen: dict[str, str] = {}
    for name, ids in lists.items():
        for one in ids:
            if seen.setdefault(one, name) != name:
                raise ValueError(
                    f"{one!r} is in {seen[one]} and in {name}: what is judged must not be trained "
                    "on; remove it from one of the lists"
                )


def first_of(root: Path, places: Sequence[str]) -> str | None:
    """The first of these files that is there; an error for one that is astray."""
    return next(
        (place for place in places if inside(root, place) and not lacking(root, place)), None
    )


def without(file: str) -> str:
    """A remark on a list that lacks, and what that means."""
    return (
        f"the list {file} is not there: what is prepared without it cannot be loaded; put it below "
        "the root and prepare again"
    )


def list_hash(labels: Mapping[str, str]) -> str:
    """sha256 of a list, given the label of every id."""
    text = "".join(f"{one},{labels[one]}\n" for one in sorted(labels))
    return hashlib.sha256(text.encode()).hexdigest()
