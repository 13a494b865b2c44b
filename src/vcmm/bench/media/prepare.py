"""`prepare`: decode a collection once, into a store in the cache.

    <cache>/<name>-<key>/               the store; the key is of name, version and parameters
    <cache>/.work/<name>-<key>/parts/   what was decoded so far, see `parts`
    <cache>/.work/<name>-<key>.lock     held by the process that prepares it

Items are decoded by several processes. Whatever dies, and whenever, the same call goes on where it
was, because a part or a store is there whole or not at all. What was decoded before, in parts or
in an earlier store, is used again if the bytes of its files are the same; a damaged store is made
anew. A file that cannot be decoded is listed in the manifest with the reason, and its sample is
left out. No store is replaced by one that lacks some of its samples, unless that is forced.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal, overload

from ..folder import Busy, locked, sync
from ..launch.local import cores
from ..signature import completed, written
from ..types import Array
from .collection import Collection, Found, Item, Parameters
from .crew import Job, decoded
from .parts import Entry, Read, entries, entry
from .splits import counted, split_hash
from .store import Store, open_store, rows, verify, write_store

Stage = Literal["comparing", "decoding", "writing"]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far it is."""

    stage: Stage
    done: int  # items; of writing, bytes
    total: int
    failed: int = 0
    id: str = ""  # of the item that was decoded last
    error: str | None = None  # why it could not be


Watch = Callable[[Progress], object]
FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


def prepare(
    collection: Collection,
    root: Path,
    parameters: Parameters,
    *,
    cache: Path | None = None,
    workers: int | None = None,
    watch: Watch | None = None,
    force: bool = False,
) -> Path:
    """Decode what lies in `root`, unless that is done; the folder of the store.

    A script that calls this needs the guard `if __name__ == "__main__":`, as with everything that
    starts processes.

    Args:
        collection: which data set it is.
        root: its folder. Nothing is written there.
        parameters: of decoding; those that are left out have their defaults.
        cache: where the store goes, see `cache_folder`.
        workers: processes at a time; all cores if left out.
        watch: is told of the progress.
        force: decode everything anew, also what could not be decoded, and replace a store that has
            other samples.
    """
    tell = watch or nobody
    given = settled(collection, parameters)
    found = surveyed(collection, root, given)
    final = folder_of(collection, given, cache=cache)
    with _mine(final) as work:
        if (work / "old").exists() and not final.exists():  # it was killed in `_publish`
            os.replace(work / "old", final)
        if not force:
            _nothing_lost(final, root, [item.id for item in found.items], found.missing)
        parts = work / "parts"
        if force:
            shutil.rmtree(parts, ignore_errors=True)
        parts.mkdir(exist_ok=True)
        for draft in parts.glob("*.tmp"):
            draft.unlink()
        if final.exists():
            tell(Progress("comparing", 0, len(found.items)))
        present = None if force else sound(final)[0]
        held = () if force else chain(stored_entries(present), entries(parts))
        known = known_entries(found.items, root, held, tell)
        job = Job(collection, root.absolute(), given, parts)
        _decode(job, [item for item in found.items if item.id not in known], workers, known, tell)
        contents = _contents(collection, given, found, known)
        if not force:
            kept = [sample["id"] for sample in contents.samples]
            _nothing_lost(final, root, kept, {**found.missing, **contents.known["failed"]})
        if present is None or not _is(present, contents):
            _write(work / "store", contents, tell)
            _publish(work, final)
        shutil.rmtree(work)
    return final


def nobody(progress: Progress) -> None:
    """Is told, where nobody watches."""


def folder_of(collection: Collection, parameters: Parameters, *, cache: Path | None = None) -> Path:
    """Where the store of these parameters is, or will be."""
    from ..data.fetch import cache_folder  # data sets import this file

    given = settled(collection, parameters)
    told = json.dumps([collection.name, collection.version, given], sort_keys=True)
    key = hashlib.sha256(told.encode()).hexdigest()[:12]
    return (cache or cache_folder()) / f"{collection.name}-{key}"


def load_store(
    collection: Collection, parameters: Parameters, *, cache: Path | None = None
) -> Store:
    """The store of these parameters, which was prepared before."""
    folder = folder_of(collection, parameters, cache=cache)
    if not (folder / "manifest.json").is_file():
        given, usual = settled(collection, parameters), settled(collection, {})
        flags = [
            f" --{name.replace('_', '-')} {written(value)}"
            for name, value in given.items()
            if value != usual[name]
        ]
        raise FileNotFoundError(
            f"data '{collection.name}' is not prepared yet (looked in {folder}); "
            f"run: vcmm data prepare {collection.name} --root DIR{''.join(flags)}"
        )
    return open_store(folder)


