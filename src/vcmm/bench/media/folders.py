"""What lies in a folder of media: in natural order, and without links that lead out of it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .paths import inside

DEPTH = 8  # folders within folders; no layout has more than 4
PICTURES = (".jpg", ".jpeg", ".png")


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or folder below the root."""

    name: str
    path: str  # below the root, parts joined by "/"
    folder: bool
    wrong: str = ""  # why it may not be opened

    @property
    def hidden(self) -> bool:
        return self.name.startswith(".")

    @property
    def stem(self) -> str:
        return os.path.splitext(self.name)[0]

    @property
    def ending(self) -> str:
        return os.path.splitext(self.name)[1].lower()


def entries(root: Path, folder: str = "") -> list[Entry]:
    """What is in a folder below the root, in natural order; nothing if there is no such folder.

    Hidden files are passed over: systems make them. A name that is no text cannot be listed, so it
    is an entry that may not be opened.
    """
    return [one for one in _scanned(root, folder) if not one.hidden]


def _scanned(root: Path, folder: str) -> list[Entry]:
    where = inside(root, folder) if folder else root
    if not where.is_dir():
        return []
    found: list[Entry] = []
    with os.scandir(where) as entered:
        for one in entered:
            name = one.name.encode("utf-8", "replace").decode()
            path = f"{folder}/{name}" if folder else name
            wrong = "" if name == one.name else f"{path!r} has a name that is not UTF-8"
            if not wrong and one.is_symlink():
                wrong = astray(root, path)
            found.append(Entry(name, path, not wrong and one.is_dir(), wrong))
    return sorted(found, key=lambda one: natural(one.name))


def astray(root: Path, path: str) -> str:
    """Why a link may not be followed, or nothing."""
    try:
        inside(root, path)
    except ValueError as error:
        return str(error)
    return ""


def lacking(root: Path, path: str) -> str:
    """Why there is no file to be opened at a path below the root, or nothing.

    A list may say anything: a name that is too long for the disk names no file either.
    """
    if wrong := astray(root, path):
        return wrong
    try:
        return "" if (root / path).is_file() else f"{path} is not there"
    except OSError as error:
        return f"{path[:80]!r} cannot be looked for: {error.strerror}"


def pictures(root: Path, folder: str) -> list[Entry]:
    """The pictures in a folder, in natural order: 2.jpg comes before 10.jpg."""
    return [one for one in entries(root, folder) if not one.folder and one.ending in PICTURES]


def tree(
    root: Path, folder: str = "", depth: int = DEPTH, passed: dict[str, str] | None = None
) -> Iterator[tuple[str, list[Entry]]]:
    """Every folder from here on, and what is in it.

    A link to a folder is not followed, as it may lead in circles; nor is a hidden folder looked
    into, or one below `depth` others. Those are noted in `passed`, with the reason.
    """
    here = _scanned(root, folder)
    yield folder, [one for one in here if not one.hidden]
    for one in here:
        if not one.folder:
            continue
        why = "hidden" if one.hidden else "" if depth else "too deep"
        if (root / one.path).is_symlink():
            why = "a link"
        if not why:
            yield from tree(root, one.path, depth - 1, passed)
        elif passed is not None:
            passed[one.path] = why


def natural(name: str) -> tuple[list[str | int], str]:
    """Sorts numbers in a name by their value."""
    parts = re.split("([0-9]+)", name)
    return [int(part) if k % 2 else part for k, part in enumerate(parts)], name
