"""A run's folder: locked while it is being made, and moved into place once it is whole.

    <root>/<hash>/           a finished run; nothing in it changes any more
    <root>/.work/<hash>/     one that is being made, with its checkpoint
    <root>/.work/<hash>.lock held by the process that makes it

A process that dies, however it dies, gives its lock back to the system. What it has written since
its last checkpoint is cut off by the process that goes on.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

RECORDS = ("steps.jsonl", "evals.jsonl")  # byte-identical for the same spec
SUMMED = ("spec.json", *RECORDS)


class Busy(RuntimeError):
    """Another process is running the same spec at this moment."""


def is_done(root: Path, run: str) -> bool:
    """Whether the run is there, whole."""
    return (root / run / "done").is_file()


@contextmanager
def locked(root: Path, run: str) -> Generator[Path]:
    """The folder in which the run is made, for one process at a time."""
    work = root / ".work" / run
    path = root / ".work" / f"{run}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = _acquire(path)
    try:
        work.mkdir(exist_ok=True)
        yield work
    finally:
        path.unlink(missing_ok=True)  # while it is held, so that nobody waits for what is gone
        os.close(descriptor)


def tidy(root: Path, run: str) -> None:
    """Remove what is left in `.work` of a run that is done, if its process died at the very end."""
    if (root / ".work" / f"{run}.lock").exists():
        with suppress(Busy), locked(root, run) as work:
            shutil.rmtree(work)


def _acquire(path: Path) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise Busy(f"{path} is held by another process, which is running this spec") from None
        if _is_at(descriptor, path):
            return descriptor
        os.close(descriptor)  # its owner removed it between our opening and our locking it


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def publish(root: Path, run: str, work: Path) -> Path:
    """Move a whole run into place, in one step that either happens or does not."""
    sums = {name: hashlib.sha256((work / name).read_bytes()).hexdigest() for name in SUMMED}
    write_json(work / "done", sums)
    for path in work.iterdir():
        sync(path)
    final = root / run
    if final.exists():  # without `done`: the remains of something else
        shutil.rmtree(final)
    for name in ("checkpoint.pt", "checkpoint.tmp"):  # at last, so that a kill costs no training
        (work / name).unlink(missing_ok=True)
    os.replace(work, final)
    sync(root)
    return final


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a file that is either whole or not there."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    sync(temporary)
    os.replace(temporary, path)


def sync(path: Path) -> None:
    """Have the system put a file, or a directory's entries, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Lines:
    """A file of JSON lines that can be cut back to where a checkpoint was taken."""

    def __init__(self, path: Path, size: int) -> None:
        self._file: IO[bytes] = open(path, "ab")  # noqa: SIM115 - closed by `close`
        self._file.truncate(size)

    def write(self, row: Mapping[str, Any]) -> None:
        """Add a row."""
        text = json.dumps(row, separators=(",", ":"), allow_nan=False)
        self._file.write(text.encode() + b"\n")

    def sync(self) -> int:
        """Put all rows on the disk. Returns the size, to cut back to."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        """Nothing more will be written."""
        self._file.close()