def settled(collection: Collection, parameters: Parameters) -> dict[str, Any]:
    """All parameters of decoding, checked."""
    given = completed(f"data {collection.name!r}", collection.parameters, parameters)
    collection.parameters(**given)
    return given


def surveyed(collection: Collection, root: Path, parameters: Parameters) -> Found:
    """What is in a folder; an error if it is nothing of this data set."""
    if not root.is_dir():
        raise NotADirectoryError(f"there is no folder '{root}'; --root is where the files are")
    found = collection.find(root, parameters)
    if not found.items:
        lacks = "".join(f"\n  {name}: {why}" for name, why in sorted(found.missing.items())[:5])
        raise FileNotFoundError(
            f"nothing of '{collection.name}' is in '{root}'{':' if lacks else ''}{lacks}\n\n"
            f"{collection.layout.strip()}"
        )
    seen: set[str] = set()
    for item in found.items:
        if item.id in seen:
            raise ValueError(f"'{collection.name}' names sample {item.id!r} twice")
        if item.label not in found.labels:
            raise ValueError(f"sample {item.id!r} has label {item.label!r}, which is no class")
        seen.add(item.id)
    return found


@dataclass(frozen=True, slots=True)
class Contents:
    """All that a store is going to hold."""

    name: str
    parameters: Parameters
    labels: tuple[str, ...]
    samples: list[dict[str, Any]]
    sources: list[dict[str, Any]]
    arrays: Mapping[str, Sequence[Read]]
    known: dict[str, Any]  # entries of the manifest


@contextmanager
def _mine(final: Path) -> Generator[Path]:
    """A folder to work in, for one process at a time."""
    try:
        with locked(final.parent, final.name) as work:
            yield work
    except Busy:
        raise BlockingIOError(
            f"{final.name} is being prepared by another process; wait for it, or end it"
        ) from None


def known_entries(
    items: Sequence[Item], root: Path, held: Iterable[Entry], watch: Watch
) -> dict[str, Entry]:
    """What need not be decoded again, by id: the later ones of what is held count."""
    wanted = {item.id: item for item in items}
    known: dict[str, Entry] = {}
    for one in held:
        if one.id in wanted and one.fits(root, wanted[one.id]):
            known[one.id] = one
            watch(Progress("comparing", len(known), len(items)))
    return known


def sound(final: Path) -> tuple[Store | None, str | None]:
    """The store that is there if all its bytes are as they were written, or what is not."""
    try:
        store = open_store(final)
        verify(store)
    except FileNotFoundError:
        return None, None
    except (OSError, ValueError) as error:
        return None, str(error)
    return store, None


def _nothing_lost(final: Path, root: Path, ids: Sequence[str], reasons: Mapping[str, str]) -> None:
    """An error if the store that is there has samples that would not be in the new one."""
    try:
        store = open_store(final)
    except (OSError, ValueError):  # there is none that could be read
        return
    lost = sorted({*store.ids} - {*ids})
    if lost:
        named = "".join(f"\n  {name}: {reasons.get(name, 'not there')}" for name in lost[:5])
        raise ValueError(
            f"{len(lost)} of the {len(store)} samples in {final} are not in '{root}', or do not "
            f"decode any more:{named}\nNothing was replaced. Give the folder that has them, or do "
            f"without them: vcmm data prepare {store.manifest['name']} --root DIR --force"
        )


def stored_entries(store: Store | None) -> Iterator[Entry]:
    """What an earlier store holds, if there is one."""
    if store is None:
        return
    at = {name: row for row, name in enumerate(store.ids)}
    for row in store.sources():
        here = at.get(row["asked"]["id"])
        held = {} if here is None else {m: _at(array, here) for m, array in store.arrays.items()}
        yield entry(row, held)


def _at(arrays: Sequence[Array], row: int) -> Read:
    return lambda: arrays[row]


