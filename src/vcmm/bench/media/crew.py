"""Decode many items in several processes, any of which may die.

Each process decodes what it is given and keeps it in parts, see `parts`. A file that cannot be
decoded is an outcome like any other; if the machine is to blame and not the file, the outcome is
not used again. A library that lacks ends it all. A process that dies, because a codec crashed or
because it was killed, is replaced; the item that it was at is tried again alone, and has failed if
that ends the same way. A process whose parent is gone leaves by itself.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import sys
import time
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from ..launch.local import interrupts_held
from ..types import Array
from .codec import causes, lasting
from .collection import Collection, Item, Parameters, Undecodable
from .parts import Entry, Part, asked, stamped

CHUNK = 8  # items that are given to a process at a time
OFTEN = 1.0  # seconds after which what was decoded is kept
PATIENCE = 900.0  # seconds that one item may take
TAIL = 1000  # characters that are kept of what a process prints
STARTS = 3  # of processes that die before they begin with an item


@dataclass(frozen=True, slots=True)
class Job:
    """What all processes are told."""

    collection: Collection
    root: Path
    parameters: Parameters
    parts: Path | None  # where parts are kept; None to look whether items can be decoded


@dataclass(frozen=True, slots=True)
class Outcome:
    """An item that was decoded and kept, or why it could not be."""

    item: Item
    error: str | None


@dataclass(slots=True, eq=False)
class Worker:
    """A process, and what it is doing."""

    process: SpawnProcess
    link: Connection
    output: Connection
    items: dict[str, Item] = field(default_factory=dict[str, Item])  # not kept yet
    at: str | None = None  # the item that it has begun with
    since: float = 0.0
    late: bool = False  # it was killed for taking too long
    printed: str = ""
    talking: bool = True

    def give(self, items: Sequence[Item]) -> None:
        """Have it decode these."""
        self.items, self.at, self.since = {item.id: item for item in items}, None, time.monotonic()
        with suppress(BrokenPipeError):  # it is dead, which its link will tell
            self.link.send(items)

    def listen(self) -> None:
        """Keep the end of what it prints, for the day it dies."""
        text = os.read(self.output.fileno(), 1 << 16).decode(errors="replace")
        self.talking = bool(text)
        self.printed = (self.printed + text)[-TAIL:]

    def end(self) -> int:
        """Wherever it is; what it has kept stays. Its exit code."""
        self.process.kill()
        self.process.join()
        self.link.close()
        self.output.close()
        return self.process.exitcode or 0


def decoded(job: Job, items: Sequence[Item], *, workers: int) -> Generator[Outcome]:
    """Decode all items, in any order. OSError if the disk is full, ImportError for a library."""
    count = max(1, min(CHUNK, len(items) // workers))
    pending = deque(items[at : at + count] for at in range(0, len(items), count))
    crew: list[Worker] = []
    deaths: dict[str, int] = {}
    try:
        while pending or any(worker.items for worker in crew):
            while pending and (worker := _free(crew, workers, job)):
                worker.give(pending.popleft())
            for worker in _heard(crew):
                died = False
                while worker.link.poll():
                    try:
                        message = worker.link.recv()
                    except (EOFError, OSError):
                        died = True
                        break
                    deaths.pop("", None)
                    yield from _told(worker, message)
                if died:
                    crew.remove(worker)
                    yield from _buried(worker, job, pending, deaths)
    finally:
        for worker in crew:
            worker.end()


def _free(crew: list[Worker], workers: int, job: Job) -> Worker | None:
    """A process that has nothing to do, if there may be one."""
    for worker in crew:
        if not worker.items:
            return worker
    if len(crew) >= workers:
        return None
    context = multiprocessing.get_context("spawn")
    link, theirs = context.Pipe()
    output, printing = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(theirs, printing), daemon=True)
    with interrupts_held():
        process.start()
    theirs.close()
    printing.close()
    crew.append(worker := Worker(process, link, output))
    with suppress(BrokenPipeError):
        link.send(job)
    return worker


def _heard(crew: list[Worker]) -> list[Worker]:
    """The processes that say something. Those that take too long are killed."""
    talking = [worker for worker in crew if worker.talking]
    ready = wait([w.link for w in crew] + [w.output for w in talking], timeout=1.0)
    for worker in talking:
        if worker.output in ready:
            worker.listen()
    for worker in crew:
        if worker.at is not None and time.monotonic() - worker.since > PATIENCE:
            worker.late = True
            worker.process.kill()
    return [worker for worker in crew if worker.link in ready]


def _told(worker: Worker, message: tuple[str, Any]) -> Generator[Outcome]:
    """What a process says: which item it begins with, what it has kept, what ends it all."""
    kind, value = message
    if kind == "begins":
        worker.at, worker.since = value, time.monotonic()
    elif kind == "kept":
        for name, error in value:
            yield Outcome(worker.items.pop(name), error)
        if not worker.items:
            worker.at = None
    elif kind == "lacks":
        raise ImportError(value)
    else:
        raise OSError(*value)


def _buried(
    worker: Worker, job: Job, pending: deque[Sequence[Item]], deaths: dict[str, int]
) -> Generator[Outcome]:
    """A process has died. The others of its items are decoded later, and perhaps this one too."""
    while worker.talking:
        worker.listen()
    code = worker.end()
    how = f"signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"exit code {code}"
    said = worker.printed.strip()
    blamed = worker.items.pop(worker.at) if worker.at in worker.items else None
    if rest := list(worker.items.values()):
        pending.append(rest)
    key = "" if blamed is None else blamed.id
    deaths[key] = deaths.get(key, 0) + 1
    if blamed is None:
        if deaths[key] >= STARTS:
            last = f". Its last words:\n{said}" if said else ""
            raise RuntimeError(
                f"processes that decode end before they begin, with {how}; a script needs the "
                f"guard if __name__ == '__main__'{last}"
            )
        return
    # Who is killed, rather than crashes, may have been killed for something else.
    most = 3 if code == -signal.SIGKILL else 2
    if deaths[key] < most and not worker.late:
        pending.append([blamed])
        return
    error = f"decoding it ends the process with {how}"
    again = False
    if worker.late:
        error = f"decoding it takes more than {PATIENCE:.0f} s"
    elif code == -signal.SIGKILL:
        error, again = f"{error}; memory may have run out", True
    if job.parts is not None:
        part = Part(job.parts / f"{uuid4().hex}.part")
        part.add(Entry(asked(blamed), None if again else stamped(job.root, blamed), error), {})
        part.keep()
    yield Outcome(blamed, error)


# In the other process


def work(link: Connection, output: Connection) -> None:
    """Decode the items that arrive until nobody sends any more."""
    # The terminal sends Ctrl-C to everybody, but it is the parent that decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    for stream in (sys.stdout, sys.stderr):
        os.dup2(output.fileno(), stream.fileno())
    output.close()
    os.environ["OPENCV_FOR_THREADS_NUM"] = "1"  # as many processes as cores, with a thread each
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        job: Job = link.recv()
        import torch

        torch.set_num_threads(1)
        while True:
            _decode(link, job, link.recv())


def _decode(link: Connection, job: Job, items: Sequence[Item]) -> None:
    """Decode some items, and keep what was made of them at short intervals."""
    part: Part | None = None
    outcomes: list[tuple[str, str | None]] = []
    since = time.monotonic()
    path = None if job.parts is None else job.parts / "new.part"
    try:
        for item in items:
            link.send(("begins", item.id))
            made, arrays = attempt(job, item)
            if job.parts is not None:
                if part is None:
                    path = job.parts / f"{uuid4().hex}.part"
                    part = Part(path)
                part.add(made, arrays)
            outcomes.append((item.id, made.error))
            if time.monotonic() - since > OFTEN or item is items[-1]:
                if part is not None:
                    part.keep()
                link.send(("kept", outcomes))
                part, outcomes, since = None, [], time.monotonic()
    except (BrokenPipeError, ConnectionResetError):
        raise
    except ImportError as error:
        if part is not None:
            part.drop()
        link.send(("lacks", str(error)))
    except OSError as error:
        if part is not None:
            part.drop()
        link.send(("full", (error.errno, error.strerror, str(path))))


def attempt(job: Job, item: Item) -> tuple[Entry, Mapping[str, Array]]:
    """What comes of an item: arrays, or why there are none. ImportError if a library lacks."""
    stamps = None if job.parts is None else stamped(job.root, item)
    try:
        _openable(job.root, item)
        arrays = job.collection.decode(job.root, item, job.parameters)
        if not arrays:
            raise Undecodable("decoding it gives nothing")
        for modality, array in arrays.items():
            _look(modality, array)
    except Exception as error:  # a codec raises what it likes, and others go on
        if any(isinstance(cause, ImportError) for cause in causes(error)):
            raise ImportError(
                f"a library that decodes is not there, or is broken: {error}; "
                'get it with: pip install "vcmm[media]"'
            ) from error
        named = "" if isinstance(error, Undecodable) else f"{type(error).__name__}: "
        reason = _line(f"{named}{error}", job.root)
        return Entry(asked(item), stamps if lasting(error) else None, reason), {}
    return Entry(asked(item), stamps), arrays


def _openable(root: Path, item: Item) -> None:
    """An error for what is no file: a pipe would be waited for."""
    for path in sorted({path for paths in item.files.values() for path in paths}):
        if (root / path).exists() and not (root / path).is_file():
            raise Undecodable(f"{path}: it is not a file")


def _look(modality: str, array: Array) -> None:
    """An error for what a store cannot hold, or a model cannot learn from."""
    if array.dtype.hasobject or not array.ndim or not array.size:
        raise Undecodable(f"modality {modality!r} is {array.dtype} {array.shape}")
    if np.issubdtype(array.dtype, np.inexact) and not np.isfinite(array).all():
        raise Undecodable(f"modality {modality!r} has values that are no numbers")


def _line(text: str, root: Path) -> str:
    """A reason as one line that says nothing of where the root is."""
    start = re.escape(f"{str(root).rstrip(os.sep)}{os.sep}")
    return " ".join(re.sub(rf"(?<![^\s'\"(\[<=:,]){start}", "", text).split())[:500]
