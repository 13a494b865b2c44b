"""Arrays on disk: a folder of .npy files or one .npz, opened without ever unpickling.

An array of at least `LARGE` bytes is memory-mapped, in a folder and in an .npz of `np.savez`, where
members lie uncompressed. Members of `np.savez_compressed` cannot be mapped and are read, each once.
"""

from __future__ import annotations

import math
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np

from ..types import Array

LARGE = 1 << 26  # bytes
LOCAL_HEADER = 30  # bytes of a zip's local file header before the names

Place = tuple[Path, int]  # a file, and where in it an .npy begins


def opened(path: Path) -> tuple[dict[str, Array], dict[str, str]]:
    """The arrays by name, and by name what is wrong with those that could not be opened."""
    if path.is_dir():
        return gathered(folder(path))
    if not path.exists():
        raise FileNotFoundError(f"there is no file or folder '{path}'")
    if not zipfile.is_zipfile(path):
        return {}, {path.name: "it is not an .npz file, or a broken one; write it with np.savez"}
    return gathered(members(path))


def gathered(
    sources: Iterator[tuple[str, IO[bytes], Place | None]],
) -> tuple[dict[str, Array], dict[str, str]]:
    """Every array that can be read, and a reason for every one that cannot."""
    arrays: dict[str, Array] = {}
    unreadable: dict[str, str] = {}
    for name, stream, place in sources:
        try:
            arrays[name] = read(stream, place)
        except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            unreadable[name] = str(error)
    return arrays, unreadable


def folder(path: Path) -> Iterator[tuple[str, IO[bytes], Place | None]]:
    """The .npy files of a folder."""
    for file in sorted(path.glob("*.npy")):
        with file.open("rb") as stream:
            yield file.stem, stream, (file, 0)


def members(path: Path) -> Iterator[tuple[str, IO[bytes], Place | None]]:
    """The members of an .npz."""
    with zipfile.ZipFile(path) as archive, path.open("rb") as raw:
        for info in sorted(archive.infolist(), key=lambda info: info.filename):
            place = None
            if info.compress_type == zipfile.ZIP_STORED:
                raw.seek(info.header_offset)
                names = struct.unpack_from("<HH", raw.read(LOCAL_HEADER), LOCAL_HEADER - 4)
                place = path, info.header_offset + LOCAL_HEADER + sum(names)
            with archive.open(info) as stream:
                yield info.filename.removesuffix(".npy"), stream, place


def read(stream: IO[bytes], place: Place | None) -> Array:
    """One array; if it has a place and is large, it stays there."""
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    elif version == (2, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_2_0(stream)
    else:
        raise ValueError(f"its .npy format is {version}; store a plain array of numbers")
    if dtype.hasobject:
        raise ValueError(
            "it holds Python objects, which are never unpickled; store an array of numbers of one "
            "shape, np.asarray(values, dtype=np.float32) for instance"
        )
    if place is not None and math.prod(shape) * dtype.itemsize >= LARGE:
        file, start = place
        return np.memmap(file, dtype, "r", start + stream.tell(), shape, "F" if fortran else "C")
    stream.seek(0)
    return np.lib.format.read_array(stream, allow_pickle=False)