def _decode(
    job: Job,
    items: Sequence[Item],
    workers: int | None,
    known: dict[str, Entry],
    watch: Watch,
) -> None:
    """Decode these, and add what comes of them to what is known."""
    assert job.parts is not None
    before = set(job.parts.glob("*.part"))  # what they hold of these items does not fit
    done, total = len(known), len(known) + len(items)
    failed = sum(one.error is not None for one in known.values())
    watch(Progress("decoding", done, total, failed))
    with _room(job.parts):
        for outcome in decoded(job, items, workers=workers or cores()):
            done, failed = done + 1, failed + (outcome.error is not None)
            watch(Progress("decoding", done, total, failed, outcome.item.id, outcome.error))
    known |= {one.id: one for one in entries(job.parts, besides=before)}


def _contents(
    collection: Collection, parameters: Parameters, found: Found, known: Mapping[str, Entry]
) -> Contents:
    """What the store will hold, in the order of the ids."""
    items = sorted(found.items, key=lambda item: item.id)
    failed = {item.id: error for item in items if (error := known[item.id].error) is not None}
    there = [item for item in items if item.id not in failed]
    if not there:
        reasons = "".join(f"\n  {name}: {why}" for name, why in list(failed.items())[:5])
        raise ValueError(
            f"none of the {len(items)} samples of '{collection.name}' can be decoded:{reasons}"
        )
    first = known[there[0].id]
    for item in there:
        if known[item.id].arrays.keys() != first.arrays.keys():
            raise ValueError(
                f"sample {item.id!r} has {', '.join(sorted(known[item.id].arrays))}, but "
                f"{first.id!r} has {', '.join(sorted(first.arrays))}; all need the same modalities"
            )
    samples = [
        {
            "id": item.id,
            "target": found.labels.index(item.label),
            "group": item.group,
            "lists": sorted(item.lists),
            "more": json.loads(json.dumps(dict(item.more))),
        }
        for item in there
    ]
    manifest = {
        "version": collection.version,
        "lists": counted(there, found.labels),
        "split_hash": split_hash(there),
        "failed": failed,
        "missing": dict(sorted(found.missing.items())),
        "remarks": list(found.remarks),
    }
    return Contents(
        collection.name,
        json.loads(json.dumps(parameters)),
        found.labels,
        samples,
        [known[item.id].row() for item in items],
        {name: [known[item.id].arrays[name] for item in there] for name in first.arrays},
        manifest,
    )


def _is(store: Store, contents: Contents) -> bool:
    """Whether the store that is there is this one."""
    return (
        store.labels == contents.labels
        and {name: store.manifest.get(name) for name in contents.known} == contents.known
        and list(rows(store.path / "samples.jsonl")) == contents.samples
        and list(store.sources()) == contents.sources
    )


class _Opened(Sequence[Array]):
    """Arrays that are opened when they are asked for."""

    def __init__(self, reads: Sequence[Read]) -> None:
        self.reads = reads

    def __len__(self) -> int:
        return len(self.reads)

    @overload
    def __getitem__(self, index: int) -> Array: ...
    @overload
    def __getitem__(self, index: slice) -> list[Array]: ...
    def __getitem__(self, index: int | slice) -> Array | list[Array]:
        if isinstance(index, slice):
            return [read() for read in self.reads[index]]
        return self.reads[index]()


def _write(folder: Path, contents: Contents, watch: Watch) -> None:
    """Write the store, beside where it belongs."""
    shutil.rmtree(folder, ignore_errors=True)
    total = sum(read().nbytes for reads in contents.arrays.values() for read in reads)
    written = 0

    def tell(size: int) -> None:
        nonlocal written
        written += size
        watch(Progress("writing", written, total))

    with _room(folder):
        if total > shutil.disk_usage(folder.parent).free:
            raise OSError(errno.ENOSPC, f"{total / 1e9:.1f} GB are needed", str(folder))
        write_store(
            folder,
            name=contents.name,
            labels=contents.labels,
            samples=contents.samples,
            arrays={name: _Opened(reads) for name, reads in contents.arrays.items()},
            parameters=contents.parameters,
            sources=contents.sources,
            known=contents.known,
            watch=tell,
        )


def _publish(work: Path, final: Path) -> None:
    """Put the store in its place. An older one steps aside, and comes back if this is cut short."""
    shutil.rmtree(work / "old", ignore_errors=True)
    if final.exists():
        os.replace(final, work / "old")
    os.replace(work / "store", final)
    sync(final.parent)


@contextmanager
def _room(path: Path) -> Generator[None]:
    """A full disk is told with where it is, and that nothing is lost."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        why = f"{error.strerror}; what was decoded is kept, so make room and run it again"
        raise OSError(error.errno, why, error.filename or str(path)) from error
