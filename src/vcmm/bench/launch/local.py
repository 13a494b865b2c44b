"""`launch`: many specs at once, on the cores of this machine.

Each worker is a process that outlives its runs, so torch is imported once in each and not once per
run. A run that fails is an event, and the others go on. A worker that dies (killed, out of memory)
is replaced and its run is tried once more. A spec that another process is running comes back at the
end, when its record is there, or when that process has given up.

Ctrl-C stops the workers before KeyboardInterrupt goes on its way. Nothing is lost by it, nor by
SIGKILL: launching the same specs again continues them where they were.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

from ..events import Event
from ..execution import Execution, cores
from ..spec import Spec
from .worker import STOP, SpecJson, work

_PATIENCE = 4.0  # seconds that a worker has to leave when asked to
_RETRY = 1.0  # seconds between two tries of a spec that is busy elsewhere
_ATTEMPTS = 2  # of a spec whose worker dies
_TAIL = 2000  # characters that are kept of what a worker prints


@dataclass(slots=True, eq=False)
class Task:
    """A spec on its way."""

    spec: SpecJson
    deaths: int = 0  # of workers that ran it
    busy: bool = False  # elsewhere, as was found and told
    ready: float = 0.0  # not to be tried before this time


@dataclass(slots=True, eq=False)
class Worker:
    """A process, and our ends of its pipes."""

    process: SpawnProcess
    tasks: Connection
    events: Connection
    output: Connection
    task: Task | None = None
    last: Event | None = None  # of its task
    printed: str = ""
    talking: bool = True  # its output has not ended

    def give(self, task: Task) -> None:
        """Have it run a task."""
        self.task, self.last = task, None
        with suppress(BrokenPipeError):  # it is dead; its events will end, and tell
            self.tasks.send(task.spec)

    def listen(self) -> None:
        """Keep the end of what it prints, for the day it dies."""
        text = os.read(self.output.fileno(), 1 << 16).decode(errors="replace")
        self.talking = bool(text)
        self.printed = (self.printed + text)[-_TAIL:]

    def close(self) -> None:
        """Nothing is sent or awaited any more."""
        for link in (self.tasks, self.events, self.output):
            link.close()


@dataclass(slots=True)
class Crew:
    """The workers, and what they all have in common."""

    root: Path
    size: int
    execution: Execution
    checkpoint_every: float
    workers: list[Worker] = field(default_factory=list[Worker])

    def hire(self) -> Worker:
        """A new worker, or one without a task."""
        for worker in self.workers:
            if worker.task is None:
                return worker
        context = multiprocessing.get_context("spawn")
        theirs_in, tasks = context.Pipe(duplex=False)
        events, theirs_out = context.Pipe(duplex=False)
        output, theirs_print = context.Pipe(duplex=False)
        links = (theirs_in, theirs_out, theirs_print)
        settings = (self.root, self.execution, self.checkpoint_every, os.getpid())
        process = context.Process(target=work, args=(*links, *settings), daemon=True)
        with interrupts_held():
            process.start()
        for end in links:
            end.close()  # or their death would not end our reading
        worker = Worker(process, tasks, events, output)
        self.workers.append(worker)
        return worker

    @property
    def free(self) -> bool:
        """Whether one more task can be given."""
        return sum(worker.task is not None for worker in self.workers) < self.size

    def bury(self, worker: Worker) -> str:
        """Take a dead worker out; what is known of its death."""
        while worker.talking:
            worker.listen()
        worker.process.join()
        worker.close()
        self.workers.remove(worker)
        code = worker.process.exitcode or 0
        how = f"exit code {code}"
        if code < 0:
            how = f"signal {-code} ({signal.Signals(-code).name})"
        said = worker.printed.strip()
        return how + (f". Its last words:\n{said}" if said else "")

    def dismiss(self) -> None:
        """End all workers: those that can leave by themselves do, the others are killed."""
        try:
            for worker in self.workers:
                with suppress(BrokenPipeError):
                    worker.tasks.send(STOP)
            until = time.monotonic() + _PATIENCE
            alive = list(self.workers)
            while alive and (left := until - time.monotonic()) > 0:
                self._drain(alive, left)
                alive = [worker for worker in alive if worker.process.is_alive()]
        finally:  # a second Ctrl-C included
            for worker in self.workers:
                worker.process.kill()
                worker.process.join()
                worker.close()
            self.workers.clear()

    @staticmethod
    def _drain(workers: list[Worker], seconds: float) -> None:
        """Read what is still coming, or a full pipe would keep a worker from leaving."""
        for link in wait([one for w in workers for one in (w.events, w.process.sentinel)], seconds):
            if isinstance(link, Connection):
                with suppress(EOFError, OSError):
                    link.recv()


def launch(
    specs: Iterable[Spec],
    root: Path,
    *,
    workers: int = 1,
    threads: int | None = None,
    execution: Execution | None = None,
    checkpoint_every: float = 10.0,
) -> Generator[Event]:
    """Run all specs, and tell what happens. Records land in `root`.

    A script that calls this needs the guard `if __name__ == "__main__":`, as with everything that
    starts processes.

    Args:
        specs: each is run once, in this order; equal ones are one.
        root: the folder of the runs.
        workers: processes at a time.
        threads: of torch in each worker; the cores divided by the workers if left out.
        execution: all else that there is to say of how runs are executed.
        checkpoint_every: seconds.

    Example:
        for event in launch(specs, Path("runs"), workers=4):
            print(event.kind, event.run, event.epoch)
    """
    if workers < 1:
        raise ValueError(f"workers is {workers}; it must be 1 or more")
    share = max(1, cores() // workers) if threads is None else threads
    shared = replace(execution or Execution(), threads=share)
    pending = deque(Task(spec.to_json()) for spec in dict.fromkeys(specs))
    crew = Crew(Path(root), workers, shared, checkpoint_every)
    try:
        while pending or any(worker.task for worker in crew.workers):
            _hand_out(pending, crew)
            yield from _listen(pending, crew)
    finally:
        crew.dismiss()


def _hand_out(pending: deque[Task], crew: Crew) -> None:
    """Give tasks to workers while there are both."""
    now = time.monotonic()
    for task in list(pending):
        if not crew.free:
            return
        if task.ready <= now:
            pending.remove(task)
            crew.hire().give(task)


def _listen(pending: deque[Task], crew: Crew) -> Generator[Event]:
    """Wait for news of any worker, and pass on what concerns the runs."""
    talking = [worker for worker in crew.workers if worker.talking]
    links = [worker.events for worker in crew.workers] + [worker.output for worker in talking]
    ready = set(map(id, wait(links, timeout=_RETRY if pending and crew.free else None)))
    for worker in talking:
        if id(worker.output) in ready:
            worker.listen()
    for worker in list(crew.workers):
        if id(worker.events) not in ready:
            continue
        try:
            message: Event | None = worker.events.recv()
        except (EOFError, OSError):  # OSError: it died in the middle of a sentence
            yield from _died(worker, pending, crew)
            continue
        yield from _heard(worker, message, pending)


def _heard(worker: Worker, message: Event | None, pending: deque[Task]) -> Generator[Event]:
    """What a worker says: an event of its run, or None when it is free again."""
    task = worker.task
    assert task is not None
    if message is None:
        worker.task = None
        if worker.last is not None and worker.last.kind == "busy":
            task.ready = time.monotonic() + _RETRY
            pending.append(task)
        return
    worker.last = message
    if message.kind == "busy":
        if task.busy:
            return  # as has been told
        task.busy = True
    yield message


def _died(worker: Worker, pending: deque[Task], crew: Crew) -> Generator[Event]:
    """A worker has died: its task is tried once more, and then has failed."""
    task, last = worker.task, worker.last
    how = crew.bury(worker)
    if task is None or (last is not None and last.kind in ("done", "cached", "failed")):
        return
    task.deaths += 1
    if task.deaths < _ATTEMPTS:
        pending.appendleft(task)
        return
    text = (
        f"The process that ran it was ended {task.deaths} times, lastly by {how}\n"
        "If memory ran out, fewer workers at a time or a smaller batch size help. "
        "The run continues from its last checkpoint when it is launched again.\n"
    )
    run = last.run if last is not None else ""
    if run and (folder := crew.root / ".work" / run).is_dir():
        (folder / "error.txt").write_text(text, encoding="utf-8")
    yield Event("failed", run, task.spec, error=text)


@contextmanager
def interrupts_held() -> Generator[None]:
    """Ctrl-C waits. What is started meanwhile begins with it held back too."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
