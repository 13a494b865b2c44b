"""`Store`: decoded samples in a folder, memory-mapped, with everything that is known of them.

    manifest.json         names, parameters, counts, what could not be decoded; size and sha256 of
                          every other file
    samples.jsonl         a line for each sample: id, target, group, lists, more
    sources.jsonl         a line for each sample, and for each that could not be decoded: its files,
                          as path below the root, bytes, time and sha256
    <modality>.npy        [n, ...] if all samples of a modality have one shape, and otherwise
    <modality>.bin        their numbers one after the other, and
    <modality>.table.npy  [n, 1 + axes]: where each begins, counted in numbers, and its shape

Nothing is ever unpickled. A store is made whole and never changed.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, overload

import numpy as np
import numpy.typing as npt

from ..folder import sync, write_json
from ..types import Array

FORMAT = 1
MODALITY = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
Json = Mapping[str, Any]
KINDS: dict[str, type] = {  # of the entries of a manifest
    "name": str,
    "parameters": dict,
    "labels": list,
    "samples": int,
    "arrays": dict,
    "files": dict,
    "digest": str,
}
PREPARED: dict[str, type] = {  # and of those that `prepare` adds
    "version": int,
    "lists": dict,
    "split_hash": str,
    "failed": dict,
    "missing": dict,
    "remarks": list,
}
WRONG = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)


class Ragged(Sequence[Array]):
    """Arrays of one dtype, each of its own shape, in one memory-mapped file."""

    def __init__(self, path: Path, dtype: np.dtype[Any], table: npt.NDArray[np.int64]) -> None:
        self.path, self.dtype, self.table = path, dtype, table
        self._numbers = np.memmap(path, dtype, "r").view(np.ndarray)

    def __len__(self) -> int:
        return len(self.table)

    @overload
    def __getitem__(self, index: int) -> Array: ...
    @overload
    def __getitem__(self, index: slice) -> list[Array]: ...
    def __getitem__(self, index: int | slice) -> Array | list[Array]:
        if isinstance(index, slice):
            return [self[row] for row in range(len(self))[index]]
        start, *shape = self.table[index].tolist()
        return self._numbers[start : start + math.prod(shape)].reshape(shape)

    def __reduce__(self) -> tuple[Any, ...]:
        return Ragged, (self.path, self.dtype, self.table)  # the file stays where it is


@dataclass(frozen=True, slots=True)
class Store:
    """What `prepare` made. All sequences are in the order of the ids, which are sorted."""

    path: Path
    ids: tuple[str, ...]
    labels: tuple[str, ...]  # the names of the classes
    target: npt.NDArray[np.int64]
    groups: tuple[str | None, ...]
    lists: tuple[tuple[str, ...], ...]  # that name each sample
    more: tuple[Json, ...]
    arrays: Mapping[str, Sequence[Array]]  # by modality: a np.memmap [n, ...], or a `Ragged`
    manifest: Json

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def digest(self) -> str:
        """sha256 of labels, samples and arrays; the same wherever they were decoded."""
        return self.manifest["digest"]

    @property
    def parameters(self) -> Json:
        """Of decoding, complete."""
        return self.manifest["parameters"]

    def sources(self) -> Iterator[Json]:
        """Every sample that was asked for: its files, and why it could not be decoded or None."""
        return rows(self.path / "sources.jsonl")


def open_store(path: Path) -> Store:
    """The store in a folder; ValueError, with what mends it, if it is broken.

    Its files are compared with the manifest by size; `verify` reads them.
    """
    manifest = _manifest(path)
    for name, file in manifest["files"].items():
        size = (path / name).stat().st_size if (path / name).is_file() else None
        if size != file["bytes"]:
            what = "is missing" if size is None else f"has {size} bytes, not {file['bytes']}"
            raise ValueError(f"{path / name} {what}; {_mend(path, manifest)}")
    try:
        return _read(path, manifest)
    except WRONG as error:
        raise ValueError(f"{path} is broken ({error}); {_mend(path, manifest)}") from error


def _read(path: Path, manifest: dict[str, Any]) -> Store:
    samples = list(rows(path / "samples.jsonl"))
    arrays = {name: _opened(path, name, one) for name, one in manifest["arrays"].items()}
    counts = {"samples.jsonl": len(samples), **{name: len(one) for name, one in arrays.items()}}
    for name, count in counts.items():
        if count != manifest["samples"]:
            raise ValueError(f"{name} has {count} samples, not {manifest['samples']}")
    return Store(
        path,
        tuple(one["id"] for one in samples),
        tuple(manifest["labels"]),
        np.array([one["target"] for one in samples], np.int64),
        tuple(one["group"] for one in samples),
        tuple(tuple(one["lists"]) for one in samples),
        tuple(one["more"] for one in samples),
        arrays,
        manifest,
    )


def verify(store: Store) -> None:
    """Read every byte and compare it with the manifest; an error for the first file that differs.

    Opening a store compares sizes alone, because a store can be as large as a disk.
    """
    for name, file in store.manifest["files"].items():
        with (store.path / name).open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
        if found != file["sha256"]:
            mend = _mend(store.path, store.manifest)
            raise ValueError(f"{store.path / name} has changed since it was written; {mend}")
    manifest = store.manifest
    if _digest(manifest["labels"], manifest["arrays"], manifest["files"]) != store.digest:
        mend = _mend(store.path, manifest)
        raise ValueError(f"{store.path / 'manifest.json'} is not as it was written; {mend}")


def write_store(
    folder: Path,
    *,
    name: str,
    labels: Sequence[str],
    samples: Sequence[Json],
    arrays: Mapping[str, Sequence[Array]],
    parameters: Json | None = None,
    sources: Iterable[Json] = (),
    known: Json | None = None,
    watch: Callable[[int], None] | None = None,
) -> Store:
    """Write a store into a new folder. The arrays are read twice, one at a time.

    Args:
        folder: must not exist.
        name: of the data set.
        labels: the names of the classes.
        samples: id, target, group, lists and more of each, sorted by id.
        arrays: as many of every modality as there are samples.
        parameters: of decoding.
        sources: where the samples come from, for `Store.sources`.
        known: further entries of the manifest.
        watch: is told how many bytes each array has, once it is written.
    """
    folder.mkdir(parents=True)
    files = {
        "samples.jsonl": _write_rows(folder / "samples.jsonl", samples),
        "sources.jsonl": _write_rows(folder / "sources.jsonl", sources),
    }
    forms: dict[str, Json] = {}
    for modality in sorted(arrays):
        forms[modality], written = _write_arrays(folder, modality, arrays[modality], watch)
        files |= written
    manifest = {
        "format": FORMAT,
        "name": name,
        "parameters": dict(parameters or {}),
        "labels": list(labels),
        "samples": len(samples),
        "arrays": forms,
        "files": files,
        "digest": _digest(labels, forms, files),
        **(known or {}),
    }
    write_json(folder / "manifest.json", manifest)  # the last: without it there is no store
    sync(folder)
    return open_store(folder)


def rows(path: Path) -> Iterator[Json]:
    """The lines of a .jsonl file."""
    with path.open(encoding="utf-8") as stream:
        for line in stream:
            yield json.loads(line)


def _digest(labels: Sequence[str], forms: Json, files: Mapping[str, Json]) -> str:
    contents = {file: files[file]["sha256"] for file in sorted(files) if file != "sources.jsonl"}
    whole = json.dumps([list(labels), forms, contents], sort_keys=True).encode()
    return hashlib.sha256(whole).hexdigest()


def _manifest(path: Path) -> dict[str, Any]:
    place = path / "manifest.json"
    if not place.is_file():
        raise FileNotFoundError(f"{path} is no store: it has no manifest.json")
    try:
        manifest = json.loads(place.read_bytes())
        found = manifest["format"]
    except (*WRONG, OSError) as error:
        raise ValueError(f"{place} is broken ({error}); remove {path} and prepare again") from error
    if found != FORMAT:
        raise ValueError(
            f"{place} has format {found!r}, and this version of vcmm reads {FORMAT}; "
            f"{_mend(path, manifest)}"
        )
    try:
        _look(manifest)
    except WRONG as error:
        raise ValueError(f"{place} is broken ({error}); {_mend(path, manifest)}") from error
    return manifest


def _look(manifest: Json) -> None:
    """An error for a manifest that is none."""
    for name, kind in {**KINDS, **PREPARED}.items():
        lacks = name not in manifest and name in KINDS
        if lacks or not isinstance(manifest.get(name, kind()), kind):
            raise ValueError(f"{name!r} {'is missing' if lacks else f'is no {kind.__name__}'}")
    needed = {"samples.jsonl", "sources.jsonl"}
    for modality, form in manifest["arrays"].items():
        endings = ("npy",) if form["shape"] is not None else ("bin", "table.npy")
        needed |= {f"{modality}.{ending}" for ending in endings}
        np.dtype(form["dtype"])
    if needed != manifest["files"].keys():
        raise ValueError(f"its files are not {', '.join(sorted(needed))}")
    for file in manifest["files"].values():
        if not isinstance(file["bytes"], int) or not isinstance(file["sha256"], str):
            raise ValueError("its files lack sizes or sums")


def _mend(path: Path, manifest: Json) -> str:
    name = manifest.get("name", "NAME")
    return f"remove {path} and make it anew with: vcmm data prepare {name} --root DIR"


def _opened(path: Path, modality: str, form: Json) -> Sequence[Array]:
    if form["shape"] is not None:
        whole = np.load(path / f"{modality}.npy", mmap_mode="r", allow_pickle=False)
        return cast("Sequence[Array]", whole)
    table = np.load(path / f"{modality}.table.npy", allow_pickle=False)
    return Ragged(path / f"{modality}.bin", np.dtype(form["dtype"]), table)


class _Summed:
    """A file that is being written, with its size and sha256."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._sum, self._bytes = hashlib.sha256(), 0
        self._stream = path.open("wb")

    def write(self, data: Any) -> int:
        self._stream.write(data)
        self._sum.update(data)
        self._bytes += (size := memoryview(data).nbytes)
        return size

    def end(self) -> Json:
        """Close it, when it is on the disk."""
        self._stream.close()
        sync(self.path)
        return {"bytes": self._bytes, "sha256": self._sum.hexdigest()}


