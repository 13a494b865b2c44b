"""`inspect`: what a folder holds of a data set, what lacks, and which files cannot be used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..launch.local import cores
from .collection import Collection, Parameters
from .crew import Job, decoded
from .prepare import (
    Progress,
    Watch,
    folder_of,
    known_entries,
    nobody,
    settled,
    sound,
    stored_entries,
    surveyed,
)
from .splits import counted, split_hash


@dataclass(frozen=True, slots=True)
class Inspection:
    """What there is. Lists and hash are of the samples that can be used."""

    name: str
    samples: int
    labels: tuple[str, ...]
    lists: Mapping[str, Mapping[str, Any]]  # samples, classes and hash of each
    split_hash: str
    missing: Mapping[str, str]  # id, or a file -> what lacks
    unreadable: Mapping[str, str]  # id -> why it cannot be decoded
    remarks: tuple[str, ...]
    decoded: bool  # whether the files were decoded; otherwise they are only there
    layout: str  # what is expected, and how to obtain it
    damage: str | None  # of the store that was prepared of it, if it is damaged

    @property
    def complete(self) -> bool:
        """Whether nothing lacks and nothing is broken, as far as was looked."""
        return not self.missing and not self.unreadable and self.damage is None

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        return {**asdict(self), "complete": self.complete}


def inspect(
    collection: Collection,
    root: Path,
    parameters: Parameters,
    *,
    decode: bool = True,
    cache: Path | None = None,
    workers: int | None = None,
    watch: Watch | None = None,
) -> Inspection:
    """Look at a folder, and write nothing.

    Args:
        collection: which data set it should be.
        root: the folder.
        parameters: of decoding; those that are left out have their defaults.
        decode: try every file. What a store of the same bytes holds is not tried again, once all of
            the store was read and is as it was written.
        cache: where a store would be, see `cache_folder`.
        workers: processes at a time; all cores if left out.
        watch: is told of the progress.
    """
    given = settled(collection, parameters)
    found = surveyed(collection, root, given)
    unreadable: dict[str, str] = {}
    damage: str | None = None
    if decode:
        tell = watch or nobody
        store, damage = sound(folder_of(collection, given, cache=cache))
        known = known_entries(found.items, root, stored_entries(store), tell)
        unreadable = {one.id: one.error for one in known.values() if one.error is not None}
        left = [item for item in found.items if item.id not in known]
        done, job = len(known), Job(collection, root.absolute(), given, None)
        tell(Progress("decoding", done, len(found.items), len(unreadable)))
        for outcome in decoded(job, left, workers=workers or cores()):
            done += 1
            if outcome.error is not None:
                unreadable[outcome.item.id] = outcome.error
            named = outcome.item.id, outcome.error
            tell(Progress("decoding", done, len(found.items), len(unreadable), *named))
    usable = [item for item in found.items if item.id not in unreadable]
    return Inspection(
        collection.name,
        len(usable),
        found.labels,
        counted(usable, found.labels),
        split_hash(usable),
        dict(sorted(found.missing.items())),
        dict(sorted(unreadable.items())),
        found.remarks,
        decode,
        collection.layout.strip(),
        damage,
    )
