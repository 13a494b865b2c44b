"""Parts: what one process has decoded, in files that are whole or not there.

A part holds the numbers of some samples one after the other, then a line of JSON for each, and at
its end where the lines begin. It gets its name only when it is on the disk, so a process may die at
any moment. An entry remembers from which bytes it was decoded, and is used again only for them.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..folder import sync
from ..types import Array
from .collection import Item

END = struct.Struct("<Q8s")  # where the lines begin, and the mark
MARK = b"vcmmpart"
Read = Callable[[], Array]


@dataclass(frozen=True, slots=True)
class Stamp:
    """Which bytes a file has, and what tells cheaply that it still has them."""

    path: str  # below the root
    bytes: int
    mtime_ns: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A sample that was decoded, or why it could not be."""

    asked: Mapping[str, Any]  # what decides the result, with the bytes of the files
    stamps: tuple[Stamp, ...] | None  # of its files; None if it is not to be used again
    error: str | None = None
    arrays: Mapping[str, Read] = field(default_factory=dict[str, Read])

    @property
    def id(self) -> str:
        return self.asked["id"]

    def fits(self, root: Path, item: Item) -> bool:
        """Whether it is what decoding this item would give now."""
        if self.stamps is None or self.asked != asked(item):
            return False
        return all(unchanged(root, stamp) for stamp in self.stamps)

    def row(self) -> dict[str, Any]:
        """As JSON, without the arrays."""
        stamps = self.stamps and [[s.path, s.bytes, s.mtime_ns, s.sha256] for s in self.stamps]
        return {"asked": self.asked, "stamps": stamps, "error": self.error}


def entry(row: Mapping[str, Any], arrays: Mapping[str, Read]) -> Entry:
    """Of what `Entry.row` gave."""
    stamps = row["stamps"]
    found = None if stamps is None else tuple(Stamp(*stamp) for stamp in stamps)
    return Entry(row["asked"], found, row["error"], arrays)


def asked(item: Item) -> dict[str, Any]:
    """What `decode` may look at: the label, the group and the lists change no array."""
    files = {modality: list(paths) for modality, paths in sorted(item.files.items())}
    return {"id": item.id, "files": files, "more": json.loads(json.dumps(dict(item.more)))}


def stamped(root: Path, item: Item) -> tuple[Stamp, ...] | None:
    """What the files of an item are now; None if one of them cannot be read."""
    paths = sorted({path for paths in item.files.values() for path in paths})
    try:
        return tuple(stamp(root, path) for path in paths)
    except (OSError, ValueError):
        return None


def stamp(root: Path, path: str) -> Stamp:
    """What a file is now."""
    found = (root / path).stat()  # before it is read: a later change is another time
    if not stat.S_ISREG(found.st_mode):  # a pipe would be waited for
        raise ValueError(f"{path} is not a file")
    return Stamp(path, found.st_size, found.st_mtime_ns, sha256(root / path))


def unchanged(root: Path, stamp: Stamp) -> bool:
    """Whether a file has the same bytes. It is read only if its time has changed."""
    try:
        found = (root / stamp.path).stat()
        if found.st_size != stamp.bytes or not stat.S_ISREG(found.st_mode):
            return False
        return found.st_mtime_ns == stamp.mtime_ns or sha256(root / stamp.path) == stamp.sha256
    except OSError:
        return False


def sha256(path: Path) -> str:
    """Of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


class Part:
    """A part that is being written."""

    def __init__(self, path: Path) -> None:
        self.path, self.bytes = path, 0
        self._draft = path.with_suffix(".tmp")
        self._stream = self._draft.open("wb")
        self._lines: list[dict[str, Any]] = []

    def add(self, entry: Entry, arrays: Mapping[str, Array]) -> None:
        """A sample with its arrays, or one without them that failed."""
        places: dict[str, Any] = {}
        for modality, array in sorted(arrays.items()):
            places[modality] = [array.dtype.str, list(array.shape), self.bytes]
            flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            self.bytes += self._stream.write(flat.data)
        self._lines.append({**entry.row(), "arrays": places})

    def keep(self) -> None:
        """Put it on the disk, and in its place."""
        for line in self._lines:
            self._stream.write(json.dumps(line).encode() + b"\n")
        self._stream.write(END.pack(self.bytes, MARK))
        self._stream.close()
        sync(self._draft)
        os.replace(self._draft, self.path)

    def drop(self) -> None:
        """Forget it."""
        with suppress(OSError):  # what is still to be written does not fit either
            self._stream.close()
        self._draft.unlink(missing_ok=True)


def entries(folder: Path, *, besides: Collection[Path] = ()) -> Iterator[Entry]:
    """All that the parts of a folder hold, besides some of them."""
    for path in sorted(folder.glob("*.part")):
        if path not in besides:
            yield from read(path)


def read(path: Path) -> Sequence[Entry]:
    """What one part holds; nothing if it is none, which a damaged disk can make of it."""
    with path.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        if size < END.size:
            return []
        stream.seek(-END.size, os.SEEK_END)
        start, mark = END.unpack(stream.read(END.size))
        if mark != MARK or start > size - END.size:
            return []
        stream.seek(start)
        lines = stream.read(size - END.size - start).splitlines()
    found: list[Entry] = []
    for line in map(json.loads, lines):
        arrays = {name: partial(_mapped, path, *place) for name, place in line["arrays"].items()}
        found.append(entry(line, arrays))
    return found


def _mapped(path: Path, dtype: str, shape: list[int], start: int) -> Array:
    return np.memmap(path, dtype, "r", start, tuple(shape))