def _write_rows(path: Path, lines: Iterable[Json]) -> Json:
    file = _Summed(path)
    for line in lines:
        text = json.dumps(line, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        file.write(text.encode() + b"\n")
    return file.end()


def _write_arrays(
    folder: Path, modality: str, arrays: Sequence[Array], watch: Callable[[int], None] | None
) -> tuple[Json, dict[str, Json]]:
    """Form and files of a modality's arrays."""
    if not MODALITY.fullmatch(modality):
        raise ValueError(f"modality {modality!r} is no name; use letters, digits, _ and -")
    dtypes, shapes = _kinds(modality, arrays)
    same = len(set(shapes)) == 1
    form: Json = {"dtype": dtypes.str, "shape": list(shapes[0]) if same else None}
    file = _Summed(folder / (f"{modality}.npy" if same else f"{modality}.bin"))
    if same:
        header = {"descr": dtypes.str, "fortran_order": False, "shape": (len(arrays), *shapes[0])}
        np.lib.format.write_array_header_1_0(cast("Any", file), header)
    for row in range(len(arrays)):
        size = file.write(np.ascontiguousarray(arrays[row]).reshape(-1).view(np.uint8))
        if watch is not None:
            watch(size)
    files = {file.path.name: file.end()}
    if not same:
        sizes = np.array([math.prod(shape) for shape in shapes], np.int64)
        table = np.column_stack([np.cumsum(sizes) - sizes, np.array(shapes, np.int64)])
        listed = _Summed(folder / f"{modality}.table.npy")
        np.lib.format.write_array(cast("Any", listed), table, allow_pickle=False)
        files[listed.path.name] = listed.end()
    return form, files


def _kinds(modality: str, arrays: Sequence[Array]) -> tuple[np.dtype[Any], list[tuple[int, ...]]]:
    """The one dtype of these arrays, and their shapes, which have one number of axes."""
    first = arrays[0]
    shapes: list[tuple[int, ...]] = []
    for row in range(len(arrays)):
        one = arrays[row]
        if one.dtype != first.dtype or one.ndim != first.ndim or not one.ndim or not one.size:
            raise ValueError(
                f"arrays of modality {modality!r} must be of one dtype and one number of axes, and "
                f"not empty: the first is {first.dtype} {first.shape}, number {row} {one.dtype} "
                f"{one.shape}"
            )
        shapes.append(one.shape)
    if first.dtype.hasobject:
        raise ValueError(f"modality {modality!r} holds Python objects; give arrays of numbers")
    return first.dtype, shapes
